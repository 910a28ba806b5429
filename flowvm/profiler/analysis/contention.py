"""Contention for cores: which threads had the cores that a run lacked, and how much of the running
time was waiting for one.

The system says of each thread how long it was ready and had no core (`flowvm.vm.watch.cores`), for
the whole run and not when.  So what a stream's threads lacked is spread over the time in which its
instructions ran, or were about to, and what the scheduler lacked over the run; and who had the
cores is what each other used meanwhile.
"""

from __future__ import annotations

from flowvm.profiler.run.run import Run

# who had a core: other processes; flowvm's own threads, and what compiles for it; another thread of
# the user's, which is named as who has the GIL is
TAKERS = ("core", "own", "gil")
STREAMS = "flowvm-w:", "flowvm-h:"  # names of threads that run instructions begin with these
SCHEDULER = "flowvm-sched"


def cores_of(run: Run) -> int:
    """Return the number of cores that the process could use; 0 if not known."""
    return int(run.info.get("load", {}).get("cores", 0))


def takers(run: Run, but: str = "issuing") -> dict[str, float]:
    """Shares of who had the cores while threads of a kind, or of a name, had none; they sum to 1.
    Empty where that is not known.
    """
    load = run.info.get("load")
    if load is None:
        return {}
    used = dict.fromkeys(TAKERS, 0.0)
    used["core"] = float(max(0, load["others"]))
    for name, kind, on, _ in load["threads"]:
        if but not in (name, kind):
            used["gil" if kind == "python" else "own"] += on
    total = sum(used.values())
    return {who: time / total for who, time in used.items()} if total else {}


def own_takers(run: Run) -> dict[str, float]:
    """Shares of the cores that flowvm's own threads had, by what they did: "sched" for instructions
    that are started and ended one by one, "run" for kernels, "own" for the rest.  They sum to 1;
    empty where none had any.
    """
    used = dict.fromkeys(("sched", "run", "own"), 0.0)
    for name, kind, on, _ in run.info.get("load", {}).get("threads", ()):
        if kind not in ("issuing", "python"):
            work = "run" if name.startswith(STREAMS) else "own"
            used["sched" if name == SCHEDULER else work] += on
    total = sum(used.values())
    return {what: time / total for what, time in used.items()} if total else {}


def blocked(run: Run) -> int | None:
    """Nanoseconds that issuing threads were neither on a core nor ready for one: they slept, or
    waited for something.  None where that is not known.
    """
    load = run.info.get("load", {})
    rows = [(on, idle) for _, kind, on, idle in load.get("threads", ()) if kind == "issuing"]
    if not rows or not load.get("wall", 0):
        return None
    return int(sum(max(0, load["wall"] - on - idle) for on, idle in rows))


def lack(run: Run, stream: str, duration: float) -> float:
    """The share of `duration` nanoseconds, in which a stream ran or was about to, that its threads
    were ready and had no core: the mean over those, for they share the work.
    """
    rows = run.info.get("load", {}).get("threads", ())
    names = f"{STREAMS[0]}{stream}", f"{STREAMS[1]}{stream}."
    ready = [idle for name, _, on, idle in rows if name.startswith(names) and on + idle]
    return min(1.0, sum(ready) / len(ready) / duration) if ready and duration > 0 else 0.0


def unserved(run: Run, stream: str, duration: float) -> float:
    """Return the share of `duration` nanoseconds, in which instructions of a stream were ready to
    start, that who starts them had no core: first the scheduler, behind it the stream's worker.
    """
    load = run.info.get("load", {})
    rows = load.get("threads", ())
    worker = sum(idle for name, _, _, idle in rows if name == STREAMS[0] + stream)
    scheduler = sum(idle for name, _, _, idle in rows if name == SCHEDULER)
    # the worker is spread over what it served, the scheduler over the whole run
    share = worker / max(duration, 1.0) + scheduler / max(load.get("wall", 0), run.wall, 1)
    return min(1.0, share) if duration > 0 else 0.0


def machine(run: Run) -> str:
    """Return the share of the machine that other processes had, in words; "" if it was next to
    nothing.
    """
    load = run.info.get("load")
    if load is None or load["others"] < 0 or not load["wall"]:
        return ""
    cores = load["others"] / load["wall"]
    if cores < 0.1:
        return ""
    return f"other processes had {cores:.1f} of its cores"
