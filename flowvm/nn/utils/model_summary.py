"""`flow.summary(model, x)`: what a model is made of, and what one forward call of it takes."""

from __future__ import annotations

from typing import Any

from flowvm.autograd.modes import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.guards.regions import reverting
from flowvm.nn.module import Module
from flowvm.nn.module_calls import paths
from flowvm.profiler.front.profiles import profile
from flowvm.profiler.views.tree import Known, ModuleTree, tree
from flowvm.random import fork_rng


# public: flow (late, unlisted)
def summary(model: Module, *args: Any, **kwargs: Any) -> ModuleTree:
    """The modules of `model` as a tree: class, the shape that each gives, parameters, and what a
    call `model(*args, **kwargs)` took in it and all below: time, FLOPs of products and
    convolutions, bytes read and written.

    The model is called twice, in evaluation mode and without gradients, and the second call is
    measured; its mode, its buffers and the generators of random numbers are as before.  What the
    model raises is raised.  ArgumentTypeError: `model` is no Module.

    >>> print(flow.summary(nn.Linear(2, 3), flow.ones(1, 2)).branches[0].parameters)
    9
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"summary: model is an nn.Module, got {type(model).__name__}")
    gives: dict[Module, str] = {}
    handles: list[Any] = []
    modes = [(m, m.training) for m in model.modules()]

    def restore() -> None:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training

    with reverting(restore), no_grad(), fork_rng():
        model.eval()
        for module, _ in modes:
            hook = module.register_forward_hook(lambda m, _, out: gives.update({m: _shape(out)}))
            handles.append(hook)
        model(*args, **kwargs)
        with profile(level=2) as p:
            model(*args, **kwargs)
    root = type(model).__name__
    known = {}
    for name, module in model.named_modules():
        own = sum(q.numel() for q in module.parameters(recurse=False))
        path = f"{root}.{name}" if name else root
        recorded = paths.known.get(id(module), path)  # not if it was not called
        known[path] = Known(type(module).__name__, gives.get(module, ""), own, recorded)
    return tree(p, known)


def _shape(out: object) -> str:
    if isinstance(out, Tensor):
        return str(list(out.shape))
    if isinstance(out, (tuple, list)):
        return ", ".join(_shape(o) for o in out)
    return "None" if out is None else type(out).__name__
