"""The text of a module: runs of equal children, and the tree that notebooks show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.profiler import markup

if TYPE_CHECKING:
    from flowvm.eager.tensor import Tensor


T = TypeVar("T")


def runs(children: list[tuple[str, T]]) -> list[tuple[str, int, T]]:
    """(label, count, child) of each child, or run of equal numbered ones: ("0-11", 12, child)."""
    groups: list[tuple[str, int, T]] = []
    first = 0
    while first < len(children):
        last = first
        while last + 1 < len(children) and _continues(children[last], children[last + 1]):
            last += 1
        name, child = children[first]
        label = name if last == first else f"{name}-{children[last][0]}"
        groups.append((label, last - first + 1, child))
        first = last + 1
    return groups


def _continues(a: tuple[str, T], b: tuple[str, T]) -> bool:
    return a[0].isdecimal() and b[0] == str(int(a[0]) + 1) and a[1] == b[1]


def fold(children: list[tuple[str, str]]) -> list[str]:
    """One line a child, or a run of equal numbered ones: `(0-11): 12 x Block(...)`."""
    return [
        f"({label}): {text}" if count == 1 else f"({label}): {count} x {text}"
        for label, count, text in runs(children)
    ]


def module_html(module: object, plain: object) -> str:
    """A tree of modules, parameters and buffers; a class whose `__repr__` is not the `plain` one
    says itself what it is.
    """
    title, below = _node(module, plain)
    return markup.tree([markup.row(title, below)])


def _node(module: Any, plain: object) -> tuple[str, list[markup.Node]]:
    if type(module).__repr__ is plain:
        title = f"{module._get_name()}({module.extra_repr()})"
    else:
        title = repr(module)
    known = [p for p in module.parameters() if not _is_lazy(p)]
    title += f"  {sum(p.numel() for p in known):,} parameters" if known else ""
    below = [
        markup.row(f"{name}: {_tensor(tensor, kind)}")
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers))
        for name, tensor in held.items()
        if tensor is not None
    ]
    children = [(name, _node(m, plain)) for name, m in module._modules.items() if m is not None]
    for label, count, (text, inside) in runs(children):
        many = f"{count} x " if count > 1 else ""
        below.append(markup.row(f"({label}): {many}{text}", inside))
    return title, below


def _tensor(tensor: Tensor, kind: str) -> str:
    """Return the text of a tensor, as "parameter f32[64,64]"."""
    if _is_lazy(tensor):
        return f"{kind}, its shape is not known yet"
    place = "" if str(tensor.device) in ("cpu", str(tensor._meta)) else f" on {tensor.device}"
    frozen = ", no grad" if kind == "parameter" and not tensor.requires_grad else ""
    return f"{kind} {tensor._meta!r}{place}{frozen}"


def _is_lazy(tensor: object) -> bool:
    return hasattr(tensor, "materialize")
