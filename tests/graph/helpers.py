"""Helpers of the graph tests: how two results are compared, and graphs with some passes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.passes.passes import PASSES
from flowvm.nn.graph.check import INEXACT


def exact(graph: Any) -> Any:
    """The graph without the passes that may change a bit."""
    for name in INEXACT:
        if name in PASSES:
            graph.config.disable(name)
    return graph


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dicts, in order."""
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    return [value] if isinstance(value, Tensor) else []


def arrays_in(value: Any) -> list[np.ndarray]:
    """Copies of their values."""
    return [np.array(t.detach().numpy()) for t in tensors_in(value)]


def same_bits(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], what: str) -> None:
    """Same dtypes, shapes and bits; a NaN is a NaN."""
    assert len(ours) == len(theirs), f"{what}: {len(ours)} results, expected {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        where = f"result {i} of {what}\ngot:\n{a!r}\nexpected:\n{b!r}"
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert a.tobytes() == b.tobytes() or _only_nans_differ(a, b), where


def _only_nans_differ(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind != "f":
        return False
    bits = f"u{a.itemsize}"
    differ = a.view(bits) != b.view(bits) if a.ndim else a.reshape(1).view(bits) != b.view(bits)
    return bool((np.isnan(a) & np.isnan(b))[differ if a.ndim else ...].all())


def close(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], what: str, scale: float = 1.0
) -> None:
    """Equal but for rounding: a few units in the last place, of each element or of the largest."""
    assert len(ours) == len(theirs), f"{what}: {len(ours)} results, expected {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        where = f"result {i} of {what}\ngot:\n{a!r}\nexpected:\n{b!r}"
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        if a.dtype.kind != "f":
            assert np.array_equal(a, b), where
            continue
        unit = float(np.finfo(a.dtype).eps) * 64 * scale
        wide, finite = b.astype(np.float64), b[np.isfinite(b)].astype(np.float64)
        largest = float(np.abs(finite).max()) if finite.size else 0.0
        with np.errstate(invalid="ignore"):
            assert np.allclose(a.astype(np.float64), wide, unit, unit * largest, True), where


@contextmanager
def usable_after() -> Iterator[None]:
    """Whatever happens inside: eager code, a new graph and a wait work afterwards."""
    yield
    assert (flow.ones(3) + 1).tolist() == [2, 2, 2]
    graph = flow.compile(lambda x: x * 2 + 1)
    assert [graph(flow.ones(2)).tolist() for _ in range(2)] == [[3, 3]] * 2
    w = flow.ones(2, requires_grad=True)
    (w * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3, 3]
    flow.vm.sync()


def error_text(error: BaseException) -> str:
    """The message with its notes: what a traceback ends with."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


class Trained:
    """A model trained for some steps, eagerly and by a graph, from the same start on the same data.

    `make` gives the model and the optimizer; `loss(model, *batch)` the loss.
    """

    def __init__(
        self,
        make: Callable[[], tuple[Any, Any]],
        batches: Callable[[], Sequence[tuple[Tensor, ...]]],
        loss: Callable[..., Tensor],
        seed: int = 0,
    ) -> None:
        self.make, self.batches, self.loss, self.seed = make, batches, loss, seed

    def eagerly(self) -> list[np.ndarray]:
        """Losses, then parameters and buffers, then the optimizer's state."""
        flow.manual_seed(self.seed)
        model, optimizer = self.make()
        losses = []
        for batch in self.batches():
            optimizer.zero_grad()
            loss = self.loss(model, *batch)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return self._found(losses, model, optimizer)

    def by_graph(self, change: Callable[[Any], Any] = lambda graph: graph) -> list[np.ndarray]:
        """Train by a graph, which `change` may configure first."""
        flow.manual_seed(self.seed)
        model, optimizer = self.make()
        loss_of = self.loss

        class Step(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)

            def build(self, *batch: Tensor) -> Tensor:
                loss = loss_of(self.model, *batch)
                loss.backward()
                return loss

        graph = change(Step())
        losses = [graph(*batch) for batch in self.batches()]
        self.graph = graph
        return self._found(losses, model, optimizer)

    def _found(self, losses: list[Tensor], model: Any, optimizer: Any) -> list[np.ndarray]:
        arrays = arrays_in(losses) + arrays_in(dict(model.state_dict()))
        for entry in optimizer.state_dict()["state"].values():
            for value in entry.values():
                arrays += arrays_in(value) if isinstance(value, Tensor) else [np.array(value)]
        return arrays


def raised_in_capture(function: Callable[[], Any]) -> str:
    """The text of the CaptureError that `function` must raise, the VM usable afterwards."""
    with usable_after():
        try:
            function()
        except CaptureError as error:
            return error_text(error)
    raise AssertionError("no CaptureError")


def captured(function: Callable[..., Any], *inputs: Tensor) -> LogicalGraph:
    """Return the graph of the operations that `function` issues; its results are the outputs."""
    with capturing("f", [(t, f"x{i}") for i, t in enumerate(inputs)]) as capture:
        result = function(*inputs)
        for t in result if isinstance(result, tuple) else (result,):
            capture.output(t)
    return capture.graph


def names(graph: LogicalGraph) -> list[str]:
    """The operators of a graph's nodes."""
    return [node.operator.name for node in graph.nodes]
