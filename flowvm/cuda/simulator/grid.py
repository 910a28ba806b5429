"""A kernel's grid of threads, run as Python: what a GPU does, slowly and the same every time.

Numba's simulator gives the vocabulary (`cuda.grid`, `cuda.shared.array`, `cuda.atomic`); this runs
it.  Each CUDA thread of a block is a greenlet: it goes on until it waits for others (`syncthreads`,
a shuffle), then the next one runs.  So a launch is
deterministic, and what Numba's own runner lacks is here: warp shuffles and votes, arrays declared
twice on one line, an error where threads wait for each other in vain.  A kernel that never waits
runs its threads one after another without any switching.

`order` turns the threads of a block round: "reversed" finds kernels that depend on who runs first,
and, on the way, indices below 0, which compiled kernels do not count from the end (`indices`).

Launches from several Python threads run one after another.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types as pytypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.private.numba_cuda import SIMULATOR, memories

Triple = tuple[int, int, int]

WARP = 32
_lock = threading.RLock()  # one launch at a time: kernels find `cuda` in their module's globals
# functions that make a thread wait for others
_WAITS = {
    "syncthreads", "syncthreads_and", "syncthreads_or", "syncthreads_count", "syncwarp",
    "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync",
    "all_sync", "any_sync", "ballot_sync",
}  # fmt: skip


def run_grid(
    kernel: Callable[..., object],
    arguments: Sequence[object],
    grid: Triple,
    block: Triple,
    shared: int = 0,
    order: str = "",
) -> None:
    """Run `kernel` on NumPy arrays and numbers.  Raise the exceptions of its threads here.

    Numbers become int64 or float64, as compiled kernels get them.
    """
    if grid[0] * grid[1] * grid[2] == 0:
        raise ValueError(f"a grid of {grid} blocks has none")
    values = [_argument(value) for value in arguments]
    if order == "reversed":
        values = [v.view(_Plain) if isinstance(v, np.ndarray) else v for v in values]
    functions = reached(kernel)
    waits = any(_WAITS & set(function.__code__.co_names) for function in functions)
    with _lock:
        module = _module(grid, block, shared)
        with _swapped(functions, module), np.errstate(all="ignore"):
            run = _run_waiting if waits else _run_straight
            run(kernel, values, module, _points(grid), _threads(block, order))


class _Plain(Array):
    """An array whose indices are not negative."""

    def __getitem__(self, index: Any) -> Any:
        _look(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _look(index)
        super().__setitem__(index, value)


def _look(index: object) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, int | np.integer) and part < 0 for part in parts):
        raise IndexError(f"an index of a kernel is negative: {index}")


def _argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, tuple):  # a NamedTuple of numbers
        return type(value)(*map(_argument, value))
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def _points(sizes: Triple) -> list[Triple]:
    x, y, z = sizes
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def _threads(block: Triple, order: str) -> list[_Strand]:
    strands = [_Strand(number, place) for number, place in enumerate(_points(block))]
    return strands[::-1] if order == "reversed" else strands


# --- what a kernel reaches ----------------------------------------------------------------------


def reached(kernel: object) -> list[Any]:
    """The functions that `kernel` may call, itself first."""
    functions: dict[int, object] = {}
    _visit(kernel, functions)
    return list(functions.values())


def _visit(value: object, functions: dict[int, object]) -> None:
    if isinstance(value, pytypes.FunctionType):
        if id(value) in functions or _foreign(value):
            return
        functions[id(value)] = value
        for part in _named(value):
            _visit(part, functions)
    elif isinstance(value, tuple | list):
        for part in value:
            _visit(part, functions)
    elif hasattr(value, "jit_parts"):
        _visit(getattr(value, "python", None), functions)
        for part in value.jit_parts():
            _visit(part, functions)


def _foreign(function: object) -> bool:
    top = (function.__module__ or "").partition(".")[0]
    return top in sys.stdlib_module_names or top in ("numpy", "numba", "llvmlite")


def _named(function: Any) -> Iterator[object]:
    """Yield the values of the names in a function's code, and of the named attributes of
    modules.
    """
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, pytypes.CodeType)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            yield cell.cell_contents
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, pytypes.ModuleType) and value.__name__.startswith("flowvm"):
            yield from (getattr(value, other) for other in names & set(vars(value)))
        else:
            yield value


@contextlib.contextmanager
def _swapped(functions: list[Any], module: object) -> Iterator[None]:
    """Replace `numba.cuda` by `module` in the globals of these functions."""
    from numba import cuda

    changed = []
    for space in {id(f.__globals__): f.__globals__ for f in functions}.values():
        for name in [n for n, value in space.items() if value is cuda]:
            space[name] = module
            changed.append((space, name))
    try:
        yield
    finally:
        for space, name in changed:
            space[name] = cuda


# --- `cuda`, as kernels see it --------------------------------------------------------------------


def _module(grid: Triple, block: Triple, shared: int) -> Any:
    base: Any = SIMULATOR.FakeCUDAModule

    class Module(base):  # type: ignore[misc]
        """`cuda`; `current` is the thread that runs, and does the waiting."""

        current: _Strand

        @property
        def threadIdx(self) -> _Place:  # noqa: N802
            return self.current.thread

        @property
        def blockIdx(self) -> _Place:  # noqa: N802
            return self.current.block

        @property
        def laneid(self) -> int:
            return self.current.lane

        def syncthreads(self) -> None:
            self.current.gather(None, whole=True)

        def syncthreads_count(self, value: object) -> int:
            return sum(map(bool, self.current.gather(value, whole=True).values()))

        def syncthreads_and(self, value: object) -> int:
            return int(all(self.current.gather(value, whole=True).values()))

        def syncthreads_or(self, value: object) -> int:
            return int(any(self.current.gather(value, whole=True).values()))

        def syncwarp(self, mask: int = 0xFFFFFFFF) -> None:
            self.current.gather(None)

        def shfl_sync(self, mask: int, value: object, lane: int) -> object:
            return self._from(value, int(lane) % WARP)

        def shfl_xor_sync(self, mask: int, value: object, lanes: int) -> object:
            return self._from(value, self.current.lane ^ int(lanes))

        def shfl_up_sync(self, mask: int, value: object, lanes: int) -> object:
            return self._from(value, self.current.lane - int(lanes))

        def shfl_down_sync(self, mask: int, value: object, lanes: int) -> object:
            return self._from(value, self.current.lane + int(lanes))

        def _from(self, value: object, lane: int) -> Any:
            return self.current.gather(value).get(lane, value)

        def all_sync(self, mask: int, value: object) -> bool:
            return all(self.current.gather(value).values())

        def any_sync(self, mask: int, value: object) -> bool:
            return any(self.current.gather(value).values())

        def ballot_sync(self, mask: int, value: object) -> object:
            votes = self.current.gather(value)
            return np.uint32(sum(1 << lane for lane, vote in votes.items() if vote))

        def clz(self, value: object) -> int:
            bits, number = _unsigned(value)
            return bits - number.bit_length()

        def ffs(self, value: object) -> int:
            _, number = _unsigned(value)
            return (number & -number).bit_length()

        def popc(self, value: object) -> int:
            return _unsigned(value)[1].bit_count()

    module = Module(grid, block, shared)
    memories(module, _Shared(shared), _Local())
    return module


def _unsigned(value: Any) -> tuple[int, int]:
    bits = 8 * value.dtype.itemsize if hasattr(value, "dtype") else 64
    return max(bits, 32), int(value) & ((1 << bits) - 1)


def _dtype(kind: Any) -> Any:
    from numba.cuda import types

    return SIMULATOR.as_dtype(kind) if isinstance(kind, types.Type) else np.dtype(kind)


class _Local:
    """`cuda.local`: memory of one thread, which holds anything at first."""

    def array(self, shape: object, dtype: object, alignment: object = None) -> Any:
        return _poisoned(shape, _dtype(dtype))


class _Shared:
    """`cuda.shared`: memory of a block; a declaration is known by its place in the program."""

    def __init__(self, dynamic: int) -> None:
        self.dynamic = np.empty(dynamic, np.uint8)
        self.arrays: dict[object, object] = {}

    def clear(self) -> None:
        """Fill shared memory with arbitrary bytes before a block begins."""
        self.arrays.clear()
        self.dynamic.fill(0xA5)

    def array(self, shape: object, dtype: object, alignment: object = None) -> Any:
        kind = _dtype(dtype)
        if shape == 0:
            whole = self.dynamic.size // kind.itemsize
            return self.dynamic[: whole * kind.itemsize].view(kind)
        caller = sys._getframe(1)
        key = caller.f_code, caller.f_lasti
        if key not in self.arrays:
            self.arrays[key] = _poisoned(shape, kind)
        return self.arrays[key]


def _poisoned(shape: Any, dtype: Any) -> Any:
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(0xA5) if array.ndim else array.fill(0)
    return array


# --- running ------------------------------------------------------------------------------------


class _Place:
    """`cuda.threadIdx` or `cuda.blockIdx`."""

    __slots__ = ("x", "y", "z")

    def __init__(self, place: Triple) -> None:
        self.x, self.y, self.z = place


class _Strand:
    """One thread of the block, over all blocks of the grid."""

    def __init__(self, number: int, place: Triple) -> None:
        self.number, self.warp, self.lane = number, number // WARP, number % WARP
        self.thread = _Place(place)
        self.block = _Place((0, 0, 0))
        self.held: _Block
        self.greenlet: Any

    def gather(self, value: object, whole: bool = False) -> dict[int, object]:
        """Wait for the rest of the warp or, `whole`, the block: what each lane (thread) brought."""
        return self.held.meet(self, value, -1 if whole else self.warp)


def _run_straight(
    kernel: Any, arguments: list[object], module: Any, blocks: list[Triple], strands: list[_Strand]
) -> None:
    for place in blocks:
        module.shared.clear()
        block = _Place(place)
        for strand in strands:
            strand.block = block
            module.current = strand
            kernel(*arguments)


def _run_waiting(
    kernel: Any, arguments: list[object], module: Any, blocks: list[Triple], strands: list[_Strand]
) -> None:
    try:
        from greenlet import greenlet
    except ImportError:
        raise ImportError(
            "the simulator runs the threads of a block as greenlets: pip install greenlet"
        ) from None

    def body() -> None:
        with np.errstate(all="ignore"):  # a greenlet has a context of its own
            kernel(*arguments)

    for place in blocks:
        module.shared.clear()
        block = _Block(strands)
        for strand in strands:
            strand.block, strand.held, strand.greenlet = _Place(place), block, greenlet(body)
        try:
            block.run(module)
        finally:
            for strand in strands:
                if not strand.greenlet.dead:
                    strand.greenlet.throw()  # ends it, and returns


class _Block:
    """The threads of a block: the runnable ones in order, and the ones that wait at barriers."""

    def __init__(self, strands: list[_Strand]) -> None:
        self.ready = strands[::-1]  # last is next
        self.waiting: dict[int, list[_Strand]] = {}  # by warp, -1 for the block
        self.brought: dict[int, dict[int, object]] = {}
        self.members = {-1: len(strands)}  # live threads of each warp, and of the block
        for strand in strands:
            self.members[strand.warp] = self.members.get(strand.warp, 0) + 1

    def run(self, module: Any) -> None:
        """Run until all threads have ended.  Raise an exception that one of them raises."""
        while self.ready:
            module.current = strand = self.ready.pop()
            strand.greenlet.switch()
            if strand.greenlet.dead:
                for where in (strand.warp, -1):  # no thread waits for it
                    self.members[where] -= 1
                    if self.members[where]:
                        self._let_go(where)
        if self.waiting:
            raise RuntimeError(
                f"the threads of a block wait for each other in vain: some in syncthreads, some "
                f"in a shuffle of warps {sorted(where for where in self.waiting if where >= 0)}"
            )

    def meet(self, strand: _Strand, value: object, where: int) -> dict[int, object]:
        brought = self.brought.setdefault(where, {})
        brought[strand.number if where < 0 else strand.lane] = value
        if not self._let_go(where):
            self.waiting.setdefault(where, []).append(strand)
            strand.greenlet.parent.switch()
        return brought

    def _let_go(self, where: int) -> bool:
        """Return True once every thread has reached the barrier `where`; then queue them all as
        runnable.
        """
        if len(self.brought.get(where, ())) < self.members[where]:
            return False
        del self.brought[where]
        self.ready[:0] = self.waiting.pop(where, [])[::-1]
        return True
