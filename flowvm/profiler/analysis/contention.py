"""Contention for cores: which threads had the cores that a run lacked, and how much of the running
time was waiting for one.

The system says of each thread how long it was ready and had no core (`flowvm.vm.watch.cores`), for
the whole run and not when.  So what a stream's threads lacked is spread over the time in which its
instructions ran, or were about to; and who had the cores is what each other used meanwhile.
"""

from __future__ import annotations

from flowvm.profiler.run.run import Run

# who had a core: other processes; flowvm's own threads, and what compiles for it; another thread of
# the user's, which is named as who has the GIL is
TAKERS = ("core", "own", "gil")


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


def lack(run: Run, stream: str, wanted: float) -> float:
    """The share of `wanted` nanoseconds, in which a stream ran or was about to, that its threads
    were ready and had no core: the mean over those, for they share the work.
    """
    rows = run.info.get("load", {}).get("threads", ())
    names = f"flowvm-w:{stream}", f"flowvm-h:{stream}."
    ready = [idle for name, _, on, idle in rows if name.startswith(names) and on + idle]
    return min(1.0, sum(ready) / len(ready) / wanted) if ready and wanted > 0 else 0.0


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
