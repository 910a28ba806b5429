"""Discrete Fourier transforms by the conventions of `torch.fft` and NumPy, on the CPU.

One op transforms rows; everything else is a composition: real transforms are complex ones of which
half is kept, more dimensions go one after the other, and lengths with a large prime factor go by
Bluestein's chirps (1970) through a power of two.  The gradient of a transform is the one the other
way, so it is differentiable again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array, constant
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.launch import ARENA_BYTES, Launch, View
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import complex64, complex128, get_default_dtype
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dim, wrap_dims
from flowvm.ops.declare.kinds import Metas, Values
from flowvm.ops.declare.letters import Letters, numbered
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import op
from flowvm.ops.pointwise.complex_numbers import conj
from flowvm.ops.shapes.complex_parts import real
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.padding import flip, pad
from flowvm.ops.shapes.slices import narrow
from flowvm.ops.shapes.views import movedim

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array
    from flowvm.ops.fourier.cpu import fft_kernels
else:
    fft_kernels = lazy("flowvm.ops.fourier.cpu.fft_kernels")  # with the first transform

# public: fft

LARGEST = 61  # prime factor that a pass takes; its work grows with the square
GRAIN = 1 << 13  # elements that are worth waking a thread for
PARTED = 32  # points from which on real and imaginary parts are computed apart
NORMS = ("backward", "ortho", "forward")
Dims = int | Sequence[int] | None

# --- the op ---------------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _factors(n: int) -> tuple[int, ...]:
    """The factors of n, fours first."""
    factors = []
    for r in (4, 2, 3, 5):
        while n % r == 0:
            factors.append(r)
            n //= r
    r = 7
    while n > 1:
        if r * r > n:
            r = n
        while n % r == 0:
            factors.append(r)
            n //= r
        r += 2
    return tuple(factors)


def _turns(parts: Array, n: int) -> Array:
    """exp(-2 pi i parts / n)."""
    angle = (2 * math.pi / n) * np.asarray(parts, np.float64)
    return np.cos(angle) - 1j * np.sin(angle)


@functools.lru_cache(64)
def _roots(n: int, way: int, single: bool) -> Tensor:
    table = _turns(np.arange(n), n)
    return _constant(table if way > 0 else np.conj(table), single)


def _constant(numbers: object, single: bool) -> Tensor:
    return adopt_array(np.array(numbers, np.complex64 if single else np.complex128))


def _rows_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    way, scale = c.attrs
    return _rows(g, way=-way, scale=scale), None


def _letters(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the dimensions in front of the rows."""
    rows = numbered(metas[0], (-1,))
    return Letters((rows, (None,)), (rows,), linear=((0,),))


def _transforms(metas: Metas, values: Values) -> bool:
    x, roots = metas
    if not x.dtype.is_complex or roots.dtype is not x.dtype or x.ndim < 1:
        return False
    n = x.shape[-1]
    return tuple(roots.shape) == (n,) and max(_factors(n) if n else (), default=1) <= LARGEST


@op(
    "x, roots -> out",
    name="fft",
    grad=_rows_grad,
    complex=True,
    letters=_letters,
    takes=_transforms,
)
def _transformed(x: TensorMeta, roots: TensorMeta, way: Literal[1, -1], scale: float) -> Launch:
    n = x.shape[-1]
    rows = x.numel // n if n else 0
    bytes_ = n * x.dtype.itemsize
    apart = bytes_ > ARENA_BYTES
    flat = View(x.dtype, (x.numel,))
    factors = _factors(n) if n else ()
    parted = n >= PARTED and set(factors) <= {2, 4} and 2 * bytes_ <= ARENA_BYTES
    return Launch(
        (x.dense(),),
        fft_kernels.transform,
        (flat, flat, View(x.dtype, (n,))),
        (factors, n, float(way), scale, apart, parted),
        units=rows,
        grain=max(1, GRAIN // max(1, n)),
        scratch=rows * bytes_ if apart else 0,
        arena=0 if apart else bytes_ * (1 + parted),
    )


def _rows(x: Tensor, *, way: int, scale: float) -> Tensor:
    """The transform along the last dimension, with exp(-2 pi i way / n)."""
    n, single = x._meta.shape[-1], x._meta.dtype is complex64
    if max(_factors(n), default=1) > LARGEST:
        return _chirped(x, way, scale)
    out: Tensor = _transformed(x, _beside(x, _roots(n, way, single)), way, scale)
    return out


def _beside(x: Tensor, table: Tensor) -> Tensor:
    """Return a table of numbers where `x` is: of a global tensor, all of it on each rank."""
    return constant(table).to(device=x._meta.device)


@functools.lru_cache(64)
def _chirps(n: int, way: int, single: bool) -> tuple[Tensor, Tensor, int]:
    """Return Bluestein's factors exp(-pi i way j^2 / n), their filter's transform and its length.

    The filter is the sequence with which they are convolved; its length is a power of two.
    """
    size = 1 << (2 * n - 2).bit_length()
    turns = _turns(np.arange(n) ** 2 % (2 * n), 2 * n)
    turns = turns if way > 0 else np.conj(turns)
    filter_ = np.zeros(size, np.complex128)
    filter_[:n] = np.conj(turns)
    filter_[size - n + 1 :] = np.conj(turns[:0:-1])
    return _constant(turns, single), _constant(np.fft.fft(filter_), single), size


def _chirped(x: Tensor, way: int, scale: float) -> Tensor:
    n = x._meta.shape[-1]
    *tables, size = _chirps(n, way, x._meta.dtype is complex64)
    turns, filter_ = (_beside(x, table) for table in tables)
    long = pad(x * turns, (0, size - n))
    product = _rows(long, way=1, scale=1.0) * filter_
    out: Any = narrow(_rows(product, way=-1, scale=scale / size), -1, 0, n) * turns
    return out  # type: ignore[no-any-return]


# --- arguments ------------------------------------------------------------------------------------


def _scale(name: str, norm: str | None, n: int, forward: bool) -> float:
    """Return the factor of a transform over n points."""
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise ArgumentError(f"{name}: norm is 'backward', 'ortho' or 'forward', got {norm!r}")
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") is forward else 1.0


def _numbers(name: str, input: Tensor) -> Tensor:
    """The input as floats of 32 or 64 bits, or complex numbers."""
    x: Any = need_tensor(name, "input", input)
    if x.dtype.reduced:
        raise DTypeError(f"{name} is not defined for {x.dtype.name}; convert with .float()")
    return x if x.dtype.inexact else x.to(get_default_dtype())  # type: ignore[no-any-return]


def _complex(x: Tensor) -> Tensor:
    return x if x.dtype.is_complex else x.to(complex64 if x.itemsize == 4 else complex128)


def _real(name: str, input: Tensor) -> Tensor:
    x = _numbers(name, input)
    if x._meta.dtype.is_complex:
        raise DTypeError(f"{name} takes real numbers, got {x.dtype.name}")
    return x


def _fitted(name: str, x: Tensor, n: object, d: int) -> Tensor:
    """Dimension d cut or filled with zeros to length n."""
    if x.ndim == 0:
        raise ShapeError(f"{name} needs at least one dimension, got a 0-d tensor")
    size = x.shape[d] if n is None else whole(name, "a length", n)
    if size < 1:
        raise ArgumentError(f"{name}: a transform has at least one point, got {size}")
    if size < x.shape[d]:
        return narrow(x, d, 0, size)
    if size > x.shape[d]:
        return pad(x, (0, 0) * (x.ndim - 1 - d) + (0, size - x.shape[d]))
    return x


def _along(x: Tensor, d: int, way: int, scale: float) -> Tensor:
    last = d == x.ndim - 1
    out = _rows(x if last else movedim(x, d, -1), way=way, scale=scale)
    return out if last else movedim(out, -1, d)


def _one(name: str, x: Tensor, n: object, dim: int, norm: str | None, way: int) -> Tensor:
    """A complex transform of one dimension."""
    d = wrap_dim(name, dim, x.ndim)
    x = _fitted(name, _complex(x), n, d)
    return _along(x, d, way, _scale(name, norm, x.shape[d], way > 0))


def _to_half(name: str, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    """The half of a real tensor's transform that says all."""
    whole_ = _one(name, x, n, dim, norm, 1)
    d = wrap_dim(name, dim, x.ndim)
    return narrow(whole_, d, 0, whole_.shape[d] // 2 + 1)


def _from_half(name: str, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    """Return the real tensor from its half, `x`."""
    d = wrap_dim(name, dim, x.ndim)
    if x.ndim == 0:
        raise ShapeError(f"{name} needs at least one dimension, got a 0-d tensor")
    size = 2 * (x.shape[d] - 1) if n is None else whole(name, "a length", n)
    if size < 1:
        raise ArgumentError(f"{name}: a transform has at least one point, got {size}")
    half = _fitted(name, _complex(x), size // 2 + 1, d)
    rest = (size - 1) // 2  # those that are others' conjugates
    if rest:
        mirror = flip(conj(narrow(half, d, 1, rest)), (d,))
        half = cat([half, mirror], d)
    return real(_along(half, d, -1, _scale(name, norm, size, False)))


def _points(name: str, x: Any, s: Any, dim: object) -> tuple[list[Any], tuple[int, ...]]:
    """Lengths (None: as they are) and dimensions of a transform of several."""
    lengths = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is None:
        count = x.ndim if lengths is None else len(lengths)
        if count > x.ndim:
            raise ShapeError(f"{name}: {count} lengths for shape {tuple(x.shape)}")
        dims = tuple(range(x.ndim - count, x.ndim))
    else:
        dims = wrap_dims(name, dim, x.ndim)
    if lengths is None:
        lengths = [None] * len(dims)
    if len(lengths) != len(dims):
        raise ShapeError(f"{name}: s has {len(lengths)} lengths and dim {len(dims)} dimensions")
    return [None if n == -1 else n for n in lengths], dims


def _several(
    name: str,
    x: Tensor,
    s: int | Sequence[int] | None,
    dim: int | Sequence[int] | None,
    norm: str | None,
    way: int,
) -> Tensor:
    lengths, dims = _points(name, x, s, dim)
    x = _complex(x)
    for n, d in zip(lengths, dims, strict=True):
        x = _one(name, x, n, d, norm, way)
    return x


def _halves(
    name: str,
    x: Tensor,
    s: int | Sequence[int] | None,
    dim: int | Sequence[int] | None,
    norm: str | None,
) -> Any:
    lengths, dims = _points(name, x, s, dim)
    if not dims:
        raise ShapeError(f"{name} needs at least one dimension")
    x = _to_half(name, x, lengths[-1], dims[-1], norm)
    for n, d in zip(lengths[:-1], dims[:-1], strict=True):
        x = _one(name, x, n, d, norm, 1)
    return x


def _wholes(
    name: str,
    x: Tensor,
    s: int | Sequence[int] | None,
    dim: int | Sequence[int] | None,
    norm: str | None,
) -> Tensor:
    lengths, dims = _points(name, x, s, dim)
    if not dims:
        raise ShapeError(f"{name} needs at least one dimension")
    x = _complex(x)
    for n, d in zip(lengths[:-1], dims[:-1], strict=True):
        x = _one(name, x, n, d, norm, -1)
    return _from_half(name, x, lengths[-1], dims[-1], norm)


def _swapped(name: str, norm: str | None) -> str:
    """The norm of the transform the other way."""
    _scale(name, norm, 1, True)
    return {"backward": "forward", "forward": "backward"}.get(norm or "backward", "ortho")


# --- one dimension --------------------------------------------------------------------------------


@with_out
def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform over `dim`: out[k] is the sum of x[j] exp(-2 pi i j k / n).

    n      points: the dimension is cut, or filled with zeros, to so many
    norm   "backward" (default): as it is; "ortho": over the root of n; "forward": over n

    >>> flow.fft.fft(flow.tensor([1.0, 0.0, 0.0, 0.0])).real
    tensor([1., 1., 1., 1.])
    >>> flow.fft.fft(flow.ones(4)).real
    tensor([4., 0., 0., 0.])
    """
    return _one("fft", _numbers("fft", input), n, dim, norm, 1)


@with_out
def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft` with the same arguments.

    >>> flow.fft.ifft(flow.fft.fft(flow.tensor([1.0, 2.0, 3.0, 4.0]))).real
    tensor([1., 2., 3., 4.])
    """
    return _one("ifft", _numbers("ifft", input), n, dim, norm, -1)


@with_out
def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of real numbers: the n // 2 + 1 results that the others are conjugates of.

    >>> flow.fft.rfft(flow.ones(4)).real
    tensor([4., 0., 0.])
    """
    return _to_half("rfft", _real("rfft", input), n, dim, norm)


@with_out
def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: n real numbers, by default 2 (m - 1) for a dimension of m.

    >>> flow.fft.irfft(flow.fft.rfft(flow.tensor([1.0, 2.0, 3.0, 4.0])))
    tensor([1., 2., 3., 4.])
    """
    return _from_half("irfft", _numbers("irfft", input), n, dim, norm)


@with_out
def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Compute `fft` of a signal of which one half is given; the rest is its conjugate.

    The result is n real numbers, by default 2 (m - 1) for a dimension of m.

    >>> flow.fft.hfft(flow.tensor([1.0, 2.0, 3.0]))
    tensor([ 8., -2.,  0., -2.])
    """
    x = conj(_numbers("hfft", input))
    return _from_half("hfft", x, n, dim, _swapped("hfft", norm))


@with_out
def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`: of n real numbers the half, n // 2 + 1, of the signal.

    >>> flow.fft.ihfft(flow.ones(4)).real
    tensor([1., 0., 0.])
    """
    x = _real("ihfft", input)
    return conj(_to_half("ihfft", x, n, dim, _swapped("ihfft", norm)))


# --- several dimensions ---------------------------------------------------------------------------


@with_out
def fftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """`fft` over several dimensions: `dim` (all, or with `s` the last ones), of lengths `s`.

    >>> flow.fft.fftn(flow.ones(2, 2)).real
    tensor([[4., 0.],
            [0., 0.]])
    """
    return _several("fftn", _numbers("fftn", input), s, dim, norm, 1)


@with_out
def ifftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`.

    >>> flow.fft.ifftn(flow.ones(2, 2)).real
    tensor([[1., 0.],
            [0., 0.]])
    """
    x = _numbers("ifftn", input)
    return _several("ifftn", x, s, dim, norm, -1)


@with_out
def rfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """`fftn` of real numbers; of the last dimension the half is kept.

    >>> flow.fft.rfftn(flow.ones(2, 2)).real
    tensor([[4., 0.],
            [0., 0.]])
    """
    return _halves("rfftn", _real("rfftn", input), s, dim, norm)  # type: ignore[no-any-return]


@with_out
def irfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`.

    >>> flow.fft.irfftn(flow.fft.rfftn(flow.ones(2, 2)))
    tensor([[1., 1.],
            [1., 1.]])
    """
    return _wholes("irfftn", _numbers("irfftn", input), s, dim, norm)


@with_out
def hfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """Compute `fftn` of a signal of which half of the last dimension is given.

    >>> flow.fft.hfftn(flow.ones(2, 2))
    tensor([[4., 0.],
            [0., 0.]])
    """
    x = conj(_numbers("hfftn", input))
    return _wholes("hfftn", x, s, dim, _swapped("hfftn", norm))


@with_out
def ihfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `hfftn`.

    >>> flow.fft.ihfftn(flow.ones(2, 2)).real
    tensor([[1., 0.],
            [0., 0.]])
    """
    x = _real("ihfftn", input)
    return conj(_halves("ihfftn", x, s, dim, _swapped("ihfftn", norm)))


def _of_planes(several: Any, name: str) -> Any:
    def planes(
        input: Tensor, s: Dims = None, dim: Dims = (-2, -1), norm: str | None = None
    ) -> Tensor:
        return several(input, s, dim, norm)  # type: ignore[no-any-return]

    planes.__name__ = planes.__qualname__ = name
    planes.__doc__ = f"`{several.__name__}` over two dimensions, by default the last two."
    return with_out(planes)


fft2, ifft2 = _of_planes(fftn, "fft2"), _of_planes(ifftn, "ifft2")  # public: fft
rfft2, irfft2 = _of_planes(rfftn, "rfft2"), _of_planes(irfftn, "irfft2")  # public: fft
hfft2, ihfft2 = _of_planes(hfftn, "hfft2"), _of_planes(ihfftn, "ihfft2")  # public: fft
