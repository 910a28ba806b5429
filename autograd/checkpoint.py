"""Activation checkpointing: what a function computed is forgotten after forward, and computed again
in backward.

Forward is recorded once, to learn which leaves (parameters, mostly) the function uses, and the
record is dropped.  One node stands for it, with an edge to each argument and each of those leaves;
its gradient function computes forward again, on arguments that end in the node, and asks the engine
for the gradients of exactly those edges.  So checkpoints work with `grad`, with `inputs=` and
inside one another, and gradients of gradients go through them.

The second computation sees the random numbers of the first: the default generator is put back to
where it was, for the time of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowvm.autograd.engine import Watch, run
from flowvm.autograd.function import Function
from flowvm.autograd.leaf import AccumulateGrad
from flowvm.autograd.modes import enable_grad
from flowvm.errors import ArgumentError, AutogradError
from flowvm.interpreter import OutputEdge, grad_enabled
from flowvm.tensor import Tensor

__all__ = ["checkpoint", "checkpoint_sequential"]


class _Recipe:
    """How to compute forward again."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.kwargs = kwargs
        self.plain = [None if isinstance(a, Tensor) else a for a in args]
        self.random: Any = None
        self.outputs: Any = None  # of the first computation, until they are handed over

    def compute(self, tensors: Sequence[Tensor | None]) -> Any:
        """The function's result on these in the place of its tensor arguments."""
        args = [p if t is None else t for p, t in zip(self.plain, tensors, strict=True)]
        return self.function(*args, **self.kwargs)

    def compute_again(self, tensors: Sequence[Tensor | None]) -> Any:
        """The same, with the random numbers of the first time."""
        if self.random is None:
            return self.compute(tensors)
        generator = _generator()
        now = generator.get_state()
        generator.set_state(self.random)
        try:
            return self.compute(tensors)
        finally:
            generator.set_state(now)


class _Pass(Function):
    """The identity: the end of the inner graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class _Checkpoint(Function):
    @staticmethod
    def forward(ctx: Any, recipe: _Recipe, *tensors: Tensor | None) -> Any:
        ctx.recipe = recipe
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        outputs, recipe.outputs = recipe.outputs, None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        recipe: _Recipe = ctx.recipe
        saved = ctx.saved_tensors
        count = len(recipe.plain)
        again = grad_enabled()  # create_graph: the gradients are to be differentiated, too
        with enable_grad():
            ends = [t if t is None or t._node is None else _Pass.apply(t) for t in saved[:count]]
            outputs = _listed(recipe.compute_again(ends))
        if len(outputs) != len(gradients):
            raise AutogradError(
                f"checkpoint: the function returned {len(gradients)} outputs in forward and "
                f"{len(outputs)} when it was "
                f"computed again"
            )
        roots = [
            (o._node, g)
            for o, g in zip(outputs, gradients, strict=True)
            if isinstance(o, Tensor) and o._node is not None and g is not None
        ]
        wanted = [*ends, *saved[count:]]
        places = [i for i, t in enumerate(wanted) if t is not None and t._node is not None]
        results: list[Any] = [None] * (len(wanted) + 1)
        if roots:
            watch = Watch([wanted[i]._node for i in places], accumulate=False, stop=True)
            run(roots, True, again, watch)
            for i, g in zip(places, watch.found, strict=True):
                results[i + 1] = g
        return tuple(results)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)`, a tensor or a tuple, of which backward keeps the arguments and
    computes the rest again.

    Gradients go to the arguments, to the parameters that `function` uses, and to whatever else it
    reaches. preserve_rng_state=False saves a little time where nothing is random.  use_reentrant is
    there for PyTorch's sake and changes nothing.
    """
    if not grad_enabled():
        return function(*args, **kwargs)
    recipe = _Recipe(function, args, kwargs)
    if preserve_rng_state:
        recipe.random = _generator().get_state()
    tensors = [a if isinstance(a, Tensor) else None for a in args]
    ends = [t if t is None or t._node is None else t.detach().requires_grad_() for t in tensors]
    result = recipe.compute(ends)
    edges = [o._node for o in _listed(result) if isinstance(o, Tensor) and o._node is not None]
    if not edges:
        return result
    own = {id(t._node) for t in ends if t is not None}
    leaves = [leaf.tensor() for leaf in _leaves(edges) if id(leaf) not in own]
    recipe.outputs = _detached(result)
    del result, edges, ends
    return _Checkpoint.apply(recipe, *tensors, *(t for t in leaves if t is not None))


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """Each of `functions` on the result of the one before, in `segments` checkpoints; the last
    segment is not one.
    """
    chain = list(functions)
    if not 1 <= segments <= len(chain):
        raise ArgumentError(f"segments must be between 1 and {len(chain)}, got {segments}")
    size = len(chain) // segments
    for start in range(0, size * (segments - 1), size):
        part = _in_turn(chain[start : start + size])
        input = checkpoint(part, input, preserve_rng_state=preserve_rng_state)
    return _in_turn(chain[size * (segments - 1) :])(input)


def _in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run_all(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run_all


def _listed(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def _detached(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return tuple(_detached(r) for r in result)
    return result.detach() if isinstance(result, Tensor) else result


def _leaves(edges: list[Any]) -> list[AccumulateGrad]:
    """The leaves of the graph below these edges, in an order that depends on the graph alone."""
    seen: dict[Any, None] = {}
    while edges:
        edge = edges.pop()
        node = edge.node if edge.__class__ is OutputEdge else edge
        if node is not None and node not in seen:
            seen[node] = None
            edges.extend(node.edges)
    return [node for node in seen if node.is_leaf]


def _generator() -> Any:
    from flowvm.ops.generator import default_generator

    return default_generator
