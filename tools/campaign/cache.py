"""The folder of compiled code under everything that happens to folders.

A case is what becomes of the folder before and while several processes want the same kernels of it,
cold.  Whatever that is, all of them compute the right numbers, none ends otherwise than by itself,
each warns once at most, nothing is written where it must not be, and what was damaged is whole
again for the next one.

The processes are forks of this one, which has Numba already and no kernel; in one case of FRESH
they are Pythons of their own, and in one of those whole flowvm computes.  Disks are full by a limit
on the size of files, and folders read-only by a system call that says so, for this may run as root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flowvm as flow
from flowvm.compiler import cache, jit

Case = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
FRESH = 12
FRESH_SECONDS = 240
AMOUNTS: Counter[str] = Counter()
BATCH = 40
PLAGUES = (
    "none", "truncated", "flipped", "zeroed", "exchanged", "read-only", "full", "links",
    "link to the folder", "a file for a folder", "loop", "open to all", "entries open to all",
    "another's folder", "another's entries", "pipes and folders", "killed", "pruned", "removed",
)  # fmt: skip
UNUSABLE = {"open to all", "another's folder"}  # nothing may be written there
HEALED = {  # afterwards every kernel is in the cache
    "none", "truncated", "flipped", "zeroed", "exchanged", "links", "link to the folder",
    "entries open to all", "another's entries", "killed",
}  # fmt: skip
CHILD = """
import json, sys, warnings
from tools.campaign import cache
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    wrong = cache.WORK[sys.argv[1]]()
print(json.dumps([wrong, [str(w.message) for w in said]]))
"""


# --- what is computed -----------------------------------------------------------------------------


def tripled(x: int) -> int:
    """Return three times `x`: a function to compile."""
    return 3 * x


def curve(x: float) -> float:
    """Compute a function to compile that calls the system's library."""
    return math.exp(x) + math.sin(x)


def triangle(n: int) -> int:
    """Compute a function to compile that has a loop."""
    total = 0
    for k in range(n):
        total += k
    return total


FUNCTIONS: tuple[tuple[Callable[..., Any], str, Any, Any], ...] = (
    (tripled, "int64(int64)", ctypes.c_int64, 14),
    (curve, "float64(float64)", ctypes.c_double, 0.5),
    (triangle, "int64(int64)", ctypes.c_int64, 1000),
)


def kernels() -> str:
    """Compile or load three functions, and call them; return the problem."""
    for function, signature, result, argument in FUNCTIONS:
        address = jit.native(function, signature, facts="campaign")
        number = ctypes.CFUNCTYPE(result, result)(address)(argument)
        want = function(argument)
        if not math.isclose(number, want, rel_tol=1e-14):
            return f"{function.__name__}({argument}) is {number}, not {want}"
    return ""


def tensors() -> str:
    """Compute with tensors on a VM that is not compiled yet, and with code that may be damaged."""
    with flow.vm.sequential():
        result = (flow.ones(3) * 2 + 1).tolist()
    return kernels() if result == [3.0, 3.0, 3.0] else f"ones * 2 + 1 is {result}"


WORK: dict[str, Callable[[], str]] = {"kernels": kernels, "tensors": tensors}


# --- cases ----------------------------------------------------------------------------------------


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    fresh = rng.randrange(FRESH) == 0
    return {
        "plagues": rng.sample(PLAGUES, rng.choice([1, 1, 1, 2])),
        "processes": 8 if rng.random() < 0.7 else rng.randrange(1, 8),
        "fresh": fresh,
        "work": "tensors" if fresh and rng.randrange(6) == 0 else "kernels",
        "seed": seed,
    }


def kind(case: Case) -> str:
    """Return the kind of a case."""
    return ("fresh " if case["fresh"] else "") + " and ".join(sorted(case["plagues"]))


def parts(case: Case) -> list[str]:
    """Return the plagues that a case may leave out."""
    plagues: list[str] = case["plagues"]
    return plagues if len(plagues) > 1 else []


def without(case: Case, k: int) -> Case:
    """The case without a plague."""
    return {**case, "plagues": case["plagues"][:k] + case["plagues"][k + 1 :]}


def check(case: Case) -> str:
    """Let the processes run, and look at the folder: "right"."""
    rng = random.Random(case["seed"])
    if not jit.stats().compiled:  # Numba is imported once, and not by each process
        with tempfile.TemporaryDirectory() as aside:
            jit.set_cache_dir(aside)
            jit.native(_warm, "int64(int64)")
            jit.set_cache_dir(None)
    with tempfile.TemporaryDirectory() as place:
        folder, plagues = Path(place) / "cache", set(case["plagues"])
        for plague in sorted(plagues):
            BEFORE.get(plague, _nothing)(folder, rng)
        owned = _names(folder)
        _run(case, folder, plagues, rng)
        AMOUNTS["processes"] += case["processes"]
        if plagues & UNUSABLE:
            assert _names(folder) <= owned, f"written to: {_names(folder) - owned}"
        outside = Path(place) / "outside.o"
        assert not outside.exists() or outside.read_bytes() == b"outside", "a link was followed"
        if plagues <= HEALED:
            outcome = _forked(folder, set(), rng)()
            assert outcome["compiled"] == 0, f"not whole again: {outcome}"
    return "right"


def _run(case: Case, folder: Path, plagues: set[str], rng: random.Random) -> None:
    """All processes at one time; each answers with the right numbers and one warning at most."""
    start = _fresh if case["fresh"] and not plagues & {"read-only", "full"} else _forked
    if case["work"] == "tensors" and start is _fresh:
        waiting = [_fresh(folder, plagues, rng, "tensors") for _ in range(2)]
    else:
        waiting = [start(folder, plagues, rng) for _ in range(case["processes"])]
    victims = [_victim(folder, rng) for _ in range(4 * ("killed" in plagues))]
    if "pruned" in plagues:
        _prune(folder)
    if "removed" in plagues:
        time.sleep(rng.random() * 0.2)
        shutil.rmtree(folder, ignore_errors=True)
    for process in victims:
        os.waitpid(process, 0)
    for answer in waiting:
        outcome = answer()
        assert not outcome["wrong"], outcome["wrong"]
        assert len(outcome["warnings"]) <= 1, (
            f"{len(outcome['warnings'])} warnings: {outcome['warnings']}"
        )


def _warm(x: int) -> int:
    return x


def _names(folder: Path) -> set[str]:
    with contextlib.suppress(OSError):
        return {item.name for item in folder.iterdir()}
    return set()


# --- processes ------------------------------------------------------------------------------------


def _forked(folder: Path, plagues: set[str], rng: random.Random) -> Callable[[], dict[str, Any]]:
    """Begin a fork that computes; return a function that waits for its answer."""
    limit = rng.randrange(3000)
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:  # whatever comes, a fork does not go on with what this process does
            os.close(reading)
            try:
                answer = _computed(folder, plagues, limit)
            except BaseException:
                answer = {"wrong": traceback.format_exc(), "warnings": [], "compiled": -1}
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            with open(writing, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writing)

    def wait() -> dict[str, Any]:
        with open(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(process, 0)
        assert status == 0, f"a process ended with {os.waitstatus_to_exitcode(status)}"
        answer: dict[str, Any] = json.loads(text)
        return answer

    return wait


def _computed(folder: Path, plagues: set[str], limit: int) -> dict[str, Any]:
    jit._addresses.clear()
    jit._warned.cache_clear()
    cache._warn_once.cache_clear()
    jit.set_cache_dir(folder)
    compiled = jit.stats().compiled
    if "full" in plagues:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if "read-only" in plagues:
        _make_read_only()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrong = kernels()
    return {
        "wrong": wrong,
        "warnings": [str(w.message) for w in caught],
        "compiled": jit.stats().compiled - compiled,
    }


def _make_read_only() -> None:
    """Let the system answer every request that the file system is read-only."""
    opened = os.open

    def refused(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *args, **kwargs)

    os.open = refused


def _victim(folder: Path, rng: random.Random) -> int:
    """Begin a fork that is killed at some moment of its work: its id."""
    process = os.fork()
    if process == 0:
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
                _computed(folder, set(), 0)
        finally:
            os._exit(0)
    time.sleep(rng.random() * 0.15)
    os.kill(process, signal.SIGKILL)
    return process


def _fresh(
    folder: Path, plagues: set[str], rng: random.Random, work: str = "kernels"
) -> Callable[[], dict[str, Any]]:
    """Begin a Python that computes; return a function that waits for its answer."""
    own = subprocess.Popen(
        [sys.executable, "-c", CHILD, work],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "FLOWVM_CACHE_DIR": str(folder)},
    )  # fmt: skip

    def wait() -> dict[str, Any]:
        out, err = own.communicate(timeout=FRESH_SECONDS)
        assert own.returncode == 0, f"a process ended with {own.returncode}: {err[-2000:]}"
        assert "Traceback" not in err, err[-2000:]
        wrong, messages = json.loads(out.strip().splitlines()[-1])
        return {"wrong": wrong, "warnings": messages, "compiled": 0}

    return wait


# --- plagues --------------------------------------------------------------------------------------


def _nothing(folder: Path, rng: random.Random) -> None:
    """The folder is not there."""


def _filled(folder: Path, rng: random.Random) -> list[Path]:
    """Have every kernel in the folder: the entries."""
    with contextlib.suppress(AssertionError):
        _forked(folder, set(), rng)()
    with contextlib.suppress(OSError):
        return sorted(folder.glob("*.o"))
    return []


def _each(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def plague(folder: Path, rng: random.Random) -> None:
        for entry in _filled(folder, rng):
            if rng.random() < 0.8:
                with contextlib.suppress(OSError):
                    entry.write_bytes(change(entry.read_bytes(), rng))

    return plague


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 10])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _zeroed(data: bytes, rng: random.Random) -> bytes:
    """Damage data as a crash of the system does: the length is there, some pages are not."""
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data) - at)


def _exchanged(folder: Path, rng: random.Random) -> None:
    """Whole entries, each under the name of another."""
    entries = _filled(folder, rng)
    entries_before = [e.read_bytes() for e in entries]
    for entry, data in zip(entries, entries_before[1:] + entries_before[:1], strict=True):
        entry.write_bytes(data)


def _links(folder: Path, rng: random.Random) -> None:
    """Entries are links: to a file outside, to nothing, to themselves."""
    outside = folder.parent / "outside.o"
    outside.write_bytes(b"outside")
    for entry in _filled(folder, rng):
        with contextlib.suppress(OSError):
            entry.unlink()
            entry.symlink_to(rng.choice([outside, folder / "nothing.o", entry]))


def _link_to_folder(folder: Path, rng: random.Random) -> None:
    real = folder.parent / "real"
    real.mkdir(mode=0o700, exist_ok=True)
    if not folder.exists():
        folder.symlink_to(real)


def _file_for_folder(folder: Path, rng: random.Random) -> None:
    if not folder.exists():
        folder.write_bytes(b"a file")


def _loop(folder: Path, rng: random.Random) -> None:
    if not folder.exists() and not folder.is_symlink():
        folder.symlink_to(folder)


def _open_to_all(folder: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        _filled(folder, rng)
    _mode(folder, rng.choice([0o777, 0o770, 0o1777, 0o722]))


def _mode(path: Path, mode: int) -> None:
    with contextlib.suppress(OSError):
        path.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        path.chmod(mode)


def _open_entries(folder: Path, rng: random.Random) -> None:
    for entry in _filled(folder, rng):
        with contextlib.suppress(OSError):
            entry.chmod(0o666)


def _anothers_folder(folder: Path, rng: random.Random) -> None:
    _filled(folder, rng)
    _mode(folder, 0o755)
    _give_away(folder)


def _anothers_entries(folder: Path, rng: random.Random) -> None:
    for entry in _filled(folder, rng):
        _give_away(entry)


def _give_away(path: Path) -> None:
    """Another user's; where only this user's files can be made, open to all instead."""
    try:
        os.chown(path, 54321, 54321)
    except PermissionError:
        path.chmod(0o777)
    except OSError:
        return


def _no_files(folder: Path, rng: random.Random) -> None:
    """Pipes and folders where entries are expected."""
    for entry in _filled(folder, rng):
        with contextlib.suppress(OSError):
            entry.unlink()
            if rng.random() < 0.5:
                os.mkfifo(entry)
            else:
                entry.mkdir()


def _prune(folder: Path) -> None:
    for _ in range(10):
        jit.prune(folder, 100)
        time.sleep(0.01)


BEFORE: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _each(lambda data, rng: data[: rng.randrange(len(data))]),
    "flipped": _each(_flipped),
    "zeroed": _each(_zeroed),
    "exchanged": _exchanged,
    "links": _links,
    "link to the folder": _link_to_folder,
    "a file for a folder": _file_for_folder,
    "loop": _loop,
    "open to all": _open_to_all,
    "entries open to all": _open_entries,
    "another's folder": _anothers_folder,
    "another's entries": _anothers_entries,
    "pipes and folders": _no_files,
}
