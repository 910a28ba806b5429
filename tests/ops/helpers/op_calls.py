"""Samples made into calls: the same arguments as NumPy arrays, flowvm tensors or PyTorch tensors.

A sample's arrays stand for its tensors, wherever they are in its arguments (lists included).
`mapped` is the one place that knows where.
"""

import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import flowvm
import flowvm.ops
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array
from flowvm.meta.dtype import DType
from flowvm.ops.declare.registry import SAMPLES, OpSamples, Sample

Array = np.ndarray

TOLERANCES = {"float64": (1e-10, 1e-12), "float32": (1e-5, 1e-6), "float16": (4e-3, 2e-3)}


def modules() -> list[types.ModuleType]:
    """Import every module of flowvm.ops: the import declares its samples."""
    modules = pkgutil.walk_packages(flowvm.ops.__path__, "flowvm.ops.")
    return [importlib.import_module(name) for name in sorted(m.name for m in modules)]


ALL_MODULES = modules()

ROOMS_WITHOUT_PUBLIC_OPS = ("declare", "placed", "scalar", "updates")


def is_public(module: types.ModuleType) -> bool:
    """Return True if the module has public ops: it is in a room, not in a folder of the room."""
    place = module.__name__.split(".")[2:]
    return len(place) == 2 and place[0] not in ROOMS_WITHOUT_PUBLIC_OPS


# These take no tensor: what is said of tensors elsewhere is not said of their samples.
NO_TENSOR = {
    "arange", "bartlett_window", "blackman_window", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "range",
}  # fmt: skip


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors in a result."""
    if isinstance(result, Tensor):
        return [result]
    return [t for r in result for t in tensors_in(r)] if isinstance(result, (list, tuple)) else []


def all_samples() -> list[Any]:
    """(name, samples), the name unique; in the order of the names."""
    results: dict[str, int] = {}
    named = []
    for op in sorted(SAMPLES, key=lambda s: s.name):
        results[op.name] = results.get(op.name, 0) + 1
        named.append((op.name if results[op.name] == 1 else f"{op.name}#{results[op.name]}", op))
    return named


class _Flow:
    """`flowvm`, as the calls of `OpSamples.errors` see it."""

    def __getattr__(self, name: str) -> Any:
        for place in (flowvm, *ALL_MODULES):
            function = getattr(place, name, None)
            if function is not None and not isinstance(function, types.ModuleType):
                return function
        raise AttributeError(f"neither flowvm nor flowvm.ops has {name!r}")


flow = _Flow()


def mapped(value: Any, f: Callable[[Array], Any]) -> Any:
    """`value` with `f` of every array in it."""
    if isinstance(
        value, (np.ndarray, np.floating)
    ):  # NumPy's arithmetic makes numbers of 0-d arrays
        return f(np.asarray(value))
    if isinstance(value, (list, tuple)):
        items = [mapped(v, f) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {k: mapped(v, f) for k, v in value.items()}
    return value


def arrays_of(sample: Sample) -> list[Array]:
    """The arrays of a sample, in order."""
    arrays: list[Array] = []
    mapped((sample.args, sample.kwargs), arrays.append)
    return arrays


def is_float(a: Array) -> bool:
    return a.dtype.kind == "f"


def has_floats(sample: Sample) -> bool:
    return any(map(is_float, arrays_of(sample)))


def in_dtype(sample: Sample, dtype: str) -> Sample:
    """The sample with its floating arrays rounded to `dtype`."""

    def convert(a: Array) -> Array:
        return a.astype(dtype) if is_float(a) else a

    return Sample(mapped(sample.args, convert), mapped(sample.kwargs, convert))


def call(function: Callable[..., Any], sample: Sample, f: Callable[[Array], Any]) -> Any:
    """`function` on the sample, with `f` of each array."""
    return function(*mapped(sample.args, f), **mapped(sample.kwargs, f))


def as_tensor(a: Array) -> Tensor:
    """A tensor of its own with these values, dense."""
    return adopt_array(np.array(a, order="C"))


def transposed(a: Array) -> Tensor:
    """Return the values in a tensor with the dimensions stored the other way round."""
    return adopt_array(np.array(a.T, order="C").T)


def stepped(a: Array) -> Tensor:
    """Return the values in a tensor of every second element of a larger memory."""
    if a.ndim == 0:
        return adopt_array(np.array([a, a])[1:].reshape(()))
    return adopt_array(np.repeat(np.array(a, order="C"), 2, axis=-1)[..., ::2])


def widened(a: Array) -> Array:
    """Return the array with which the reference computes: float64."""
    return a.astype(np.float64) if is_float(a) else a


def results(value: Any) -> list[Any]:
    """The results of a call, one or several, as a flat list."""
    if isinstance(value, (list, tuple)) and not isinstance(value, flowvm.meta.meta.Size):
        return [r for v in value for r in results(v)]
    return [value]


def values(result: Any) -> Array:
    """A result's values: of a tensor, an array or a number."""
    if isinstance(result, Tensor):
        return result.numpy()
    if hasattr(result, "detach"):  # PyTorch's
        return result.detach().resolve_neg().numpy()
    return np.asarray(result)


def tolerances(op: OpSamples, dtype: str) -> tuple[float, float]:
    """rtol and atol: the dtype's, or the op's own where they are larger."""
    rtol, atol = TOLERANCES.get(dtype, (0.0, 0.0))
    return max(rtol, op.rtol), max(atol, op.atol)


def shown(op: OpSamples, sample: Sample, seed: int) -> str:
    """Return the text of a call for a failure's message."""
    parts = [_text(a) for a in sample.args]
    parts += [f"{k}={_text(v)}" for k, v in sample.kwargs.items()]
    return f"{op.name}({', '.join(parts)})\nseed {seed}"


def _text(value: Any) -> str:
    def array(a: Array) -> str:
        return f"{a.dtype.name}{list(a.shape)} {np.array2string(a, threshold=40, precision=6)}"

    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(value)


def public_functions() -> list[tuple[str, str, Any]]:
    """(module, name, function) of everything callable that the rooms offer, classes aside."""
    from tools import faces  # programs of other folders import this file, and find no tools

    functions = []
    files = faces.modules()
    for module in filter(is_public, ALL_MODULES):
        short = module.__name__.rpartition(".")[2]
        path = files[module.__name__]
        public = [one.name for one in faces.marks(module.__name__, path) if one.name[0] != "_"]
        for name in dict.fromkeys(public):
            value = getattr(module, name)
            if callable(value) and not inspect.isclass(value) and not isinstance(value, DType):
                functions.append((short, name, value))
    return functions
