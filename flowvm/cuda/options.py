"""PyTorch's switches for CUDA's computations, read when a call is lowered.

    flow.backends.cuda.matmul.allow_tf32 = True       float32 matrix products on tensor cores,
    flow.backends.cudnn.allow_tf32 = True             convolutions likewise: 10 bits of the factors
    flow.set_float32_matmul_precision("high")         count, sums are float32

Switches of PyTorch that could change nothing here (cudnn.benchmark, deterministic, enabled) are
kept as they are set: convolutions are deterministic always.

Calls are lowered once and cached.  A change of a switch clears the cache, so the next calls are
lowered anew.  A Plan keeps the switches of its capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowvm.eager.interpreter import operators
from flowvm.errors import ArgumentError, ArgumentTypeError, MissingNameError
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "Setting",
    "Switches",
    "convolution",
    "get_float32_matmul_precision",
    "matmul",
    "set_float32_matmul_precision",
]
__dir__ = listing(globals())

PRECISIONS: Final = ("highest", "high", "medium")


class Switches:
    """Attributes that are true or false; `inert` ones may be set and change nothing."""

    def __init__(self, name: str, inert: dict[str, object], **switches: bool) -> None:
        vars(self).update(_name=name, _inert=frozenset(inert), **inert, **switches)

    def __setattr__(self, name: str, value: object) -> None:
        known = [n for n in vars(self) if not n.startswith("_")]
        if name not in known:
            raise MissingNameError(f"{self._name} has no {name!r}; there are {', '.join(known)}")
        if name in self._inert:
            vars(self)[name] = value
            return
        if not isinstance(value, bool):
            kind = type(value).__name__
            raise ArgumentTypeError(f"{self._name}.{name} is True or False, got {kind}")
        if value != getattr(self, name):
            vars(self)[name] = value
            forget_calls()

    def __repr__(self) -> str:
        shown = (f"{n}={v}" for n, v in vars(self).items() if not n.startswith("_"))
        return f"{self._name}({', '.join(shown)})"

    # what mypy cannot know
    _name: str
    _inert: frozenset[str]
    allow_tf32: bool


class Setting(Switched):
    """A context manager that sets switches, or entries of a dict."""

    def __init__(self, of: Switches | dict[str, Any], values: dict[str, Any]) -> None:
        self._of, self._values = of, values
        self._before: dict[str, object] = {}

    def _switch(self) -> Setting:
        entries = self._of if isinstance(self._of, dict) else vars(self._of)
        self._before = {name: entries[name] for name in self._values}
        self._set(self._values)
        return self

    def _undo(self) -> None:
        self._set(self._before)

    def _set(self, values: Mapping[str, object]) -> None:
        if isinstance(self._of, dict):
            self._of.update(values)
            return
        for name, value in values.items():
            setattr(self._of, name, value)


matmul: Final = Switches(
    "flow.backends.cuda.matmul",
    {
        "allow_fp16_reduced_precision_reduction": False,
        "allow_bf16_reduced_precision_reduction": False,
        "allow_fp16_accumulation": False,
    },
    allow_tf32=False,
)
convolution: Final = Switches(
    "flow.backends.cudnn",
    {"enabled": False, "deterministic": True, "benchmark": False, "benchmark_limit": 10},
    allow_tf32=False,
)
_precision = "highest"


def forget_calls() -> None:
    """Let every call be lowered anew."""
    for operator in list(operators):
        operator.lru.forget()


# public: flow (late)
def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 matrix products on CUDA. "highest" is float32; "high" and
    "medium" may use TF32.  The CPU always computes in float32.

    >>> flow.set_float32_matmul_precision("highest")
    """
    global _precision
    if precision not in PRECISIONS:
        raise ArgumentError(
            f"set_float32_matmul_precision: {precision!r} is none of {', '.join(PRECISIONS)}"
        )
    matmul.allow_tf32 = precision != "highest"
    _precision = precision


# public: flow (late)
def get_float32_matmul_precision() -> str:
    """Return the precision set by `set_float32_matmul_precision` or by `allow_tf32`.

    >>> flow.get_float32_matmul_precision()
    'highest'
    """
    if (_precision != "highest") != matmul.allow_tf32:
        return "high" if matmul.allow_tf32 else "highest"
    return _precision
