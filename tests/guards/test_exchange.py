"""A field made at its first use is made once, also where a collection runs another first use."""

from __future__ import annotations

import gc
from collections.abc import Callable
from operator import setitem
from typing import Any

import pytest

import flowvm as flow
from flowvm.autograd.hooks import hooks_of
from flowvm.eager.tensor import Fields
from flowvm.guards.exchange import exchange, first_of

nn = flow.nn


def _of_dict() -> tuple[Callable[[], Any], Any]:
    holder: dict[str, Any] = {}

    def use() -> Any:
        exchange(map(holder.get, ("x",)), (None,), ((setitem, (holder, "x", [])),))
        return holder["x"]

    return use, holder


def _of_module() -> tuple[Callable[[], Any], Any]:
    module = nn.Linear(2, 2)
    module._hooks = None
    return module._own_hooks, module


def _of_transform() -> tuple[Callable[[], Any], Any]:
    transform = flow.distributions.transforms.ExpTransform()
    return lambda: transform.inv, transform


def _of_node() -> tuple[Callable[[], Any], Any]:
    node = (flow.ones(2, requires_grad=True) * 2).grad_fn
    return lambda: hooks_of(node), node


def _of_leaf() -> tuple[Callable[[], Any], Any]:
    x = flow.ones(2)

    def use() -> Any:
        return x.requires_grad_()._node

    return use, x


def _of_tensor(use: Callable[[Any], Any]) -> Callable[[], tuple[Callable[[], Any], Any]]:
    def kind() -> tuple[Callable[[], Any], Any]:
        x = flow.ones(3) + 1
        return lambda: use(x), x

    return kind


KINDS = {
    "dict": _of_dict,
    "hooks": _of_module,
    "hooks of a node": _of_node,
    "leaf": _of_leaf,
    "inverse": _of_transform,
    "storage": _of_tensor(lambda x: x.storage()),
    "extra": _of_tensor(lambda x: x.extra()),
    "views": _of_tensor(lambda x: first_of(x, Fields, "_kin", [])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_collection_in_between(kind: str) -> None:
    """CPython 3.11 collects where an object is made, and finalizers may be any Python code."""
    uses: list[Any] = []
    is_ours = False

    def finalizer(phase: str, info: dict[str, int]) -> None:
        nonlocal is_ours
        if phase == "start" and is_ours:
            is_ours = False
            uses.append(use())

    for skipped in range(60):  # objects made before the one whose making collects
        use, holder = KINDS[kind]()
        gc.callbacks.append(finalizer)
        before = gc.get_threshold()
        uses.clear()
        try:
            gc.collect()
            spare: list[Any] = []
            is_ours = True
            gc.set_threshold(skipped + 1)
            uses.append(use())
        finally:
            is_ours = False
            gc.set_threshold(*before)
            gc.callbacks.remove(finalizer)
        assert all(one is uses[0] for one in uses), f"{kind}: two were made, at {skipped}"
        assert use() is uses[0]
        del holder, spare
