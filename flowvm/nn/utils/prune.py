"""Pruning: a parameter is multiplied by a mask of zeros and ones in front of each call.

`module.<name>` is then `<name>_orig`, a parameter, times `<name>_mask`, a buffer; `remove` makes it
a parameter again.  Masks are of what counts least, by importance scores or at random; pruning again
is of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module
from flowvm.nn.parameter import set_data

__dir__ = listing(globals())


def _count(amount: float, size: int) -> int:
    """Return the number of elements, of `size`, that an amount means: a count or a share."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise ArgumentTypeError(f"prune: amount is a number or a share, got {amount!r}")
    if (isinstance(amount, float) and not 0.0 <= amount <= 1.0) or amount < 0:
        raise ArgumentError(f"prune: amount is a number, or a share from 0.0 to 1.0, got {amount}")
    if isinstance(amount, int) and amount > size:
        raise ArgumentError(f"prune: {amount} of {size} cannot be pruned")
    return round(amount * size) if isinstance(amount, float) else amount


class BasePruningMethod:
    """One way to prune; a subclass has `PRUNING_TYPE`, "unstructured", "structured" or "global",
    and `compute_mask(t, default_mask)`, the mask of what stays.

    >>> class Negative(nn.utils.prune.BasePruningMethod):
    ...     PRUNING_TYPE = "unstructured"
    ...     def compute_mask(self, t, default_mask):
    ...         return default_mask * (t >= 0)
    >>> layer = nn.Linear(2, 3)
    >>> _ = Negative.apply(layer, "weight")
    >>> bool((layer.weight >= 0).all())
    True
    """

    PRUNING_TYPE = "unstructured"
    _tensor_name = ""

    def __call__(self, module: Module, inputs: object) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask for importance scores `t`, where `default_mask` has 1."""
        raise NotImplementedError

    def apply_mask(self, module: Module) -> Tensor:
        """The pruned tensor."""
        name = self._tensor_name
        mask, whole = getattr(module, f"{name}_mask"), getattr(module, f"{name}_orig")
        out: Tensor = mask.to(whole.dtype) * whole
        return out

    @classmethod
    def apply(
        cls,
        module: Module,
        name: str,
        *args: object,
        importance_scores: Tensor | None = None,
        **kwargs: object,
    ) -> BasePruningMethod:
        """Prune `module.<name>` by this method, after those that it is pruned by already."""
        old = _method_of(module, name)
        pruning: BasePruningMethod = cls(*args, **kwargs)
        pruning._tensor_name = name
        tensor = getattr(module, name)
        scores = tensor if importance_scores is None else importance_scores
        if tuple(scores.shape) != tuple(tensor.shape):
            raise ArgumentError(
                f"prune: importance_scores have shape {tuple(scores.shape)}, {name} has "
                f"{tuple(tensor.shape)}"
            )
        method = pruning
        if old is not None:
            method = PruningContainer(old[1])
            method.add_pruning_method(pruning)
            default = getattr(module, f"{name}_mask")
        else:
            default = ops.ones_like(tensor.detach())
        mask = method.compute_mask(scores.detach(), default)  # first: an error leaves the module
        if old is None:
            delattr(module, name)
            module.register_parameter(f"{name}_orig", tensor)
            module.register_buffer(f"{name}_mask", mask)
        else:
            del module._forward_pre_hooks[old[0]]
            setattr(module, f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None,
        importance_scores: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """`t` with what this method prunes set to 0."""
        scores = t if importance_scores is None else importance_scores
        default = ops.ones_like(t.detach()) if default_mask is None else default_mask
        out: Tensor = t * self.compute_mask(scores.detach(), default)
        return out

    def remove(self, module: Module) -> None:
        """Make the pruned tensor a parameter again; it stays pruned."""
        name = self._tensor_name
        weight = self.apply_mask(module).detach()
        whole = getattr(module, f"{name}_orig")
        set_data(whole, weight)
        delattr(module, f"{name}_orig")
        delattr(module, f"{name}_mask")
        if name in module.__dict__:
            delattr(module, name)
        module.register_parameter(name, whole)


def _method_of(module: Module, name: str) -> tuple[int, BasePruningMethod] | None:
    methods = [
        (key, hook)
        for key, hook in module._forward_pre_hooks.items()
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
    ]
    return methods[0] if methods else None


class PruningContainer(BasePruningMethod):
    """Several methods, one after the other, each on what the others have left.

    >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(2, 3), "weight", 1)
    >>> layer = nn.utils.prune.l1_unstructured(layer, "weight", 1)
    >>> int((layer.weight == 0).sum())
    2
    """

    def __init__(self, *args: Any) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        first = args[0] if len(args) == 1 and isinstance(args[0], Iterable) else args
        for method in first:
            self._tensor_name = self._tensor_name or method._tensor_name
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod | None) -> None:
        """Add one for the same tensor."""
        if method is None:
            return
        if not isinstance(method, BasePruningMethod):
            raise ArgumentTypeError(f"{type(method).__name__} is not a BasePruningMethod")
        if method._tensor_name != self._tensor_name:
            raise ArgumentError(
                f"a container for {self._tensor_name!r} takes no method for {method._tensor_name!r}"
            )
        if isinstance(method, PruningContainer):
            self._pruning_methods += method._pruning_methods
        else:
            self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the last method, on what is left."""
        method, mask = self._pruning_methods[-1], default_mask
        remaining: object = ops.eq(mask, 1)
        if method.PRUNING_TYPE == "structured":
            dim = method.dim % t.ndim  # type: ignore[attr-defined]
            others = tuple(d for d in range(t.ndim) if d != dim)
            index = ops.nonzero(ops.ne(ops.sum(mask, others), 0)).squeeze(1)
            part = method.compute_mask(
                ops.index_select(t, dim, index), ops.index_select(mask, dim, index)
            )
            return ops.index_copy(ops.zeros_like(mask), dim, index, part.to(mask.dtype))
        if method.PRUNING_TYPE == "global":
            return method.compute_mask(t, mask)
        own = method.compute_mask(t[remaining], mask[remaining])
        out: Tensor = mask.clone()
        out[remaining] = own.to(mask.dtype)
        return out


class Identity(BasePruningMethod):
    """Prunes nothing, and has mask and original made.

    >>> nn.utils.prune.Identity().prune(flow.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The one that is there."""
        return default_mask


class RandomUnstructured(BasePruningMethod):
    """`amount` elements at random, a number or a share.

    >>> nn.utils.prune.RandomUnstructured(amount=0.5).prune(flow.ones(6)).sum()
    tensor(3.)
    """

    def __init__(self, amount: float) -> None:
        _count(amount, 1 << 62)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """See BasePruningMethod."""
        return _without(default_mask, ops.rand(t.numel(), device=t.device), self.amount, False)


class L1Unstructured(BasePruningMethod):
    """The `amount` elements of least size, a number or a share.

    >>> nn.utils.prune.L1Unstructured(amount=2).prune(flow.tensor([3.0, 1.0, 0.5]))
    tensor([3., 0., 0.])
    """

    def __init__(self, amount: float) -> None:
        _count(amount, 1 << 62)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """See BasePruningMethod."""
        return _without(default_mask, ops.abs(t).reshape(-1), self.amount, False)


def _without(mask: Tensor, scores: Tensor, amount: float, largest: bool) -> Tensor:
    """`mask` with 0 where the flattened scores are least."""
    count = _count(amount, scores.numel())
    out: Tensor = mask.clone()
    if count:
        _, places = ops.topk(scores, count, largest=largest)
        out = ops.index_fill(out.reshape(-1), 0, places, 0.0).reshape(mask.shape)
    return out


class _Structured(BasePruningMethod):
    PRUNING_TYPE = "structured"
    amount: float
    dim: int

    def _scores(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """See BasePruningMethod."""
        if t.ndim < 2:
            raise ArgumentError(
                f"{type(self).__name__}: structured pruning is for two dimensions or more, got "
                f"shape {tuple(t.shape)}"
            )
        dim = self.dim % t.ndim
        count = _count(self.amount, t.shape[dim])
        if not count:
            return default_mask
        _, best = ops.topk(self._scores(t), t.shape[dim] - count, largest=True)
        channel = ops.index_fill(ops.zeros_like(t), dim, best, 1.0)
        out: Tensor = channel.to(default_mask.dtype) * default_mask
        return out


class RandomStructured(_Structured):
    """`amount` slices of dimension `dim` at random, a number or a share.

    >>> nn.utils.prune.RandomStructured(amount=1, dim=0).prune(flow.ones(3, 2)).sum()
    tensor(4.)
    """

    def __init__(self, amount: float, dim: int = -1) -> None:
        _count(amount, 1 << 62)
        self.amount, self.dim = amount, dim

    def _scores(self, t: Tensor) -> Tensor:
        out: Tensor = ops.rand(t.shape[self.dim], device=t.device)
        return out


class LnStructured(_Structured):
    """The `amount` slices of dimension `dim` of least n-norm, a number or a share.

    >>> x = flow.tensor([[3.0, 4.0], [1.0, 1.0]])
    >>> nn.utils.prune.LnStructured(amount=1, n=2, dim=0).prune(x)
    tensor([[3., 4.],
            [0., 0.]])
    """

    def __init__(self, amount: float, n: float, dim: int = -1) -> None:
        _count(amount, 1 << 62)
        self.amount, self.n, self.dim = amount, n, dim

    def _scores(self, t: Tensor) -> Tensor:
        dim = self.dim % t.ndim
        others = tuple(d for d in range(t.ndim) if d != dim)
        out: Tensor = ops.norm(t, self.n, others)
        return out


class CustomFromMask(BasePruningMethod):
    """Pruning by a given mask.

    >>> mask = flow.tensor([1.0, 0.0])
    >>> nn.utils.prune.CustomFromMask(mask).prune(flow.tensor([3.0, 4.0]))
    tensor([3., 0.])
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """See BasePruningMethod."""
        out: Tensor = default_mask * self.mask.to(default_mask.dtype)
        return out


def identity(module: Module, name: str) -> Module:
    """Give `module.<name>` a mask of ones.

    >>> layer = nn.utils.prune.identity(nn.Linear(2, 1), "weight")
    >>> layer.weight_mask
    tensor([[1., 1.]])
    """
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune `amount` elements at random, a number or a share of what is left.

    >>> layer = nn.utils.prune.random_unstructured(nn.Linear(2, 3), "weight", 2)
    >>> int((layer.weight == 0).sum())
    2
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: float, importance_scores: Tensor | None = None
) -> Module:
    """Prune the `amount` elements of least size, or of least score.

    >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(2, 3), "weight", 0.5)
    >>> int((layer.weight == 0).sum())
    3
    """
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune `amount` slices of dimension `dim` at random.

    >>> layer = nn.utils.prune.random_structured(nn.Linear(2, 3), "weight", 1, dim=1)
    >>> int((layer.weight == 0).all(0).sum())  # a column
    1
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: float, dim: int,
    importance_scores: Tensor | None = None,
) -> Module:  # fmt: skip
    """Prune the `amount` slices of dimension `dim` of least n-norm.

    >>> layer = nn.utils.prune.ln_structured(nn.Linear(2, 3), "weight", 1, n=2, dim=0)
    >>> int((layer.weight == 0).all(1).sum())  # a row
    1
    """
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune what `mask` has 0 for.

    >>> layer = nn.Linear(2, 1)
    >>> _ = nn.utils.prune.custom_from_mask(layer, "weight", flow.tensor([[1.0, 0.0]]))
    >>> layer.weight[0, 1].item()
    0.0
    """
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: object,
) -> None:
    """Prune several parameters as if they were one: `parameters` are (module, name).

    >>> first, second = nn.Linear(2, 3), nn.Linear(3, 2)
    >>> nn.utils.prune.global_unstructured(
    ...     [(first, "weight"), (second, "weight")], nn.utils.prune.L1Unstructured, amount=4)
    >>> int((first.weight == 0).sum() + (second.weight == 0).sum())
    4
    """
    places = list(parameters)
    scores = importance_scores or {}
    if getattr(pruning_method, "PRUNING_TYPE", "") != "unstructured":
        raise ArgumentTypeError(
            f"global_unstructured takes an unstructured method, got {pruning_method.__name__}"
        )
    tensors = [scores.get(place, getattr(*place)) for place in places]
    flat = ops.cat([t.detach().reshape(-1) for t in tensors])
    masks = [
        getattr(module, f"{name}_mask", ops.ones_like(getattr(module, name).detach()))
        for module, name in places
    ]
    default = ops.cat([mask.reshape(-1) for mask in masks])
    container = PruningContainer()
    container._tensor_name = "temp"
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    container.add_pruning_method(method)
    final = container.compute_mask(flat, default)
    start = 0
    for (module, name), tensor in zip(places, tensors, strict=True):
        end = start + tensor.numel()
        custom_from_mask(module, name, final[start:end].reshape(tensor.shape))
        start = end


def remove(module: Module, name: str) -> Module:
    """Make `module.<name>` a parameter again, pruned for good.

    >>> layer = nn.utils.prune.l1_unstructured(nn.Linear(2, 3), "weight", 2)
    >>> _ = nn.utils.prune.remove(layer, "weight")
    >>> list(layer.state_dict()), int((layer.weight == 0).sum())
    (['bias', 'weight'], 2)
    """
    hook_entry = _method_of(module, name)
    if hook_entry is None:
        raise ArgumentError(f"{name!r} of this {type(module).__name__} is not pruned")
    key, method = hook_entry
    method.remove(module)
    del module._forward_pre_hooks[key]
    return module


def is_pruned(module: Module) -> bool:
    """Return True if a parameter of `module`, or of a module in it, is pruned.

    >>> layer = nn.Linear(2, 1)
    >>> nn.utils.prune.is_pruned(layer)
    False
    >>> nn.utils.prune.is_pruned(nn.utils.prune.identity(layer, "weight"))
    True
    """
    return any(
        isinstance(hook, BasePruningMethod)
        for part in module.modules()
        for hook in part._forward_pre_hooks.values()
    )


__all__ = own_names(globals())
