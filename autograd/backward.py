"""`backward` and `grad`: what a program calls to get gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from flowvm.autograd.engine import Watch, add_to_grad, natively_run, run
from flowvm.eager.modes import current_recorder, recording
from flowvm.eager.native.functions import whole_backward
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.guards.regions import Mode, Region
from flowvm.meta.batched_meta import base_device
from flowvm.ops.batched.levels import of_levels
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.shapes.join import stack
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


Tensors = Tensor | Sequence[Tensor]
Gradients = Tensor | Sequence[Tensor | None] | None


_started: set[object] = set()  # holds something while a thread begins with anything but ones
_seed = Mode(1.0, _started)
takes_complex = [False]  # whether a complex result starts with 1, as OneFlow's does
_scale: Mode[Tensor | None] = Mode(None, _started)
_ones: dict[object, Tensor] = {}
hot["started"] = _started


def seeded(value: float) -> Region:
    """Inside, backward starts from `value` where no gradient is given: 1/n where n losses make a
    mean.
    """
    return _seed.to(value)


def scaled(scale: Tensor | None) -> Region:
    """Let `backward` inside start from `scale` times the usual gradient.

    The loss is scaled in effect.  With None it starts as usual.
    """
    return _scale.to(scale)


def _scaled(g: Tensor) -> Tensor:
    scale = _scale.now()
    if scale is None:
        return g
    with recording(False):
        out: Tensor = (g * scale).to(g._meta.dtype)
    return out


# public: autograd
@border
def backward(
    tensors: Tensors,
    grad_tensors: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of `tensors` to the `.grad` of every leaf that they were computed from.

    grad_tensors   the gradient of some value with respect to each tensor; may be left out for those
                   of one element
    retain_graph   keep what was saved for the gradients, so that backward can run again (default:
                   `create_graph`)
    create_graph   record the gradients' own computation, for derivatives of them
    inputs         only these tensors get gradients, and nothing is computed that they do not need

    >>> x = flow.ones(2, requires_grad=True)
    >>> flow.autograd.backward(3 * x, flow.tensor([1.0, 10.0]))
    >>> x.grad
    tensor([ 3., 30.])
    """
    outputs = _listed(tensors, "tensors")
    roots = [(edge, _scaled(g)) for edge, g in _roots(outputs, grad_tensors)]
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        run(roots, keep, create_graph)
        return
    targets = _listed(inputs, "inputs")
    if not targets:
        raise AutogradError(
            "backward() got an empty list of inputs; leave inputs out for all leaves"
        )
    for i, t in enumerate(targets):
        if t._node is None:
            raise AutogradError(f"inputs[{i}] of backward() does not require grad")
    watch = Watch([t._node for t in targets], accumulate=True)
    run(roots, keep, create_graph, watch)
    for t, g in zip(targets, watch.gradients, strict=True):
        if g is not None and not t._node.is_leaf and not t.retains_grad:
            add_to_grad(t, g, create_graph)


# public: autograd
@border
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of `outputs` with respect to each of `inputs`; no `.grad` changes.

    grad_outputs, retain_graph, create_graph   as in `backward`
    only_inputs         taken, and means nothing: `.grad` is never added to
    allow_unused        None for an input that the outputs do not depend on, instead of an error
    is_grads_batched    each of `grad_outputs` has one more dimension in front: a list of gradients,
                        for each of which the results have theirs, in such a dimension
    materialize_grads   zeros for such an input

    >>> x = flow.tensor([1.0, 2.0], requires_grad=True)
    >>> flow.autograd.grad((x * x).sum(), x)
    (tensor([2., 4.]),)
    """
    if materialize_grads and allow_unused is False:
        raise AutogradError("materialize_grads=True needs allow_unused=True (or left out)")
    sources = _listed(outputs, "outputs")
    targets = _listed(inputs, "inputs")
    for i, t in enumerate(targets):
        if t._node is None:
            raise AutogradError(
                f"One of the differentiated Tensors does not require grad: inputs[{i}] of shape "
                f"{tuple(t.shape)}"
            )
    keep = create_graph if retain_graph is None else retain_graph
    nodes = [t._node for t in targets]
    if is_grads_batched:
        gradients = _batched(sources, grad_outputs, nodes, keep, create_graph)
    else:
        watch = Watch(nodes, accumulate=False)
        run(_roots(sources, grad_outputs), keep, create_graph, watch)
        gradients = watch.gradients
    for i, (t, g) in enumerate(zip(targets, gradients, strict=True)):
        if g is not None:
            continue
        if materialize_grads:
            filled = filled_of(t._meta, 0)
            if is_grads_batched:
                rows = len(_listed(cast("Tensors", grad_outputs), "grad_outputs")[0])
                filled = filled.expand(rows, *t.shape)
            gradients[i] = filled
        elif not allow_unused:
            raise AutogradError(
                "One of the differentiated Tensors appears to not have been used in the graph: "
                f"inputs[{i}] of shape "
                f"{tuple(t.shape)}.  Set allow_unused=True if this is the desired behavior"
            )
    return tuple(gradients)


def _batched(
    sources: list[Tensor], grad_outputs: Gradients, nodes: list[object], keep: bool, create: bool
) -> list[Tensor | None]:
    """Compute `grad` for every row of `grad_outputs`, and stack the results."""
    cotangents = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs or ())
    tensors = [g for g in cotangents if isinstance(g, Tensor) and g.ndim]
    rows = int(tensors[0].shape[0]) if tensors else 0
    if not rows or len(tensors) < len(cotangents) or any(g.shape[0] != rows for g in tensors):
        raise AutogradError(
            "is_grads_batched=True needs a tensor for each output, with a first dimension of rows, "
            f"as many in each and at least one; got {[getattr(g, 'shape', g) for g in cotangents]}"
        )
    gradients = []
    for row in range(rows):
        watch = Watch(nodes, accumulate=False)
        run(_roots(sources, [g[row] for g in tensors]), keep or row < rows - 1, create, watch)
        gradients.append(watch.gradients)
    return [None if column[0] is None else stack(column) for column in zip(*gradients, strict=True)]


@method("backward")
@functools.partial(whole_backward, gradients=natively_run, ones=_ones)
@border
def _tensor_backward(
    t: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of this tensor to the `.grad` of the leaves it was computed from.

    `gradient` is the gradient of some value with respect to this tensor; it may be left out if the
    tensor has one element.  For the others see `flow.autograd.backward`.

    >>> x = flow.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    plain = t._meta.numel == 1 and not t._meta.dtype.is_complex
    if inputs is None and gradient is None and t._node is not None and plain:
        keep = create_graph if retain_graph is None else retain_graph
        run([(t._node, _one(t._meta))], keep, create_graph)
    else:
        backward(
            (t,), None if gradient is None else (gradient,), retain_graph, create_graph, inputs
        )


def _one(meta: TensorMeta) -> Tensor:
    """The gradient of a number with respect to itself; kept, since every training step starts with
    it.
    """
    if current_recorder() is not None or _seed.now() != 1.0 or _scale.now() is not None:
        return _scaled(filled_of(meta, _seed.now()))  # it has no value outside the capture
    ones = _ones.get(meta)
    if ones is None or ones.version:  # a hook may have written to it
        ones = _ones[meta] = filled_of(meta, 1)
    return ones


def _listed(tensors: Tensor | Sequence[Tensor], name: str) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for t in listed:
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"{name} must be Tensors, got {type(t).__name__}")
    return listed


def _roots(tensors: list[Tensor], gradients: Gradients) -> list[tuple[object, Tensor]]:
    """Each tensor's edge and the gradient that starts there."""
    cotangents: list[Tensor | None]
    if gradients is None:
        cotangents = [None] * len(tensors)
    else:
        cotangents = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    if len(cotangents) != len(tensors):
        raise AutogradError(f"got {len(tensors)} tensors and {len(cotangents)} gradients")
    roots = []
    for i, (t, g) in enumerate(zip(tensors, cotangents, strict=True)):
        if t._node is None:
            raise AutogradError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )
        if g is None:
            if t._meta.numel != 1:
                raise AutogradError(
                    f"grad can be implicitly created only for scalar outputs, tensor {i} has "
                    f"shape {tuple(t.shape)}; "
                    f"give its gradient, or reduce it with sum() or mean() first"
                )
            if t._meta.dtype.is_complex and not takes_complex[0]:
                raise AutogradError(
                    f"grad can be implicitly created only for real outputs, tensor {i} is "
                    f"{t.dtype.name}; give its gradient, or go back from .real or .abs()"
                )
            g = filled_of(t._meta, _seed.now())
        elif not isinstance(g, Tensor):
            raise ArgumentTypeError(f"a gradient is a Tensor or None, got {type(g).__name__}")
        elif g._meta.shape != t._meta.shape:
            raise AutogradError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {tuple(g.shape)} and "
                f"output[{i}] has a shape of "
                f"{tuple(t.shape)}"
            )
        elif base_device(g._meta.device) is not base_device(t._meta.device):
            raise AutogradError(
                f"grad_output[{i}] is on {g.device} and output[{i}] on {t.device}; a gradient is "
                f"where its tensor is"
            )
        elif g._meta.dtype is not t._meta.dtype:
            if g._meta.dtype.is_complex and not t._meta.dtype.is_complex:
                raise AutogradError(
                    f"grad_output[{i}] is {g.dtype.name} and output[{i}] {t.dtype.name}; the "
                    f"gradient of a real tensor is real"
                )
            g = g.to(t._meta.dtype)
        roots.append((t._node, of_levels(g, t._meta)))
    return roots
