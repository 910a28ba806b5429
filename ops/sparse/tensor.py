"""The sparse tensor: values, and the pattern of their places.

It is a Tensor that has no memory of its own: its parts have.  A public function that is called with
one asks its `__torch_function__`, which looks the function up in the table
(`flowvm.ops.sparse.table`); what is not there is an error.  Its place in the autograd graph is its
values': a gradient by a sparse tensor is one of the same places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.overrides import SUBCLASSES, begin, disabled, unasked
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, MissingNameError, ModeError
from flowvm.interop.printing import get_printoptions, text_at
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType, bool_, get_default_dtype, int64
from flowvm.meta.formats import sparse_coo, sparse_csr
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.sparse.pattern import COMPRESSED, Pattern
from flowvm.ops.sparse.table import OF_THE_FUNCTION, OF_THE_META, RULES, fill
from flowvm.vm.callers.interrupt import protected

LAYOUTS = {layout.name: layout for layout in (sparse_coo, *COMPRESSED)}


class SparseTensor(Tensor):
    """A tensor most of whose elements are zeros that are not stored."""

    _pattern: Pattern
    _data: Tensor  # the values
    _whole: TensorMeta
    _of: Any  # the function that the gradients of a leaf are for

    if TYPE_CHECKING:  # the layout stays

        def to(self, *args: object, **kwargs: object) -> SparseTensor: ...
        def clone(self, *, memory_format: object = ...) -> SparseTensor: ...

    __torch_function__ = disabled  # while the class is made, or functions would ask from now on

    # --- what it is made of -------------------------------------------------------------------

    @protected
    def __del__(self) -> None:
        """Nothing: the parts free what they have."""

    @property
    def _meta(self) -> TensorMeta:  # type: ignore[override]
        return self._whole

    @property
    def _node(self) -> Any:
        return self._data._node

    def __getattr__(self, name: str) -> Any:
        if name in ("_ref", "_storage"):
            raise MissingNameError(
                f"a tensor with layout {self._pattern.layout!r} has no memory of its own: work on "
                f"its values() and indices, or on to_dense()",
                name,
                tuple,
            )
        return super().__getattr__(name)

    shape = property(lambda self: self._whole.shape)
    dtype = property(lambda self: self._whole.dtype)
    device = property(lambda self: self._whole.device)
    ndim = property(lambda self: self._whole.ndim)
    layout = property(lambda self: self._pattern.layout)
    is_sparse = property(lambda self: self._pattern.is_coo)
    is_sparse_csr = property(lambda self: self._pattern.layout is sparse_csr)
    version = property(lambda self: self._data.version)
    _version = version
    is_leaf = property(lambda self: self._data.is_leaf)
    grad_fn = property(lambda self: self._data.grad_fn)
    retains_grad = property(lambda self: self._data.retains_grad)
    output_nr = property(lambda self: self._data.output_nr)

    # --- parts --------------------------------------------------------------------------------

    def _nnz(self) -> int:
        """The number of values, of blocks for layouts with blocks."""
        return self._pattern.entries

    def _indices(self) -> Tensor:
        """The indices as they are stored, coalesced or not."""
        self._need_coo("_indices")
        return self._pattern.parts[0]

    def _values(self) -> Tensor:
        """The values as they are stored, coalesced or not."""
        self._need_coo("_values")
        return self._data.detach()

    def indices(self) -> Tensor:
        """The indices (sparse dimensions, values) of a coalesced tensor."""
        self._need_coalesced("indices")
        return self._pattern.parts[0]

    def values(self) -> Tensor:
        """The values; of coordinates, those of a coalesced tensor."""
        if self._pattern.is_coo:
            self._need_coalesced("values")
        return self._data

    def _part(self, name: str, place: int) -> Tensor:
        words = COMPRESSED.get(self._pattern.layout)
        if words is None or (words.bounds_of, words.plain_of)[place] != name:
            raise ArgumentTypeError(
                f"{name}: a tensor with layout {self._pattern.layout!r} has no {name}; convert "
                f"with to_sparse_csr(), to_sparse_csc() or the like"
            )
        return self._pattern.parts[place]

    def crow_indices(self) -> Tensor:
        """The bounds of rows, of CSR and BSR."""
        return self._part("crow_indices", 0)

    def col_indices(self) -> Tensor:
        """The column of each value, of CSR and BSR."""
        return self._part("col_indices", 1)

    def ccol_indices(self) -> Tensor:
        """The bounds of columns, of CSC and BSC."""
        return self._part("ccol_indices", 0)

    def row_indices(self) -> Tensor:
        """The row of each value, of CSC and BSC."""
        return self._part("row_indices", 1)

    def _need_coo(self, name: str) -> None:
        if not self._pattern.is_coo:
            raise ArgumentTypeError(
                f"{name}: a tensor with layout {self._pattern.layout!r} has no {name}(); convert "
                f"with to_sparse_coo()"
            )

    def _need_coalesced(self, name: str) -> None:
        self._need_coo(name)
        if not self._pattern.coalesced:
            raise ModeError(
                f"cannot get {name} on an uncoalesced tensor, please call .coalesce() first; "
                f"_{name}() has what is stored"
            )

    def is_coalesced(self) -> bool:
        """Return True if each place has one value, and they are in order."""
        self._need_coo("is_coalesced")
        return self._pattern.coalesced

    def _coalesced_(self, coalesced: bool) -> SparseTensor:
        """Say whether the tensor is coalesced, without a look."""
        self._need_coo("_coalesced_")
        p = self._pattern
        self._pattern = Pattern(p.layout, p.parts, p.shape, coalesced)
        return self

    def sparse_dim(self) -> int:
        """The number of dimensions that the indices are of, without those of a batch."""
        return self._pattern.sparse_dim - len(self._pattern.batch)

    def dense_dim(self) -> int:
        """The number of dimensions of each value."""
        return len(self._pattern.dense_shape)

    def _dimI(self) -> int:  # noqa: N802 - PyTorch's name
        return self.sparse_dim()

    def _dimV(self) -> int:  # noqa: N802
        return len(self._pattern.dense_shape)

    # --- its place in the graph ---------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """True if operations on the tensor are recorded for backward."""
        return self._data._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Have gradients kept in `.grad`, at the places of the values."""
        self._data.requires_grad_(requires_grad)
        return self

    @property
    def grad(self) -> Any:
        """The gradient that `backward` accumulated: a sparse tensor of the same places, or None."""
        grad = self._data.grad
        return None if grad is None else sparse(self._pattern, grad)

    @grad.setter
    def grad(self, value: object) -> Any:
        if value is not None and not isinstance(value, SparseTensor):
            raise ArgumentTypeError("the gradient of a sparse tensor is a sparse one, or None")
        self._data.grad = None if value is None else value._data

    def retain_grad(self) -> None:
        """Keep the gradient of a tensor that is no leaf."""
        self._data.retain_grad()

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(gradient)`, a sparse tensor, when it is computed."""

        def called(g: Tensor) -> Any:
            result = hook(sparse(self._pattern, g))
            return None if result is None else result._data

        return self._data.register_hook(called)

    # --- as a value of Python -----------------------------------------------------------------

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return text_of(self)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(text_of(self), spec)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a 0-d tensor")
        return self.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __bool__(self) -> bool:
        raise ArgumentTypeError("a sparse tensor is neither true nor false; ask to_dense()")

    def __reduce_ex__(self, protocol: object) -> Any:
        p = self._pattern
        return rebuilt, (p.layout.name, p.parts, self._data, tuple(p.shape), p.coalesced, p.block)

    def __deepcopy__(self, memo: Any) -> SparseTensor:
        p = self._pattern
        grad = self._data.grad
        copied = sparse(p, self._data.detach().clone())
        if self._data._node is not None:
            copied._data.requires_grad_()
        if grad is not None:
            copied._data.grad = grad.clone()
        memo[id(self)] = copied
        return copied

    # --- a tree of graphs ---------------------------------------------------------------------

    def composed_of(self) -> tuple[Any, tuple[Tensor, ...]]:
        """Return what a graph's key has of it, and its parts."""
        p = self._pattern
        return (p.layout.name, tuple(p.shape), p.coalesced, p.block), (*p.parts, self._data)

    @staticmethod
    def composed(key: Any, parts: Sequence[Tensor]) -> SparseTensor:
        """Return the tensor of a key and parts."""
        name, shape, coalesced, block = key
        *places, values = parts
        return rebuilt(name, places, values, shape, coalesced, block)


def _torch_function(
    cls: type[SparseTensor], func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Call the table's rule of a function; ModeError where it has none."""
    fill()
    name = name_of(func)
    rule = RULES.get(name)
    if rule is not None:
        return rule(*args, **(kwargs or {}))
    if name in OF_THE_FUNCTION:
        return OF_THE_FUNCTION[name](func, *args, **(kwargs or {}))
    if name in OF_THE_META:
        with unasked.within(SUBCLASSES):
            return func(*args, **(kwargs or {}))
    if any(kind not in _OURS and kind is not cls for kind in types):
        return NotImplemented
    shown = name.partition(".")[0].strip("_")
    raise ModeError(f"{shown}: not for sparse tensors; work on x.values(), or on x.to_dense()")


_OURS = {Tensor}
setattr(SparseTensor, "__torch_function__", classmethod(_torch_function))  # noqa: B010
_WRAPPER = type(vars(Tensor)["shape"].__get__)


def name_of(func: object) -> str:
    """Return the name under which a public function has its row; of a property, the property's."""
    if isinstance(func, _WRAPPER):
        getter = func.__self__.fget
        return f"{getter.__name__}.{func.__name__}"
    return str(getattr(func, "__name__", func))


_new = object.__new__


def sparse(pattern: Pattern, values: Tensor) -> SparseTensor:
    """Return the tensor with these values at the places of a pattern."""
    begin()
    result = _new(SparseTensor)
    result._pattern, result._data = pattern, values
    result._whole = whole_meta(pattern.shape, values._meta.dtype, values._meta.device)
    return result


def whole_meta(shape: Size, dtype: DType, device: Device) -> TensorMeta:
    """Return the meta of all elements: without strides, as if they were one in memory."""
    return TensorMeta.of(shape, dtype, device, (0,) * len(shape))


def rebuilt(
    layout: str,
    parts: Sequence[Tensor],
    values: Tensor,
    shape: Sequence[int],
    coalesced: bool = True,
    block: tuple[int, int] | None = None,
) -> SparseTensor:
    """Return the tensor of parts that a file, a pickle or a graph holds."""
    block = None if block is None else (int(block[0]), int(block[1]))
    return sparse(Pattern(LAYOUTS[layout], parts, shape, bool(coalesced), block), values)


# --- text -----------------------------------------------------------------------------------------

INDENT = len("tensor(")


def text_of(x: SparseTensor) -> str:
    """Return the text of a tensor, as PyTorch lays it out."""
    p, values = x._pattern, x._data
    names = ["indices"]
    if not p.is_coo:
        words = COMPRESSED[p.layout]
        names = [words.bounds_of, words.plain_of]
    pieces = []
    plain: Tensor = values.detach()
    for name, part in zip([*names, "values"], [*p.parts, plain], strict=True):
        pieces.append(f"{name}={_bare(text_at(part, INDENT + len(name) + 1))}")
    text = "tensor(" + f",\n{' ' * INDENT}".join(pieces)
    ends = [f"size={tuple(x.shape)}", f"nnz={p.entries}"]
    if x.device.type != "cpu":
        ends.insert(0, f"device='{x.device}'")
    if x.dtype not in (get_default_dtype(), int64, bool_):
        ends.append(f"dtype={x.dtype!r}")
    ends.append(f"layout={p.layout!r}")
    if values._node is not None:
        function = values.grad_fn
        ends.append("requires_grad=True" if function is None else f"grad_fn=<{function.name()}>")
    width = get_printoptions()["linewidth"]
    used = width if p.is_coo else len(text) - text.rfind("\n") + 1
    for end in ends:
        if used + len(end) + 2 > width:
            text += f",\n{' ' * INDENT}{end}"
            used = INDENT + len(end)
        else:
            text += f", {end}"
            used += len(end) + 2
    return f"{text})"


def _bare(text: str) -> str:
    """Return a tensor's text without the dtype, which is said once for all values."""
    return re.sub(r",\s+dtype=[\w.]+\)$", ")", text)
