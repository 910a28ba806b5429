"""The Tensor: a meta, a place in a storage, and a place in the autograd graph.

A tensor names its storage by an id in the VM and never holds an address: memory appears when the
instruction that writes it runs. Most tensors are the only one on their storage and own it directly;
the first view, alias or detach makes a `Storage` that all of them share; so does the first in-place
change, which it counts.  When the last owner goes, `__del__` leaves the id in a list that the next
issue turns into a ReleaseTensor (it may run anywhere, so it must not issue).

This module has what a tensor *is*.  Arithmetic, indexing and the other methods are attached by
`flowvm.ops`, and `backward` by `flowvm.autograd`; reading values is `flowvm.eager.values`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import compress, count, repeat, starmap
from operator import call, is_not, setitem
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.errors import ArgumentTypeError, AutogradError, MissingNameError
from flowvm.guards.exchange import exchange, first_of
from flowvm.meta.batched_meta import base_device
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType
from flowvm.meta.formats import channels_last, channels_last_3d, contiguous_format, preserve_format
from flowvm.meta.meta import Size, TensorMeta, dense_stride
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.engine.persistent import HOLDERS, Holder
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.eager.tensor_methods import TensorMethods

    class Attached(TensorMethods["Tensor"]):
        """The methods that other rooms attach."""

else:
    Attached = object

_dead = hot["dead"].append  # a list; appending is atomic


class Storage:
    """Memory that several tensors share, and the count of in-place changes to it."""

    __slots__ = ("id", "version")

    id: int  # unset while it owns nothing yet
    version: int

    def __init__(self, id: int, version: int) -> None:
        self.version = version
        self.id = id

    @protected
    def __del__(self) -> None:
        try:  # noqa: SIM105 - a context manager would cost more than all of it
            _dead(self.id)
        except AttributeError:
            pass

    def __reduce__(self) -> Any:  # a second owner would free the memory a second time
        raise ArgumentTypeError("a Storage can be neither copied nor pickled; copy the tensor")


class Fields(Attached):
    """Fields of a Tensor: these slots alone are read and set in C, without `__getattr__`."""

    # _ref      storage id | byte offset << OPERAND.STORAGE_BITS: the operand word of instructions
    # _meta     TensorMeta; unset while a mut2 op has not run: reading it waits (see __getattr__)
    # _node     None, or where its gradient goes: the Node that made it, or a leaf's accumulator
    # _storage  the Storage, or None: the tensor itself owns storage `_ref` (offset 0), unshared and
    #           never changed
    # _kin      of a view: the tensor that it is a view of; of that one: a list of weak references
    #           to its views; unset for all others
    # __dict__  attributes that users have set, of one tensor: what is made of it has none of them
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_extra",
        "_kin",
        "_meta",
        "_node",
        "_pending",
        "_ref",
        "_storage",
    )

    _ref: int
    _meta: TensorMeta
    _node: Any
    _storage: Storage | None
    _pending: Callable[[], TensorMeta]
    _extra: dict[str, Any]
    _kin: Any


_storage_of: Callable[[object], object] = Fields.__dict__["_storage"].__get__
_set_storage: Callable[..., None] = Fields.__dict__["_storage"].__set__
_set_ref: Callable[..., None] = Fields.__dict__["_ref"].__set__
_set_meta: Callable[..., None] = Fields.__dict__["_meta"].__set__
_set_id: Callable[..., None] = Storage.__dict__["id"].__set__


MOST_LACKED = 256
# names that tensors lack and protocols ask for, with what is said of them
lacked: dict[str, str] = {name: name for name in ("_pending", "_extra", "_kin")}


# called with a tensor whose `.grad` is read, while code is captured on some thread
on_grad_read: list[Callable[[object], None]] = []


class Tensor(Fields):
    """A multi-dimensional array whose values the VM computes; PyTorch's meaning throughout.

    Made by `flow.tensor`, `flow.zeros`, ... and by ops; what a call of the class means is in
    `flowvm.ops.shapes.tensor_classes`.

    >>> x = flow.Tensor([[1, 2], [3, 4]])
    >>> x.dtype, x.shape, x @ x
    (flow.float32, flow.Size([2, 2]), tensor([[ 7., 10.],
            [15., 22.]]))
    """

    __slots__ = ()

    @protected
    def __del__(self) -> None:
        try:
            # without `__getattr__`, whose first call makes Tensors that die before they are whole
            if object.__getattribute__(self, "_storage") is None:
                _dead(self._ref)
        except (AttributeError, TypeError):
            pass  # interrupted before it was whole: it owns nothing yet; or Python ends: no `_dead`

    @border
    def __getattr__(self, name: str) -> Any:
        if name == "_meta":
            pending = self._pending  # of a mut2 op: its shape is known only now
            meta = pending()
            self._meta = meta
            return meta
        if name in ("_pending", "_extra", "_kin"):
            raise AttributeError(name)
        if name.startswith("_"):  # asked for by protocols, and often: no search
            message = f"a {type(self).__name__} has no attribute {name!r}"
            if type(self) is Tensor and len(lacked) < MOST_LACKED:
                lacked[name] = message
            raise AttributeError(message)
        kind = type(self)
        raise MissingNameError(
            f"a {kind.__name__} has no attribute {name!r}",
            name,
            lambda: [n for n in dir(kind) if n[0] != "_"],
        )

    # --- what it looks like -------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The dimensions.

        >>> flow.ones(2, 3).shape
        flow.Size([2, 3])
        """
        try:
            return self._meta.shape
        except AttributeError as error:
            raise refused("shape", self, error) from None

    @property
    def dtype(self) -> DType:
        """The element type.

        >>> flow.ones(2).dtype
        flow.float32
        """
        try:
            return self._meta.dtype
        except AttributeError as error:
            raise refused("dtype", self, error) from None

    @property
    def device(self) -> Device:
        """The device of the tensor's memory.

        >>> flow.ones(2).device.type
        'cpu'
        """
        try:
            return base_device(self._meta.device)
        except AttributeError as error:
            raise refused("device", self, error) from None

    @property
    def ndim(self) -> int:
        """The number of dimensions.

        >>> flow.ones(2, 3).ndim
        2
        """
        try:
            return self._meta.ndim
        except AttributeError as error:
            raise refused("ndim", self, error) from None

    @property
    def itemsize(self) -> int:
        """Bytes of an element.

        >>> flow.ones(2, dtype=flow.float64).itemsize
        8
        """
        try:
            return self._meta.dtype.itemsize
        except AttributeError as error:
            raise refused("itemsize", self, error) from None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> flow.ones(2, 3).nbytes
        24
        """
        try:
            return self._meta.nbytes
        except AttributeError as error:
            raise refused("nbytes", self, error) from None

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one dimension of it.

        >>> flow.ones(2, 3).size(), flow.ones(2, 3).size(1)
        (flow.Size([2, 3]), 3)
        """
        try:
            return self._meta.shape if dim is None else self._meta.shape[dim]
        except AttributeError as error:
            raise refused("size", self, error) from None

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements, or one of them.

        >>> flow.ones(2, 3).stride(), flow.ones(2, 3).stride(0)
        ((3, 1), 3)
        """
        try:
            return self._meta.stride if dim is None else self._meta.stride[dim]
        except AttributeError as error:
            raise refused("stride", self, error) from None

    def dim(self) -> int:
        """The number of dimensions.

        >>> flow.ones(2, 3).dim()
        2
        """
        try:
            return self._meta.ndim
        except AttributeError as error:
            raise refused("dim", self, error) from None

    def numel(self) -> int:
        """The number of elements.

        >>> flow.ones(2, 3).nelement()
        6
        """
        try:
            return self._meta.numel
        except AttributeError as error:
            raise refused("numel", self, error) from None

    nelement = numel

    def element_size(self) -> int:
        """Bytes of an element.

        >>> flow.ones(2, dtype=flow.float64).element_size()
        8
        """
        try:
            return self._meta.dtype.itemsize
        except AttributeError as error:
            raise refused("element_size", self, error) from None

    def storage_offset(self) -> int:
        """Elements before the first one, in its storage.

        >>> flow.arange(6)[2:].storage_offset()
        2
        """
        try:
            return (self._ref >> OPERAND.STORAGE_BITS) // self._meta.dtype.itemsize
        except AttributeError as error:
            raise refused("storage_offset", self, error) from None

    def is_contiguous(self, memory_format: object = None) -> bool:
        """Return True if the elements lie in the order of `memory_format`, C's by default, without
        gaps.

        >>> flow.ones(2, 3).is_contiguous(), flow.ones(2, 3).t().is_contiguous()
        (True, False)
        """
        try:
            if memory_format in (None, contiguous_format, preserve_format):
                return self._meta.contiguous
            last = channels_last if self._meta.ndim == 4 else channels_last_3d
            if memory_format is not last or self._meta.ndim not in (4, 5):
                return False
            order = (0, *range(2, self._meta.ndim), 1)
            shape, stride = self._meta.shape, self._meta.stride
            dense = dense_stride([shape[d] for d in order])
            return all(stride[d] == s for d, s in zip(order, dense, strict=True) if shape[d] != 1)
        except AttributeError as error:
            raise refused("is_contiguous", self, error) from None

    def is_floating_point(self) -> bool:
        """Return True if the dtype is a floating point one.

        >>> flow.tensor(1.0).is_floating_point(), flow.tensor(1).is_floating_point()
        (True, False)
        """
        try:
            return self._meta.dtype.is_floating_point
        except AttributeError as error:
            raise refused("is_floating_point", self, error) from None

    @property
    def is_cuda(self) -> bool:
        """True if the tensor lives on a GPU.

        >>> flow.ones(2).is_cuda
        False
        """
        try:
            return self._meta.device.type == "cuda"
        except AttributeError as error:
            raise refused("is_cuda", self, error) from None

    @property
    def is_meta(self) -> bool:
        """True if the tensor is on the meta device: it has a shape, and no values.

        >>> flow.ones(2, device="meta").is_meta, flow.ones(2).is_meta
        (True, False)
        """
        try:
            return self._meta.device.type == "meta"
        except AttributeError as error:
            raise refused("is_meta", self, error) from None

    def __len__(self) -> int:
        try:
            if self._meta.ndim == 0:
                raise ArgumentTypeError("len() of a 0-d tensor")
            return self._meta.shape[0]
        except AttributeError as error:
            raise refused("__len__", self, error) from None

    def __iter__(self) -> Iterator[Tensor]:
        try:
            if self._meta.ndim == 0:
                raise ArgumentTypeError("iteration over a 0-d tensor; use .item() for its value")
            return iter(self.unbind(0))
        except AttributeError as error:
            raise refused("__iter__", self, error) from None

    __hash__ = object.__hash__  # by identity; `==` compares elements

    # --- its place in the autograd graph ------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """True if operations on the tensor are recorded for backward.

        >>> x = flow.ones(2, requires_grad=True)
        >>> (x * 2).requires_grad, x.detach().requires_grad
        (True, False)
        """
        try:
            return self._node is not None
        except AttributeError as error:
            raise refused("requires_grad", self, error) from None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation made the tensor.

        >>> x = flow.ones(2, requires_grad=True)
        >>> x.is_leaf, (x * 2).is_leaf
        (True, False)
        """
        try:
            return self._node is None or self._node.is_leaf
        except AttributeError as error:
            raise refused("is_leaf", self, error) from None

    @property
    def grad_fn(self) -> Any:
        """The Node that made it, None for a leaf.

        >>> x = flow.ones(2, requires_grad=True)
        >>> x.grad_fn is None, x * 2
        (True, tensor([2., 2.], grad_fn=<MulBackward>))
        """
        try:
            if self._node is None or self._node.is_leaf:
                return None
            return getattr(self._node, "node", self._node)  # an OutputEdge leads to its node
        except AttributeError as error:
            raise refused("grad_fn", self, error) from None

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` accumulated, or None.

        >>> x = flow.ones(2, requires_grad=True)
        >>> x.grad is None
        True
        >>> (3 * x).sum().backward()
        >>> x.grad
        tensor([3., 3.])
        """
        for hook in on_grad_read:
            hook(self)
        try:
            value: Tensor | None = self._extra.get("grad")
        except AttributeError as error:
            if not isinstance(self, Tensor):
                raise refused("grad", self) from error
            return None
        return value

    @grad.setter
    def grad(self, value: object) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise ArgumentTypeError(f"a gradient is a Tensor or None, got {kind}")
            if value._meta.shape != self._meta.shape:
                raise AutogradError(
                    f"a gradient has its tensor's shape {tuple(self.shape)}, "
                    f"got {tuple(value.shape)}"
                )
        self.extra()["grad"] = value

    def extra(self) -> dict[str, Any]:
        """Facts that few tensors have: gradient, hooks, names.

        >>> flow.ones(2).extra() is not None
        True
        """
        try:
            return self._extra
        except AttributeError as error:
            if not isinstance(self, Tensor):
                raise refused("extra", self) from error
            extra: dict[str, object] = first_of(self, Fields, "_extra", {})
            return extra

    @property
    def version(self) -> int:
        """In-place changes of its storage so far.

        >>> x = flow.ones(2)
        >>> _ = x.add_(1)
        >>> x.version
        1
        """
        try:
            return 0 if self._storage is None else self._storage.version
        except AttributeError as error:
            raise refused("version", self, error) from None

    _version = version

    @property
    def _base(self) -> Tensor | None:
        """The tensor that it is a view of, None if of none."""
        base = base_of(self)
        return None if base is self else base

    def _is_view(self) -> bool:
        """Return True if the tensor is a view of another tensor."""
        return base_of(self) is not self

    def bump(self) -> None:
        """Count an in-place change.

        >>> x = flow.ones(2)
        >>> x.bump()
        >>> x.version
        1
        """
        try:
            self.storage().version += 1
        except AttributeError as error:
            raise refused("bump", self, error) from None

    def storage(self) -> Storage:
        """Return the tensor's Storage, made now if nothing has shared it yet.

        >>> x = flow.ones(2, 3)
        >>> x.storage() is x.t().storage()
        True
        """
        try:
            storage = self._storage
            if storage is None:
                storage = _new(Storage)
                storage.version = 0
                # It becomes the owner, and the tensor stops being one, in one call: a storage with
                # two owners would be released twice, whichever exception or thread came between.
                ours = (_set_storage, (self, storage)), (_set_id, (storage, self._ref))
                exchange(map(_storage_of, (self, self)), (None, storage), ours)
                storage = self._storage
                assert storage is not None
            return storage
        except AttributeError as error:
            raise refused("storage", self, error) from None


_new = object.__new__


def refused(name: str, receiver: Tensor, error: AttributeError | None = None) -> Exception:
    """Return the error of a method that was called on `receiver`: ArgumentTypeError where that is
    no tensor, else the `error` that came.
    """
    if isinstance(receiver, Tensor) and error is not None:
        return error
    return ArgumentTypeError(
        f"Tensor.{name} needs a Tensor, got {type(receiver).__name__} ({receiver!r:.40}); make one "
        f"with flow.tensor(...)"
    )


def new_tensor(
    ref: int, meta: TensorMeta, storage: Storage | None = None, cls: type[Tensor] = Tensor
) -> Tensor:
    """A tensor at operand word `ref`; it owns the storage unless one is given."""
    t = _new(cls)
    t._storage = storage
    t._ref = ref
    t._meta = meta
    t._node = None
    return t


renewals = ctypes.c_int64()  # the number of the last renewal, for native calls
_numbers = count(1)


def renew(x: Tensor, storage: Storage, ref: int, meta: TensorMeta) -> None:
    """Give a tensor that others may have another place and another meta.

    A call looks at its tensors' metas, and later, when others may have run, at their places.  So it
    asks, too, if something was renewed in between, here or on another thread: then `hot["renewed"]`
    is another object, and `renewals` has another number.  All of it is one call of C, in which
    CPython neither changes threads nor runs signal handlers.
    """
    settings: tuple[tuple[object, ...], ...] = (
        (setattr, renewals, "value", next(_numbers)),
        (setitem, hot, "renewed", object()),
        (_set_ref, x, ref),
        (_set_meta, x, meta),
        (_set_storage, x, storage),  # last: the finalizer of the old one may let others run
    )
    any(starmap(call, settings))


hot["renewed"] = object()


def alias(
    base: Tensor, meta: TensorMeta, offset_bytes: int = 0, cls: type[Tensor] = Tensor
) -> Tensor:
    """A tensor on `base`'s storage, `offset_bytes` further on; outside the autograd graph."""
    if meta.__class__ is not TensorMeta and meta.parted and meta is not base._meta:
        view: Tensor = hot["global_view"](base, meta, offset_bytes)
        return view
    ref = base._ref + (offset_bytes << OPERAND.STORAGE_BITS)
    if ref.__class__ is not int:  # to convert it while a record is published would wait for itself
        raise ArgumentTypeError(f"a view's offset is an int, got {type(offset_bytes).__name__}")
    out = new_tensor(ref, meta, base.storage(), cls)
    if meta.__class__ is not TensorMeta and meta.parted and meta.is_copy:  # type: ignore[attr-defined]
        hot["global_alias"](base, out)
    if hot["departed"] and (trace := hot["trace_recorder"]()) is not None:
        trace.view(base, out, offset_bytes)
    return out


def base_of(x: Tensor) -> Tensor:
    """The tensor that `x` is a view of; `x` itself if it is none."""
    try:
        kin = x._kin
    except AttributeError:
        return x
    return x if kin.__class__ is list else kin


def forget_gone(views: list[Any]) -> None:
    """Take weak references to what is gone out of a list: in one call of C, so what another thread
    adds meanwhile stays.
    """
    views[:] = compress(views, map(is_not, map(call, views), repeat(None)))


Function = TypeVar("Function", bound=Callable[..., object])


def method(name: str | None = None) -> Callable[[Function], Function]:
    """Attach the decorated function to Tensor as a method, under its own name or `name`."""

    def attach(function: Function) -> Function:
        setattr(Tensor, name or function.__name__, function)
        return function

    return attach


def _of_leaf(tensor: Tensor) -> Iterator[tuple[int, bool]]:
    node = getattr(tensor, "_node", None)
    if node is not None and node.is_leaf:
        for held, for_launches in ((tensor, False), (tensor.grad, True)):
            if held is not None and hasattr(held, "_ref"):  # else it is lazy
                yield held._ref, for_launches


def _without_grad(tensor: Tensor, lost: Callable[[int], bool]) -> None:
    node = getattr(tensor, "_node", None)
    if node is not None and node.is_leaf:
        grad = tensor.grad
        if grad is not None and lost(getattr(grad, "_ref", 0)):
            tensor.grad = None


def _text(tensor: Tensor) -> tuple[int, str]:
    return getattr(tensor, "_ref", 0), repr(getattr(tensor, "_meta", ""))


HOLDERS.append(Holder(Tensor, _of_leaf, _without_grad, text=_text))
