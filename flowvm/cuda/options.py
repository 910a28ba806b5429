"""How CUDA computes where there is a choice: PyTorch's switches, read when a call is lowered.

    flow.backends.cuda.matmul.allow_tf32 = True       float32 matrix products on tensor cores,
    flow.backends.cudnn.allow_tf32 = True             convolutions likewise: 10 bits of the factors
    flow.set_float32_matmul_precision("high")         count, sums are float32
    flow.backends.cudnn.deterministic                 always true here

Calls are lowered once and remembered; so a switch that changes forgets what is remembered, and the
next calls are lowered anew.  A Plan keeps what it was captured with.
"""

from __future__ import annotations

from typing import Any, Final

from flowvm.eager.interpreter import operators
from flowvm.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "Switches",
    "convolution",
    "get_float32_matmul_precision",
    "matmul",
    "set_float32_matmul_precision",
]

PRECISIONS: Final = ("highest", "high", "medium")


class Switches:
    """Attributes that are true or false; `fixed` ones cannot be changed."""

    def __init__(self, name: str, fixed: dict[str, bool], **switches: bool) -> None:
        vars(self).update(_name=name, _fixed=fixed, **fixed, **switches)

    def __setattr__(self, name: str, value: Any) -> None:
        known = [n for n in vars(self) if not n.startswith("_")]
        if name not in known:
            raise AttributeError(f"{self._name} has no {name!r}; there are {', '.join(known)}")
        if not isinstance(value, bool):
            kind = type(value).__name__
            raise ArgumentTypeError(f"{self._name}.{name} is True or False, got {kind}")
        if name in self._fixed and value != self._fixed[name]:
            raise ArgumentError(f"{self._name}.{name} is always {self._fixed[name]} in flowvm")
        if value != getattr(self, name):
            vars(self)[name] = value
            forget_calls()

    def __repr__(self) -> str:
        shown = (f"{n}={v}" for n, v in vars(self).items() if not n.startswith("_"))
        return f"{self._name}({', '.join(shown)})"

    # what mypy cannot know
    _name: str
    _fixed: dict[str, bool]
    allow_tf32: bool


matmul: Final = Switches("flow.backends.cuda.matmul", {}, allow_tf32=False)
convolution: Final = Switches(
    "flow.backends.cudnn",
    {"enabled": False, "deterministic": True, "benchmark": False},
    allow_tf32=False,
)
_precision = "highest"


def forget_calls() -> None:
    """Let every call be lowered anew."""
    for operator in list(operators):
        operator.cache.clear()


def set_float32_matmul_precision(precision: str) -> None:
    """How exact float32 matrix products on CUDA are: "highest" is float32; "high" and "medium" may
    use TF32.  The CPU computes in float32 always.
    """
    global _precision
    if precision not in PRECISIONS:
        raise ArgumentError(
            f"set_float32_matmul_precision: {precision!r} is none of {', '.join(PRECISIONS)}"
        )
    matmul.allow_tf32 = precision != "highest"
    _precision = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` set, or what `allow_tf32` has made of it."""
    if (_precision != "highest") != matmul.allow_tf32:
        return "high" if matmul.allow_tf32 else "highest"
    return _precision
