"""The source of random numbers: a seed, and a count of calls.

While a graph is captured, no generator moves.  The capture records what code does to one: it draws,
seeds it, keeps its state and goes back to it.  Each replay does this in the same order.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowvm.eager.batched import check_draw
from flowvm.eager.modes import current_recorder, current_trace_recorder
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.guards.forks import held_at_fork
from flowvm.meta.device import as_device
from flowvm.ops.shapes.create import tensor
from flowvm.ranks.launch_env import is_launched, launch_name

DEFAULT_SEED = 67280421310721  # PyTorch's, of a Generator that nobody has seeded


# --- generators -------------------------------------------------------------------------------


# public: flow
class Generator:
    """A source of random numbers: `manual_seed(s)` starts it anew.  Threads may share one.

    One that was never seeded has the numbers of a fixed seed, as PyTorch's; the default generator
    begins with another seed in each process.

    >>> g = flow.Generator().manual_seed(1)
    >>> a = flow.rand(2, generator=g)
    >>> _ = g.manual_seed(1)
    >>> flow.equal(a, flow.rand(2, generator=g))
    True
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = as_device(device)
        self._lock = held_at_fork(threading.Lock())
        self._seed, self._calls = DEFAULT_SEED, 0
        if (recorder := current_recorder()) is not None:  # a call makes it anew
            recorder.redo(Seeded(self, DEFAULT_SEED))

    def manual_seed(self, seed: int) -> Generator:
        """Start the numbers of `seed`, an int of 64 bits (a negative one counts from 2**64); the
        generator.
        """
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            raise ArgumentTypeError(f"manual_seed: a seed is an int, got {type(seed).__name__}")
        if not -(1 << 63) <= seed < 1 << 64:
            raise ArgumentError(f"manual_seed: a seed has 64 bits, got {seed}")
        move = Seeded(self, int(seed) % (1 << 64))
        if (recorder := current_recorder()) is not None:
            recorder.redo(move)
        else:
            move.draw_now()
        return self

    def seed(self) -> int:
        """Start from a seed that the operating system draws; the seed."""
        if (recorder := current_recorder()) is not None:
            return recorder.redo(Reseeded(self))[0]  # type: ignore[no-any-return]
        return Reseeded(self).draw_now()[0] % (1 << 64)

    def initial_seed(self) -> int:
        """The seed that the numbers started from."""
        if (recorder := current_recorder()) is not None:
            return recorder.seed_of(self)
        return self._seed

    def get_state(self) -> Tensor:
        """The state as a tensor of 16 bytes, for `set_state`."""
        if (recorder := current_recorder()) is not None:
            return recorder.keep_state(Kept(self))
        return tensor(np.array(self.position(), np.uint64).view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Go on from where `get_state` was called; the generator."""
        if not isinstance(new_state, Tensor) or new_state._meta.nbytes != 16:
            raise ArgumentTypeError(
                "set_state takes what get_state gave: a uint8 tensor of 16 bytes"
            )
        state = None
        if (recorder := current_recorder()) is not None:
            state = recorder.kept_state(new_state)
        words = None if state else new_state.numpy().view(np.uint64)
        self.go_to(state if words is None else (int(words[0]), int(words[1])))
        return self

    def position(self) -> Any:
        """Return the state for `go_to`: seed and number of calls; in a capture, a stand-in."""
        if (recorder := current_recorder()) is not None:
            state = Kept(self)
            recorder.redo(state)
            return state
        with self._lock:
            return self._seed, self._calls

    def go_to(self, position: Any) -> None:
        """Go on from where `position` was asked for."""
        if (recorder := current_recorder()) is not None:
            recorder.redo(Restored(self, position))
            return
        with self._lock:
            self._seed, self._calls = position

    def reserve(self, calls: int) -> Generator:
        """Return a generator for this one's next `calls` calls, which this one skips.

        Later draws from it are the same, whatever is drawn meanwhile.

        >>> a, b = flow.Generator().manual_seed(1), flow.Generator().manual_seed(1)
        >>> later = a.reserve(1)
        >>> _ = flow.rand(2, generator=b)
        >>> x, y = flow.rand(2, generator=a), flow.rand(2, generator=b)
        >>> flow.equal(x, y), later.position()
        (True, (1, 0))
        """
        reserved = Generator(self.device)
        with self._lock:
            reserved._seed, reserved._calls = self._seed, self._calls
            self._calls += calls
        return reserved

    def draw(self) -> tuple[Any, Any]:
        """The seed (as int64) and the number of a new call; live numbers inside a capture."""
        check_draw()
        recorder = current_recorder()
        if (trace := current_trace_recorder()) is not None:
            trace.refuse()  # another time it is another number
        return self.draw_now() if recorder is None else recorder.draw(self)

    def draw_now(self) -> tuple[int, int]:
        """Return the seed and the number of a new call, also while a graph is captured."""
        with self._lock:
            call = self._calls
            self._calls += 1
            chosen = self._seed
        return _signed(chosen), call

    def __reduce__(self) -> Any:
        return _generator_at, (type(self), str(self.device), self.position())

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, calls={self._calls})"


def _signed(seed: int) -> int:
    """A seed as a word of an instruction."""
    return seed - (1 << 64) if seed >> 63 else seed


# --- what captured code does to generators ------------------------------------------------------


class Move:
    """Something that captured code does to a generator; a replay does it by `draw_now()`, which
    answers two numbers, as a draw does.
    """

    generator: Generator

    def draw_now(self) -> tuple[int, int]:
        """Make the draw, and return its two numbers."""
        raise NotImplementedError


@dataclass
class Seeded(Move):
    """`generator.manual_seed(seed)`."""

    generator: Generator
    seed: int

    def draw_now(self) -> tuple[int, int]:
        """Set the generator to the seed."""
        with self.generator._lock:
            self.generator._seed, self.generator._calls = self.seed, 0
        return _signed(self.seed), 0


@dataclass
class Reseeded(Move):
    """`generator.seed()`."""

    generator: Generator

    def draw_now(self) -> tuple[int, int]:
        """Set the generator to a seed from the system."""
        return Seeded(self.generator, int.from_bytes(os.urandom(8), "little")).draw_now()


@dataclass
class Kept(Move):
    """`generator.get_state()`.

    place  holds where the generator was in the present replay
    turn   how much the capture had done to it before
    """

    generator: Generator
    place: list[tuple[int, int]] = field(default_factory=list, compare=False)
    turn: int = 0

    def draw_now(self) -> tuple[int, int]:
        """Note the generator's position."""
        position: tuple[int, int] = self.generator.position()
        self.place[:] = [position]
        return position


@dataclass
class Restored(Move):
    """`generator.set_state(state)`, of a state that the code kept or that was there before it."""

    generator: Generator
    state: Kept | tuple[int, int]

    def draw_now(self) -> tuple[int, int]:
        """Set the generator to the kept position."""
        state = self.state
        self.generator.go_to(state.place[0] if isinstance(state, Kept) else state)
        return 0, 0


def _generator_at(kind: type[Generator], device: str, position: tuple[int, int]) -> Generator:
    generator = kind(device)
    generator.go_to(position)
    return generator


def _first_seed() -> int:
    """Return the default generator's first seed: drawn by the operating system, so that programs
    that set none differ.

    Ranks start from one seed, so that they draw alike.  It comes from their launch's name; without
    a name it is DEFAULT_SEED.
    """
    if not is_launched():
        return int.from_bytes(os.urandom(8), "little")
    name = launch_name()
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little") if name else DEFAULT_SEED


default_generator = Generator()  # public: flow, random
default_generator._seed = _first_seed()


# public: flow, random
def manual_seed(seed: int) -> Generator:
    """Start the default generator's numbers of `seed`; the generator.

    Two runs of a program that does so draw the same numbers; of one that does not, others.

    >>> _ = flow.manual_seed(0)
    >>> a = flow.rand(3)
    >>> _ = flow.manual_seed(0)
    >>> flow.equal(a, flow.rand(3))
    True
    """
    try:
        seed = int(seed)  # a float loses its fraction
    except ValueError as error:
        raise ArgumentError(f"manual_seed: a seed is an int: {error}") from None
    return default_generator.manual_seed(seed)


# public: flow, random
def seed() -> int:
    """Start the default generator from a seed that the operating system draws; the seed.

    >>> isinstance(flow.seed(), int)
    True
    """
    return default_generator.seed()


# public: flow, random
def initial_seed() -> int:
    """The default generator's seed.

    >>> _ = flow.manual_seed(5)
    >>> flow.initial_seed()
    5
    """
    return default_generator.initial_seed()


# public: flow, random
def get_rng_state() -> Tensor:
    """The default generator's state.

    >>> state = flow.get_rng_state()
    >>> a = flow.rand(2)
    >>> flow.set_rng_state(state)
    >>> flow.equal(a, flow.rand(2))
    True
    """
    return default_generator.get_state()


# public: flow, random
def set_rng_state(new_state: Tensor) -> None:
    """Set the default generator's state.

    >>> state = flow.get_rng_state()
    >>> a = flow.rand(2)
    >>> flow.set_rng_state(state)
    >>> flow.equal(a, flow.rand(2))
    True
    """
    default_generator.set_state(new_state)


def drawn_from(generator: Generator | None) -> tuple[Any, Any]:
    if generator is None:
        return default_generator.draw()
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(
            f"generator must be a flow.Generator, got {type(generator).__name__}"
        )
    return generator.draw()
