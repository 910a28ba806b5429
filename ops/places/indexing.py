"""`x[index]` and `x[index] = value`, for every index that NumPy and PyTorch take.

An index is first written out: one item for each dimension, which makes a view, and the tensors that
index dimensions of that view.  These count as one list of positions in the indexed dimensions taken
together; what they pick stands where those dimensions stood if they are neighbours, else in front.
A boolean tensor is the list of its true positions in the dimensions that it covers.  An int next to
tensors is a selection, as in PyTorch.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widest
from flowvm.eager.interpreter import call_into
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.eager.values import adopt_array
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    IndexTypeError,
    OutOfRangeError,
    ShapeError,
)
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import base_device
from flowvm.meta.device import cpu
from flowvm.meta.dtype import bool_, int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, need_tensor
from flowvm.ops.declare.core import _copy, cast, sum_to
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import Sample, broadcast_shapes, op, samples
from flowvm.ops.declare.transfers import moved
from flowvm.ops.places.counts import true_positions
from flowvm.ops.places.cpu.index_kernels import Joined
from flowvm.ops.places.gather import ADD, NONE, combine_slices, put_slices, take_slices
from flowvm.ops.places.masks import masked_fill_, masked_select
from flowvm.ops.places.scatter import apart, changed, fresh, number_tensor
from flowvm.ops.shapes.padding import flip
from flowvm.ops.shapes.slices import _basic_geometry, _select, _slice, basic_view
from flowvm.ops.shapes.views import expand, permute, reshape
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.dtype import DType


# --- writing an index out -----------------------------------------------------------------------


def keys_of(key: object) -> tuple[Any, ...]:
    """Return the keys of a subscript: the items of a tuple, or the whole.

    As in PyTorch, a short list with more than numbers and bools is taken for a tuple.
    """
    if isinstance(key, tuple):
        return key
    if isinstance(key, list) and len(key) < MOST_KEYS and any(map(_is_key, key)):
        return tuple(key)
    return (key,)


def _is_key(item: object) -> bool:
    return item is None or item is Ellipsis or isinstance(item, _KEYS)


_KEYS = (Tensor, slice, list, tuple, range, np.ndarray)
MOST_KEYS = 32  # a longer list is an index, whatever it holds: PyTorch's


def _sliced(key: slice, size: int) -> tuple[int, int, int]:
    """(start, length, step) of a slice of a dimension of `size`."""
    try:
        if key.step is not None and operator.index(key.step) == 0:
            raise ArgumentError("a slice's step must not be 0")
        start, stop, step = key.indices(size)
    except TypeError:
        raise ArgumentTypeError(f"a slice is made of integers, got {key}") from None
    return start, len(range(start, stop, step)), step


def _forwards(x: Tensor, key: object) -> tuple[object, tuple[int, ...]]:
    """Return a key without negative steps, and the dimensions of its result to reverse.

    Slices with negative steps go the other way over the same elements.  Steps like these are the
    array API's; PyTorch has none.
    """
    keys = keys_of(key)
    for k in keys:  # no comprehension: most keys come here, and none of their steps is negative
        if type(k) is slice and k.step is not None and _negative(k.step):
            break
    else:
        return key, ()
    if any(isinstance(k, (Tensor, list, tuple, np.ndarray, bool, np.bool_)) for k in keys):
        raise ArgumentError(
            "a slice with a negative step does not stand beside tensors, lists or arrays; index "
            "twice, or flow.flip(x, dim) first"
        )
    dots = keys.index(...) if any(k is Ellipsis for k in keys) else len(keys)
    behind = sum(k is not None for k in keys[dots + 1 :])
    forwards = []
    turned: list[int] = []
    d = shown = 0
    for place, k in enumerate(keys):
        if k is Ellipsis and place == dots:
            shown, d = shown + x.ndim - behind - d, x.ndim - behind
        elif type(k) is slice and d < x.ndim:
            start, length, step = _sliced(k, x.shape[d])
            if step < 0:
                k = slice(start + (length - 1) * step, start + 1, -step) if length else slice(0)
                turned.append(shown)
            d, shown = d + 1, shown + 1
        elif k is None:
            shown += 1
        else:
            d += 1
        forwards.append(k)
    return tuple(forwards), tuple(turned)


def _negative(step: Any) -> bool:
    try:
        return operator.index(step) < 0
    except TypeError:
        return False  # an error, which `_sliced` raises


@dataclass(frozen=True)
class _Plan:
    """An index without its tensors: `items` make a view, whose dimensions [first, last) in the
    order `order` are indexed.
    """

    items: tuple[Any, ...]
    order: tuple[int, ...] | None  # None: the indexed dimensions are neighbours already
    first: int
    last: int


@dataclass(frozen=True)
class _Advanced:
    """A tensor among the keys: it indexes `count` dimensions of the view from `at` on."""

    at: int
    count: int
    index: Tensor


def _as_index(key: object) -> Any:
    """Lists and arrays as tensors; 0-d integer arrays and NumPy's numbers as Python's.  Tensors of
    uint8 are masks, as in PyTorch, which warns of it.
    """
    if isinstance(key, Tensor):
        if key._meta.dtype is uint8:
            warnings.warn(
                "indexing with uint8 takes the tensor for a mask; write .to(flow.bool), or "
                ".to(flow.int64) for places",
                stacklevel=4,
            )
            return key.to(bool_)
        return key
    if isinstance(key, (np.bool_, np.integer)):
        return key.item()
    if isinstance(key, (list, tuple, range, np.ndarray)):  # a tuple inside of the key's own
        array = np.array(key)
        if array.size == 0 and isinstance(key, (list, tuple)):
            array = array.astype(np.int64)
        if array.dtype.kind not in "iub":
            raise DTypeError(f"an index holds integers or bools, got an array of {array.dtype}")
        return adopt_array(array if array.dtype.kind == "b" else array.astype(np.int64))
    return key


def _beside(key: Tensor, meta: TensorMeta) -> Tensor:
    """Return an index on the tensor's device; an index on the CPU may index any device's tensor."""
    own, other = base_device(key._meta.device), base_device(meta.device)
    if own is not cpu and own is not other:
        raise DeviceError(
            f"an index is on the CPU or beside what it indexes: this one is on {key.device}, and "
            f"the tensor on {meta.device}"
        )
    return moved(key, meta.device)


def _consumed(key: object) -> int:
    """The dimensions of the tensor that a key uses up."""
    if key is None or key is Ellipsis or isinstance(key, bool):
        return 0
    if isinstance(key, Tensor) and key._meta.dtype is bool_:
        return key._meta.ndim
    return 1


def _written_out(meta: TensorMeta, key: Any) -> tuple[tuple[Any, ...], list[_Advanced]]:
    """The items of the basic view, and the tensors that index it."""
    keys = [_as_index(k) for k in keys_of(key)]
    used = sum(map(_consumed, keys))
    if used > meta.ndim:
        raise OutOfRangeError(
            f"too many indices: {used} for a {meta.ndim}-d tensor of shape {tuple(meta.shape)}"
        )
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise OutOfRangeError("an index can have one Ellipsis ('...')")
    whole = [slice(None)] * (meta.ndim - used)
    at = dots[0] if dots else len(keys)
    keys = [*keys[:at], *whole, *keys[at + 1 :]]
    items: list[Any] = []
    advanced: list[_Advanced] = []
    d = shown = 0  # the next dimension of the tensor, and of the view
    for k in keys:
        if k is None:
            items.append(None)
            shown += 1
        elif isinstance(k, bool) or (
            isinstance(k, Tensor) and k._meta.dtype is bool_ and not k.ndim
        ):
            mask = k.reshape(1) if isinstance(k, Tensor) else adopt_array(np.array([k]))
            items.append(None)
            advanced.append(_Advanced(shown, 1, _beside(true_positions(mask), meta)))
            shown += 1
        elif isinstance(k, slice):
            items.append(_sliced(k, meta.shape[d]))
            d, shown = d + 1, shown + 1
        elif isinstance(k, Tensor):
            count = _consumed(k)
            items += [(0, n, 1) for n in meta.shape[d : d + count]]
            advanced.append(_Advanced(shown, count, _beside(_position_list(k, meta, d), meta)))
            d, shown = d + count, shown + count
        else:
            items.append(_single(k, meta.shape[d], d))
            d += 1
    return tuple(items), advanced


def _single(key: Any, size: int, d: int) -> int:
    try:
        k = operator.index(key)
    except TypeError:
        raise IndexTypeError(
            "an index is made of ints, slices, None, ..., tensors, arrays and lists; got "
            f"{type(key).__name__} ({key!r})"
        ) from None
    if not -size <= k < size:
        raise OutOfRangeError(f"index {k} is out of bounds for dimension {d} with size {size}")
    return k + size if k < 0 else k


def _position_list(key: Tensor, meta: TensorMeta, d: int) -> Tensor:
    """A tensor key as int64 positions."""
    dtype = key._meta.dtype
    if dtype is bool_:
        covered = tuple(meta.shape[d : d + key._meta.ndim])
        if tuple(key._meta.shape) != covered:
            raise OutOfRangeError(
                f"a mask of shape {tuple(key.shape)} does not fit dimensions {d} to "
                f"{d + key.ndim - 1} of shape "
                f"{tuple(meta.shape)}"
            )
        return true_positions(key)
    if dtype.inexact:
        raise IndexTypeError(f"an index tensor holds integers or bools, got {dtype.name}")
    return key if dtype is int64 else cast(key, int64)


def _joined_body(
    out: Array, a: Array, b: Array, s: Joined, lo: int, hi: int, details: Array
) -> int:
    na, nb = s.na, s.nb
    for i in range(lo, hi):
        p, q = a[i], b[i]
        if p < -na or p >= na:
            details[0], details[1], details[2] = p, na, s.da
            return 1  # Status.INDEX_OUT_OF_RANGE
        if q < -nb or q >= nb:
            details[0], details[1], details[2] = q, nb, s.db
            return 1
        out[i] = (p + na if p < 0 else p) * nb + (q + nb if q < 0 else q)
    return 0


@op("a, b -> out", name="join_positions", cuda="indexing:join", letters=unsplit)
def _join_positions(a: TensorMeta, b: TensorMeta, na: Count, nb: Count, da: int, db: int) -> Launch:
    """Positions in two dimensions of sizes na and nb as positions in the two taken together."""
    n, consts = a.numel, (Joined(na, nb, da, db),)
    return Launch((a.dense(),), _joined_body, (View(int64, (n,)),) * 3, consts, n, 1 << 14)


def _planned(meta: TensorMeta, key: Any) -> tuple[_Plan, Tensor | None, int]:
    """The plan of a key, its positions (None: the key is basic), and the dimension to name in
    errors.
    """
    items, advanced = _written_out(meta, key)
    if not advanced:
        return _Plan(items, None, 0, 0), None, 0
    view, _ = _basic_geometry(meta, items)
    dims = [d for a in advanced for d in range(a.at, a.at + a.count)]
    first, last, order = dims[0], dims[-1] + 1, None
    if dims != list(range(first, last)):
        order = (*dims, *(d for d in range(view.ndim) if d not in dims))
        first, last = 0, len(dims)
    parts = [a.index for a in advanced]
    sizes = [math.prod(view.shape[a.at : a.at + a.count]) for a in advanced]
    positions, size = parts[0], sizes[0]
    if len(parts) > 1:
        try:
            shape = broadcast_shapes(*(p._meta.shape for p in parts))
        except ShapeError as error:
            raise OutOfRangeError(f"index tensors do not broadcast: {error}") from None
        positions = expand(parts[0], shape)
        for a, part, n in zip(advanced[1:], parts[1:], sizes[1:], strict=True):
            positions = _join_positions(
                positions, expand(part, shape), size, n, advanced[0].at, a.at
            )
            size *= n
    return _Plan(items, order, first, last), positions, advanced[0].at


def _arranged(x: Tensor, plan: _Plan) -> Tensor:
    """The view of a plan with its indexed dimensions made one; a copy where no view shows that."""
    view = basic_view(x, plan.items)
    if plan.order is not None:
        view = permute(view, plan.order)
    if plan.last - plan.first != 1:
        shape = view._meta.shape
        size = math.prod(shape[plan.first : plan.last])
        view = reshape(view, (*shape[: plan.first], size, *shape[plan.last :]))
    return view


# --- reading ------------------------------------------------------------------------------------


@steady
def getitem(x: Tensor, key: object) -> Tensor:
    """`x[key]`: a view for ints, slices, None and Ellipsis; a copy where tensors, lists or arrays
    index, and where a slice goes backwards.
    """
    if type(key) is int:
        return _select(x, 0, key)
    if type(key) is slice and x._meta.ndim:
        start, length, step = _sliced(key, x._meta.shape[0])
        if step > 0:
            return _slice(x, 0, start, length, step)
    if type(key) in (slice, tuple):
        key, turned = _forwards(x, key)
        if turned:
            reversed_copy: Tensor = flip(getitem(x, key), turned)
            return reversed_copy
    if isinstance(key, np.ndarray) and key.dtype == np.bool_:
        key = adopt_array(key.copy())
    if (
        isinstance(key, Tensor)
        and key._meta.dtype is bool_
        and key._meta.shape == x._meta.shape
        and key.ndim
    ):
        return masked_select(x, _beside(key, x._meta))
    plan, positions, shown = _planned(x._meta, key)
    if positions is None:
        return basic_view(x, plan.items)
    return _picked(x, plan, positions, shown)


def _picked(x: Tensor, plan: _Plan, positions: Tensor, shown: int) -> Tensor:
    view = _arranged(x, plan)
    size = view._meta.shape[plan.first]
    out: Tensor = take_slices(view, positions, plan.first, -size, shown, NONE, NONE)
    return out


# --- writing ------------------------------------------------------------------------------------


def _setitem_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    plan, shown, accumulate = c.attrs
    positions = c.saved[0] if c.saved else None
    gx: Tensor | None = g
    if not accumulate:
        gx = (
            _assigned(fresh, g, plan, positions, shown, number_tensor(g, 0), False)
            if c.needs[0]
            else None
        )
    gv = None
    if c.needs[1]:
        picked = (
            basic_view(g, plan.items) if positions is None else _picked(g, plan, positions, shown)
        )
        gv = _cut(picked, c.metas[1])
    return gx, gv, *([None] if c.saved else [])


def _cut(picked: Tensor, meta: TensorMeta) -> Tensor:
    """The gradient of a value that was broadcast, perhaps after losing dimensions of size 1 in
    front.
    """
    extra = max(0, meta.ndim - picked._meta.ndim)
    summed = sum_to(picked, meta.with_shape(meta.shape[extra:]).shape)
    return cast(reshape(summed, meta.shape), meta.dtype)


_assign_op = Recorded("setitem", _setitem_grad, ("x", "value"))
_assign_at_op = Recorded("setitem", _setitem_grad, ("x", "value", "positions"), "positions")


def _fitted(value: Tensor, shape: Sequence[int], dtype: DType) -> Tensor:
    """The value an assignment writes: outside the graph, of this dtype, and of this shape or one
    element.
    """
    own = value._meta.shape
    extra = max(0, len(own) - len(shape))
    if any(d != 1 for d in own[:extra]) or not _broadcasts(own[extra:], shape):
        raise ShapeError(
            f"a value of shape {tuple(own)} does not broadcast to the indexed part of shape "
            f"{tuple(shape)}"
        )
    if value._meta.dtype is not dtype:
        value = cast(value, dtype)
    if value._meta.numel == 1:
        return value
    if extra:
        value = reshape(value, own[extra:])
    return expand(value, shape)


def _broadcasts(own: Sequence[int], shape: Sequence[int]) -> bool:
    return all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))


def _assigned(
    apply: Any,
    x: Tensor,
    plan: _Plan,
    positions: Tensor | None,
    shown: int,
    value: Tensor,
    accumulate: bool,
) -> Tensor:
    """`x` (or a copy, as `apply` has it) with `value` written or added where the plan says."""
    meta, _ = _basic_geometry(x._meta, plan.items)
    plain = apart(x, value)
    if positions is None:
        source = _fitted(plain, meta.shape, meta.dtype)
        if source.numel() == 1:
            source = reshape(source, ())

        def write(out: Tensor) -> None:
            at, start = _basic_geometry(out._meta, plan.items)
            if at.numel:
                call_into(_copy, (alias(out, at, start * at.dtype.itemsize),), (source,))
            out.bump()

        result: Tensor = apply(_assign_op, x, (value,), (plan, shown, accumulate), write)
        return result
    shape = meta.shape if plan.order is None else tuple(meta.shape[d] for d in plan.order)
    before, after = shape[: plan.first], shape[plan.last :]
    size = math.prod(shape[plan.first : plan.last])
    target_shape = (*before, *positions._meta.shape, *after)
    picks = _fitted(plain, target_shape, meta.dtype)
    where = positions

    def write_at(out: Tensor) -> None:
        target = alias(out, *_bytes(out, plan))
        if plan.order is not None:
            target = permute(target, plan.order)
        merged = target
        if plan.last - plan.first != 1:
            merged = reshape(target, (*before, size, *after))
        if accumulate:
            combine_slices(merged, where, picks, plan.first, -size, shown, NONE, ADD)
        else:
            put_slices(merged, where, picks, plan.first, -size, shown)
        if merged.storage() is not target.storage():  # no view shows these dimensions as one
            target.copy_(reshape(merged, target._meta.shape))

    attrs = (plan, shown, accumulate)
    changed_at: Tensor = apply(_assign_at_op, x, (value, positions), attrs, write_at)
    return changed_at


def _bytes(out: Tensor, plan: _Plan) -> tuple[TensorMeta, int]:
    meta, offset = _basic_geometry(out._meta, plan.items)
    return meta, offset * meta.dtype.itemsize


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """`x[key] = value`: a tensor that broadcasts to the indexed part, a number, an array or a list;
    converted to `x`'s dtype.  Of several values for one element the last stays.

    Gradients flow to `value` and to what `x` was before.
    """
    if isinstance(key, np.ndarray) and key.dtype == np.bool_:
        key = adopt_array(key.copy())
    masks = isinstance(key, Tensor) and key._meta.dtype is bool_ and 0 < key.ndim <= x.ndim
    if isinstance(value, (np.ndarray, list, tuple)):
        kind = x._meta.dtype
        value = adopt_array(kind.stored(np.array(value)), dtype=kind)
    elif not isinstance(value, Tensor):
        value = number_tensor(x, _number(value))
    value = moved(value, x._meta.device)
    if type(key) in (slice, tuple):
        key, turned = _forwards(x, key)
        if turned:
            shape = _basic_geometry(x._meta, _written_out(x._meta, key)[0])[0].shape
            value = flip(_fitted(value, shape, x._meta.dtype).expand(shape), turned)
    if masks and value._meta.ndim == 0 and key._meta.shape == x._meta.shape[: key.ndim]:
        mask = reshape(_beside(key, x._meta), (*key.shape, *([1] * (x.ndim - key.ndim))))
        masked_fill_(x, mask, value.to(x._meta.dtype))
        return
    plan, positions, shown = _planned(x._meta, key)
    _assigned(changed, x, plan, positions, shown, value, False)


def _number(value: Tensor | float) -> int | float | complex:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float, complex)):
        raise ArgumentTypeError(
            f"cannot assign a {type(value).__name__} ({value!r}) to a tensor's elements"
        )
    return value


method("__getitem__")(getitem)
method("__setitem__")(setitem)


def _index_put(
    apply: object, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    need_tensor("index_put", "input", x)
    need_tensor("index_put", "values", values)
    if values._meta.dtype is not x._meta.dtype:
        raise DTypeError(
            f"index_put: values are {values.dtype.name} and the tensor {x.dtype.name}; they must "
            "be equal"
        )
    key = tuple(slice(None) if i is None else i for i in indices)
    plan, positions, shown = _planned(x._meta, key)
    if positions is None:
        raise ArgumentError("index_put: needs at least one index tensor")
    return _assigned(apply, x, plan, positions, shown, values, accumulate)


# public: flow
@method()
def index_put(
    input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy of `input` with `values` written at `indices`, a tuple of index tensors (None: the
    whole dimension).

    accumulate   add the values instead; those for one element add up

    >>> rows, columns = flow.tensor([0, 1]), flow.tensor([1, 0])
    >>> flow.index_put(flow.zeros(2, 2), (rows, columns), flow.tensor(7.0))
    tensor([[0., 7.],
            [7., 0.]])
    """
    if hot["autocast"]:
        input, values = widest(input, values)
    return _index_put(fresh, input, indices, values, accumulate)


@method()
def index_put_(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`index_put` in place."""
    return _index_put(changed, x, indices, values, accumulate)


# --- samples; tests/ops/places/test_indexing.py has indexing itself
# ------------------------------------


def _numpy_put(x: Array, indices: Array, values: Array, accumulate: bool = False) -> Array:
    out = np.array(x)
    key = tuple(slice(None) if i is None else i for i in indices)
    if accumulate:
        np.add.at(out, key, values)  # type: ignore[arg-type]
    else:
        out[key] = values
    return out


samples(
    index_put,
    lambda rng: [
        Sample((rng.standard_normal((3, 2)), (np.array([2, 0]),), rng.standard_normal((2, 2)))),
        Sample(
            (
                rng.standard_normal((3, 2)),
                (np.array([2, 0, 2]), np.array([1, -1, 1])),
                rng.standard_normal(3),
                True,
            )
        ),
        Sample(
            (
                rng.standard_normal((2, 3)),
                (None, np.array([1, 1])),
                rng.standard_normal((2, 1)),
                True,
            )
        ),
        Sample((rng.standard_normal(3), (np.array([True, False, True]),), np.array(0.5))),
    ],
    _numpy_put,
    errors=(
        (
            lambda flow: flow.index_put(flow.ones(2), (flow.tensor([2]),), flow.ones(1)).numpy(),
            IndexError,
        ),
        (
            lambda flow: flow.index_put(flow.ones(2), (flow.tensor([0]),), flow.ones(3)),
            RuntimeError,
        ),
        (lambda flow: flow.index_put(flow.ones(2), (None,), flow.ones(2)), ValueError),
    ),
)
