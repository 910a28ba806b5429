"""DataLoader's worker processes: their seeds, errors and ends, and the memory that batches come in.

Events and barriers of processes force what order a test needs; nothing sleeps.  What concerns
signals, and workers that are not forked, runs in a program of its own.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import LoaderError
from flowvm.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    get_worker_info,
    pool,
)
from flowvm.utils.data.worker import PATIENCE_S
from flowvm.vm.callers.interrupt import interrupt
from flowvm.vm.engine.engine import engine
from tests.vm.live import until

FORK = multiprocessing.get_context("fork")
WAIT = 200.0  # seconds after which a test that should have been woken fails
IMAGE = (3, 64, 64)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    files, before = shared_files(), children()
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    assert children() <= before  # nor is a zombie
    # others' semaphores have names for a moment
    until(lambda: shared_files() <= files, "files of shared memory are left")


def shared_files() -> set[str]:
    """Files of shared memory, but MPI's, of ranks that other tests have started meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("mpich")}


def children() -> set[int]:
    """This process's children, and those that nobody asked how they ended."""
    results = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            tracker = b"resource_tracker" in (folder / "cmdline").read_bytes()  # spawning leaves it
            if int(parent) == os.getpid() and not tracker:
                results.add(int(folder.name))
    return results


def mapped() -> list[str]:
    """This process's segments: the lines of its map."""
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "flowvm-batch" in line
    ]


class Rows(Dataset[Any]):
    """Sample i is `make(i)`."""

    def __init__(self, n: int, make: Any = lambda i: i) -> None:
        self.n, self.make = n, make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def image(index: int) -> np.ndarray[Any, Any]:
    return np.full(IMAGE, index, np.float32)


def loaded(make: Any, n: int = 4, **options: Any) -> list[Any]:
    """Single samples, as workers made them."""
    options = {"num_workers": 2, "collate_fn": lambda sample: sample, **options}
    return list(DataLoader(Rows(n, make), None, **options))


# --- who makes what -------------------------------------------------------------------------------


def test_workers_are_processes_that_take_turns() -> None:
    pids = loaded(lambda i: os.getpid(), 6)
    assert pids == [pids[0], pids[1]] * 3
    assert len({*pids, os.getpid()}) == 3


def test_a_worker_knows_who_it_is() -> None:
    def info(index: int) -> Any:
        mine = get_worker_info()
        assert mine is not None
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append(get_worker_info()))
        thread.start()
        thread.join()
        assert other == [mine], "a thread of a worker is in it"
        return mine.id, mine.num_workers, mine.seed, mine.dataset.n, repr(mine)

    (first, again, *_), n = loaded(info, 4), 4
    assert first[:2] == (0, 2)
    assert again[:2] == (1, 2)
    assert again[2] == first[2] + 1
    assert first[3] == n
    assert first[4].startswith(f"WorkerInfo(id=0, num_workers=2, seed={first[2]}, dataset=")
    assert get_worker_info() is None


def drawn(index: int) -> Any:
    return random.random(), float(np.random.rand()), float(flow.rand(()).item())


def test_what_workers_draw_depends_on_the_generator_alone() -> None:
    def epochs() -> list[Any]:
        generator = flow.Generator().manual_seed(3)
        loader = DataLoader(Rows(4, drawn), None, num_workers=2, generator=generator)
        return [list(loader), list(loader)]

    first, second = epochs()
    assert epochs() == [first, second]
    for numbers in zip(*first, *second, strict=False):
        assert len(set(numbers)) == len(numbers)  # of random, NumPy and flowvm
    flow.manual_seed(9)
    one = loaded(drawn)
    flow.manual_seed(9)
    assert loaded(drawn) == one


def test_init_runs_once_in_each_worker() -> None:
    def init(worker: int) -> None:
        random.seed(100 + worker)

    numbers = loaded(lambda i: random.random(), worker_init_fn=init)
    expected = [random.Random(100 + worker) for worker in (0, 1)]
    assert numbers == [expected[i % 2].random() for i in range(4)]


class Shared(IterableDataset[Any]):
    """Worker i of n reads numbers i, i + n, ...; worker 0 stops early."""

    def __init__(self, early: int = 0) -> None:
        self.early = early

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 5 if first == 0 and self.early else 14, step))


def test_each_worker_reads_its_part_of_a_stream() -> None:
    def read(early: int, **options: Any) -> list[Any]:
        loader = DataLoader(Shared(early), 2, num_workers=2, **options)
        return [batch.tolist() for batch in loader]

    assert read(0) == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12], [13]]
    assert read(1) == [[0, 2], [1, 3], [4], [5, 7], [9, 11], [13]]
    assert read(1, drop_last=True) == [[0, 2], [1, 3], [5, 7], [9, 11]]
    assert list(DataLoader(Shared(1), None, num_workers=3)) == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 13]
    loader = DataLoader(Shared(1), 2, num_workers=2, persistent_workers=True)
    assert [[b.tolist() for b in loader] for _ in range(2)] == [read(1), read(1)]


def test_batches_as_they_are_ready() -> None:
    go = FORK.Event()

    def make(index: int) -> int:
        assert index != 0 or go.wait(WAIT)
        return index

    batches = iter(DataLoader(Rows(6, make), None, num_workers=2, in_order=False))
    rows = [next(batches) for _ in range(4)]
    assert 0 not in rows
    go.set()
    assert sorted([*rows, *batches]) == list(range(6))


def test_workers_read_ahead_and_no_further() -> None:
    semaphore = FORK.Semaphore(0)
    count = FORK.Value("i", 0)

    def make(index: int) -> int:
        with count.get_lock():
            count.value += 1
        semaphore.release()
        return index

    batches = iter(DataLoader(Rows(100, make), None, num_workers=2, prefetch_factor=3))
    for _ in range(6):
        assert semaphore.acquire(timeout=WAIT)  # before anyone asked
    for number in range(1, 20):
        assert next(batches) == number - 1
        assert semaphore.acquire(timeout=WAIT)
        assert count.value <= 6 + number


def test_numpy_alone_starts_no_vm_in_a_worker() -> None:
    def state(samples: list[Any]) -> Any:
        batch = default(samples)
        return (
            batch,
            engine.threads.running,
            sorted(thread.name for thread in threading.enumerate()),
        )

    default = flow.utils.data.default_collate
    assert flow.ones(2).tolist() == [1, 1]  # it runs here
    for _, running, names in DataLoader(Rows(40, image), 2, num_workers=1, collate_fn=state):
        assert (running, names) == (False, ["MainThread", "loader-parent"])


def test_kernels_in_workers() -> None:
    data = TensorDataset(flow.arange(6) * 2, flow.rand(6, 2))
    batches = list(DataLoader(data, 4, num_workers=2))
    assert [batch[0].tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10]]
    assert flow.cat([batch[1] for batch in batches]).tolist() == data.tensors[1].tolist()
    threads = loaded(
        lambda i: (flow.rand(300, 300) @ flow.rand(300, 300)).sum() * 0 + flow.config.workers
    )
    assert [t.item() for t in threads] == [1.0] * 4


# --- what batches are on --------------------------------------------------------------------------


def test_batches_come_in_shared_memory_which_is_used_again() -> None:
    visited = set()
    for k, (x, y) in enumerate(
        DataLoader(Rows(120, lambda i: (image(i), i)), 2, num_workers=2, prefetch_factor=2)
    ):
        address = x.data_ptr()
        begin, end = (int(n, 16) for n in next(
            line.split()[0].split("-") for line in mapped()
            if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        ))  # fmt: skip
        visited.add(begin)
        assert y.tolist() == [2 * k, 2 * k + 1]
        assert x[:, 1, 2, 3].tolist() == [2 * k, 2 * k + 1]
        assert end - begin >= x.nbytes
    assert len(visited) <= 12
    del x, y
    flow.vm.sync()
    assert mapped() == []


def test_batches_that_are_kept_stay_as_they_are() -> None:
    batches = list(DataLoader(Rows(60, image), 2, num_workers=2))  # more than come back
    assert len(list(DataLoader(Rows(60, lambda i: image(-1)), 2, num_workers=2))) == 30
    for k, batch in enumerate(batches):
        assert batch.shape == (2, *IMAGE)
        assert (batch.numpy() == np.array([2 * k, 2 * k + 1]).reshape(2, 1, 1, 1)).all()
        batch.add_(1)  # it is this process's
        assert batch[0, 0, 0, 0].item() == 2 * k + 1
    del batch, batches
    flow.vm.sync()
    assert mapped() == []


def test_a_forked_child_reads_the_batches_it_has() -> None:
    batches = iter(DataLoader(Rows(80, image), 2, num_workers=1))
    held = [next(batches) for _ in range(3)]
    go, read = FORK.Event(), FORK.SimpleQueue()

    def child() -> None:
        assert go.wait(WAIT)
        read.put([float(batch[0, 0, 0, 0].item()) for batch in held])
        try:
            next(batches)
        except LoaderError as error:
            read.put(str(error))

    process = FORK.Process(target=child)
    process.start()
    held.clear()
    for batch in batches:
        assert batch[0, 0, 0, 0].item() >= 6
    go.set()
    assert read.get() == [0, 2, 4]
    assert "another process's" in read.get()
    process.join()


class Odd(flow.Tensor):
    """A subclass."""


def test_whatever_is_in_a_batch() -> None:
    def make(index: int) -> Any:
        leaf = flow.ones(2, requires_grad=True)
        base = np.arange(24).reshape(4, 6)
        odd = flow.ones(3).as_subclass(Odd)
        odd.label = "odd"  # type: ignore[attr-defined]
        return {
            "empty": flow.ones(0, 3), "scalar": flow.tensor(index), "half": flow.ones(3).bfloat16(),
            "bool": flow.tensor([True, False]), "leaf": leaf, "view": flow.arange(12)[::3],
            "turned": flow.arange(6).reshape(2, 3).T, "wide": flow.ones(1).expand(5),
            "array": base[::2, ::3], "fortran": np.asfortranarray(base), "none": np.zeros((0, 4)),
            "objects": np.array([{}, "x"], object), "text": "x" * 99_999, "twice": [leaf] * 2,
            "many": [np.full(3, k) for k in range(3000)], "odd": odd,
            "big": np.full(1 << 18, index),
        }  # fmt: skip

    for index, actual in enumerate(loaded(make, 3)):
        expected = make(index)
        assert list(actual) == list(expected)
        for name in ("empty", "scalar", "half", "bool", "leaf", "view", "turned", "wide", "odd"):
            assert actual[name].dtype == expected[name].dtype
            assert actual[name].shape == expected[name].shape
            assert actual[name].tolist() == expected[name].tolist()
        for name in ("array", "fortran", "none", "objects", "big"):
            assert np.array_equal(actual[name], expected[name])
        assert actual["leaf"].requires_grad
        assert actual["twice"][0] is actual["twice"][1]
        assert type(actual["odd"]) is Odd
        assert actual["odd"].label == "odd"
        assert actual["text"] == expected["text"]
        assert all((a == b).all() for a, b in zip(actual["many"], expected["many"], strict=True))
        actual["big"][:] = 5  # an array may be written
        assert actual["big"].sum() == 5 << 18


def test_long_tasks_and_batches_of_changing_size() -> None:
    rows = Rows(1 << 18, lambda i: np.full(i % 7 * 5000, i, np.int32))
    sizes = [(k, k + 7, k + 14) for k in range(20)]
    loader = DataLoader(rows, batch_sampler=[list(s) for s in sizes], num_workers=2)
    assert [
        b.tolist() == [[i] * (i % 7 * 5000) for i in s] for b, s in zip(loader, sizes, strict=True)
    ] == [True] * 20
    long = [list(range(k, 1 << 18, 2)) for k in (0, 1)] * 20  # far more than a socket holds
    loader = DataLoader(rows, batch_sampler=long, num_workers=2, prefetch_factor=8,
                        collate_fn=len)  # fmt: skip
    rows.make = None
    assert (
        list(DataLoader(Lengths(1 << 18), batch_sampler=long, num_workers=2, prefetch_factor=8))
        == [1 << 17] * 40
    )


class Lengths(Rows):
    """A batch is how many indices it has."""

    def get_batch(self, indices: list[int]) -> Any:
        return len(indices)


# --- errors ---------------------------------------------------------------------------------------


class TwoArgumentsError(Exception):
    """Cannot be made of its `args`."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fails(index: int) -> int:
    if index == 1:
        raise FileNotFoundError(2, "no such sample", f"sample {index}")
    if index == 2:
        raise TwoArgumentsError(1, 2)
    if index == 3:
        raise StopIteration
    if index == 4:
        raise KeyError("x")
    return index


def test_errors_come_in_their_places_and_the_pass_goes_on() -> None:
    batches = iter(DataLoader(Rows(6, fails), None, num_workers=2))
    assert next(batches) == 0
    with pytest.raises(FileNotFoundError, match="no such sample") as caught:
        next(batches)
    assert (caught.value.errno, caught.value.filename) == (2, "sample 1")
    text = "".join(traceback.format_exception(caught.value))
    assert "Caught FileNotFoundError in DataLoader worker process 1 (pid " in text
    assert "which made batch 1." in text
    assert "Original Traceback (most recent call last):" in text
    assert ", in fails" in text
    with pytest.raises(
        LoaderError, match="Caught TwoArgumentsError in DataLoader worker process 0"
    ) as two:
        next(batches)
    assert "1 and 2" in str(two.value)
    assert ", in fails" in str(two.value)
    with pytest.raises(RuntimeError, match="Caught StopIteration"):
        next(batches)
    with pytest.raises(KeyError, match="'x'"):
        next(batches)
    assert list(batches) == [5]


def test_an_error_that_was_raised_keeps_no_worker() -> None:
    gc.disable()
    try:
        with contextlib.suppress(FileNotFoundError):
            loaded(fails)
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


def test_a_stream_that_fails_ends() -> None:
    class Broken(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 7
            raise LookupError("torn tape")

    class Unopened(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            raise OSError("no tape")

    batches = iter(DataLoader(Broken(), None, num_workers=1))
    assert next(batches) == 7
    with pytest.raises(LookupError, match="torn tape"):
        next(batches)
    assert list(batches) == []
    batches = iter(DataLoader(Unopened(), None, num_workers=1))
    with pytest.raises(OSError, match="no tape"):
        next(batches)
    assert list(batches) == []


def test_what_cannot_be_handed_over() -> None:
    batches = iter(DataLoader(Rows(2, lambda i: (lambda: i) if i == 0 else i), None, num_workers=1))
    with pytest.raises(Exception, match="With threads=True it need not") as caught:
        next(batches)
    assert isinstance(caught.value, (AttributeError, pickle.PicklingError))
    assert next(batches) == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(7), "ended with exit code 7"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was killed by SIGKILL \(exit code -9\)"),
        (lambda: sys.exit(3), "ended with exit code 3"),
    ],
    ids=["os._exit", "SIGKILL", "sys.exit"],
)
def test_a_worker_that_dies_is_an_error(end: Any, words: str) -> None:
    pids = FORK.SimpleQueue()

    def make(index: int) -> int:
        if index == 3:
            pids.put(os.getpid())
            end()
        return index

    loader = DataLoader(Rows(100, make), None, num_workers=2, persistent_workers=True)
    with pytest.raises(RuntimeError, match=words) as caught:
        list(loader)
    assert isinstance(caught.value, LoaderError)
    assert f"DataLoader worker (pid(s) {pids.get()}) exited unexpectedly" in str(caught.value)
    assert multiprocessing.active_children() == []
    loader.dataset.make = abs  # type: ignore[attr-defined]
    assert list(loader) == list(range(100))  # with new workers


def test_a_worker_is_missed_even_if_its_socket_stays_open() -> None:
    """A process that was forked while it started has inherited the socket."""
    go = FORK.Event()

    def make(index: int) -> int:
        process = os.fork()
        if process == 0:
            go.wait(WAIT)
            os._exit(0)
        os._exit(5)

    try:
        with pytest.raises(LoaderError, match="exit code 5"):
            loaded(make, num_workers=1)
    finally:
        go.set()


def test_a_batch_that_is_late() -> None:
    go = FORK.Event()
    batches = iter(DataLoader(Rows(2, lambda i: go.wait(WAIT)), None, num_workers=1, timeout=0.05))
    with pytest.raises(LoaderError, match=r"DataLoader timed out after 0\.05 seconds"):
        next(batches)
    del batches  # does not wait for the worker's patience to end


# --- ends -----------------------------------------------------------------------------------------


def test_leaving_a_loop_ends_the_workers() -> None:
    for batch in DataLoader(Rows(1000), 2, num_workers=2):
        assert len(multiprocessing.active_children()) == 2
        if batch[0].item() == 4:
            break
    assert multiprocessing.active_children() == []

    def consume() -> None:
        for _ in DataLoader(Rows(1000), 2, num_workers=2):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()


def test_ctrl_c_while_workers_end_comes_afterwards() -> None:
    go, main = FORK.Event(), threading.main_thread().ident
    assert main is not None

    def send() -> None:
        while pool._ends:
            os.sched_yield()  # until the loop was left, and the worker is waited for
        signal.pthread_kill(main, signal.SIGINT)
        go.set()

    def read() -> None:
        sender = threading.Thread(target=send)
        for _ in DataLoader(Rows(9, lambda i: i == 0 or go.wait(WAIT)), None, num_workers=1):
            sender.start()
            break
        sender.join()
        threading.Event().wait(WAIT)

    before = signal.signal(signal.SIGINT, interrupt)  # as a Pool has it, unless a shell ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            read()
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []


def test_persistent_workers_stay_until_the_loader_goes() -> None:
    loader = DataLoader(
        Rows(20, lambda i: os.getpid()), None, num_workers=2, persistent_workers=True
    )
    first = set(loader)
    assert set(loader) == first
    for _ in loader:  # left early
        break
    early = iter(loader)
    assert next(early) in first
    assert list(loader) == list(loader)
    with pytest.raises(LoaderError, match="another one has begun"):
        next(early)
    assert len(multiprocessing.active_children()) == 2
    copied = pickle.loads(pickle.dumps(DataLoader(Lengths(4, None), 2)))
    assert len(copied) == 2
    del loader, early
    assert multiprocessing.active_children() == []


def test_loaders_in_threads() -> None:
    results: dict[int, list[int]] = {}

    def read(k: int) -> None:
        results[k] = [int(b.sum().item()) for b in DataLoader(Rows(8, image), 4, num_workers=1)]

    threads = [threading.Thread(target=read, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pixels = int(np.prod(IMAGE))
    assert [results[k] for k in range(3)] == [[6 * pixels, 22 * pixels]] * 3


PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import flowvm as flow
from flowvm.utils.data import DataLoader, Dataset, get_worker_info, pool
from flowvm.utils.data import worker as worker_module
signal.signal(signal.SIGINT, signal.default_int_handler)  # the background of a shell ignores it

class Rows(Dataset):
    def __init__(self, kind="", n=6):
        self.kind, self.n = kind, n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        info = get_worker_info()
        if self.kind == "fails" and i == 3:
            raise LookupError(f"sample {i}")
        if self.kind == "dies" and i == 3:
            os._exit(9)
        if self.kind == "stuck":
            os.write(1, b"%d\\n" % os.getpid())  # at once: print may write a line in two parts
            time.sleep(1000)
        drawn = float(flow.rand(1)), np.random.rand()
        return np.full((3, 4), i, np.float32), info.id, info.seed, *drawn
"""


def program(body: str, **options: Any) -> "subprocess.Popen[str]":
    source = PROGRAM + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, **options,
    )  # fmt: skip


@contextlib.contextmanager
def ended(main: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Whatever a test finds, no program is left."""
    with main:
        try:
            yield main
        finally:
            main.kill()


def await_ends(pids: list[int]) -> None:
    """Until these processes, which are no children of this one, have ended."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([fd], [], [], WAIT)[0], f"process {pid} does not end"
        finally:
            os.close(fd)


STUCK = """
worker_module.PATIENCE_S = pool.PATIENCE_S = 0.1
batches = iter(DataLoader(Rows("stuck"), 1, num_workers=2))
try:
    next(batches)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_main_process(end: signal.Signals) -> None:
    """Ctrl-C reaches them too, being of the same group; SIGKILL the main process alone."""
    with ended(program(STUCK)) as main:
        assert main.stdout is not None
        pids = [int(main.stdout.readline()) for _ in range(2)]
        if end == signal.SIGINT:
            os.killpg(main.pid, end)
        else:
            main.kill()
        await_ends(pids)
        text, errors = main.communicate()
    if end == signal.SIGINT:
        assert text == "interrupted\n"
        assert errors.count("KeyboardInterrupt") == 1
    assert main.returncode != 0


ANEW = """
import json
if __name__ == "__main__":
    said = {}
    for method in ("fork", "spawn", "forkserver"):
        generator = flow.Generator().manual_seed(2)
        batches = iter(DataLoader(Rows("fails"), 2, num_workers=1, generator=generator,
                                  multiprocessing_context=method))
        said[method] = [[part.tolist() for part in next(batches)]]
        try:
            next(batches)
        except LookupError as error:
            notes = error.__notes__
            said[method].append([str(error), notes[-1].partition(" (pid")[0], len(notes)])
        said[method] += [[part.tolist() for part in batch] for batch in batches]
    print(json.dumps(said))
"""


def test_workers_that_are_started_anew_do_the_same(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + ANEW)
    process = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    output = json.loads(process.stdout)
    first, failed, last = output["fork"]
    assert [len(first), first[0][1]] == [5, [[1.0] * 4] * 3]
    assert failed == ["sample 3", "Caught LookupError in DataLoader worker process 0", 1]
    assert last[0][0] == [[4.0] * 4] * 3
    assert output["spawn"] == output["forkserver"] == output["fork"]


def test_what_cannot_be_pickled_cannot_be_spawned() -> None:
    with pytest.raises(Exception, match=r"pickle|local object"):
        iter(DataLoader(Rows(2, lambda i: i), num_workers=1, multiprocessing_context="spawn"))


def test_patience() -> None:
    assert PATIENCE_S == 5.0  # docs/reference/reliability/forks.md says so
