"""Kernels of a model's layers, compiled by a helper while this process compiles those of the first.

The first call of a model compiles the kernels of one layer after another.  When the first of them
is missing, a helper is told of the model's layers, in the order in which they were registered, and
of the model's input.  It guesses each layer's input: the result of the layer in front of it, or as
much of that as fits.  Then it captures the calls, the last one first, so that the two processes
meet in the middle.

That is a guess and nothing hangs on it: which kernels there are, and what they compute, is decided
where they are asked for.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import pickle
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from flowvm.compiler import helpers
from flowvm.config import config
from flowvm.eager.modes import recorder_mode
from flowvm.eager.tensor import Tensor
from flowvm.graph.capture.capture import Capture
from flowvm.guards.collection import Uncollected
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.nn.module import Module
from flowvm.nn.tables import TABLES
from flowvm.ops import empty

ROOM = "flowvm.nn.modules."  # of layers that the helper knows, too
MOST = 64  # layers of a model that differ: the helper makes no more

_known: weakref.WeakSet[Module] = weakref.WeakSet()  # models that a helper was told of
Facts = tuple[tuple[int, ...], Any]  # shape and dtype of a tensor without values


class Layer(NamedTuple):
    """A layer without its values."""

    kind: type[Module]
    attributes: dict[str, Any]
    parameters: dict[str, Facts | None]
    buffers: dict[str, Facts | None]


def foretell(thread: int) -> None:
    """Have a helper compile the kernels of the layers of the model that `thread` is calling.  If
    the thread is making a model, only start the helper: it will be asked soon.
    """
    if config.ahead:
        with contextlib.suppress(Exception):  # the user's own classes: nobody waits for this
            _foretell(thread)


def _foretell(thread: int) -> None:
    with Uncollected():
        frame = sys._current_frames().get(thread)
        root, input = _model(frame)
        is_making = root is None and _is_making(frame)
    if is_making:
        helpers.begin_ahead()
    if root is None or root in _known:
        return
    _known.add(root)
    layers, facts = list(_layers(root))[-MOST:], None if input is None else _facts(input)
    while layers and not helpers.ahead(f"{JOB}:{_text(layers, facts)}"):
        layers = layers[len(layers) // 2 + 1 :]  # the text was too long


def _text(layers: list[Layer], input_facts: Facts | None) -> str:
    return base64.b85encode(zlib.compress(pickle.dumps((layers, input_facts)))).decode()


def _model(frame: FrameType | None) -> tuple[Module | None, Tensor | None]:
    """Return the outermost model whose `forward` is running in `frame` or its callers, and the
    first argument of that.
    """
    root: tuple[Module | None, Tensor | None] = None, None
    while frame is not None:
        names = frame.f_code.co_varnames[:2]
        if frame.f_code.co_name == "forward" and len(names) == 2:
            own, input = map(frame.f_locals.get, names)
            if isinstance(own, Module):
                root = own, input if isinstance(input, Tensor) else None
        frame = frame.f_back
    return root


def _is_making(frame: FrameType | None) -> bool:
    """Return True if a model is being made in `frame` or its callers."""
    while frame is not None:
        names = frame.f_code.co_varnames[:1]
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get(*names), Module):
            return True
        frame = frame.f_back
    return False


def _layers(root: Module) -> Iterator[Layer]:
    """Yield the layers of flowvm that a model has and that have no layers inside, each once of
    those alike.
    """
    texts: set[bytes] = set()
    for module in root.modules():
        if not type(module).__module__.startswith(ROOM) or any(True for _ in module.children()):
            continue
        tensors = {**module._parameters, **module._buffers}
        if all(t is None or t._meta.device is cpu for t in tensors.values()):
            names = {*tensors, *TABLES, "_hooks"}
            plain = {name: value for name, value in vars(module).items() if name not in names}
            parameters, buffers = map(_facts_of, (module._parameters, module._buffers))
            layer = Layer(type(module), plain, parameters, buffers)
            text = pickle.dumps(layer)
            if text not in texts:
                texts.add(text)
                yield layer


def _facts_of(table: Mapping[str, Tensor | None]) -> dict[str, Facts | None]:
    return {name: None if tensor is None else _facts(tensor) for name, tensor in table.items()}


def _facts(tensor: Tensor) -> Facts:
    return tuple(tensor._meta.shape), tensor._meta.dtype


# --- the helper's part ----------------------------------------------------------------------------


JOB = f"{__name__}:compile_layers"


def compile_layers(text: str) -> None:
    """Compile the kernels of calls of these layers, of the last one first."""
    for layer, facts in reversed(list(_inputs(*_layers_of(text)))):
        # as in the parent: a short body is enough for the first calls
        with contextlib.suppress(Exception), config(ahead=True):
            _compile(layer, facts)


def _layers_of(text: str) -> tuple[list[Layer], Facts | None]:
    layers, input_facts = pickle.loads(zlib.decompress(base64.b85decode(text)))
    return layers, input_facts


def _inputs(layers: list[Layer], input_facts: Facts | None) -> Iterator[tuple[Layer, Facts]]:
    """Yield each layer with the shape and dtype of its likely input."""
    before = input_facts
    for layer in layers:
        module = _module(layer, _valueless)
        for facts in _candidates(layer, before, input_facts):
            with contextlib.suppress(Exception):  # it was not this one
                result = module(_valueless(facts))
                before = _facts(result[0] if isinstance(result, tuple) else result)
                yield layer, facts
                break


def _valueless(facts: Facts) -> Tensor:
    shape, dtype = facts
    return empty(shape, dtype=dtype, device="meta")


def _candidates(layer: Layer, before: Facts | None, input_facts: Facts | None) -> Iterator[Facts]:
    """Yield inputs that a layer may take, the likeliest first."""
    for facts in (before, input_facts):
        if facts is None:
            continue
        shape, dtype = facts
        yield shape, dtype
        weight = layer.parameters.get("weight")
        wide = layer.attributes.get("in_features")
        if wide is None and weight is not None and len(weight[0]) == 1:
            wide = weight[0][0]
        if wide is not None and shape and dtype.is_floating_point:
            yield (shape[0], wide) if len(shape) > 3 else (*shape[:-1], wide), dtype


def _module(layer: Layer, tensor_of: Callable[[Facts], Tensor]) -> Module:
    """Return a layer whose tensors `tensor_of` makes of their shapes and dtypes."""
    module = layer.kind.__new__(layer.kind)
    parameters, buffers = (
        {name: None if facts is None else tensor_of(facts) for name, facts in table.items()}
        for table in (layer.parameters, layer.buffers)
    )
    tables = {"_parameters": parameters, "_buffers": buffers, "_modules": {}}
    module.__setstate__({**layer.attributes, **tables})
    return module


def _compile(layer: Layer, facts: Facts) -> None:
    """Capture a call of a layer, which compiles its kernels and runs nothing."""
    capture = Capture(layer.kind.__name__)
    numbers = itertools.count()

    def placeholder(facts: Facts) -> Tensor:
        return capture.placeholder(TensorMeta.of(*facts, cpu), f"{next(numbers)}")

    with recorder_mode().within(capture):
        module = _module(layer, placeholder)
        for parameter in module._parameters.values():
            if parameter is not None:
                parameter.requires_grad_()
        module(placeholder(facts))
