"""The frequencies of what a transform gives, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import get_default_dtype
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dims
from flowvm.ops.shapes.padding import roll
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from collections.abc import Mapping


# public: fft

Dims = int | Sequence[int] | None


def fftfreq(n: int, d: float = 1.0, *, out: Tensor | None = None, **options: object) -> Tensor:
    """The frequencies of the n results of `fft` of samples `d` apart: 0, 1, .., -2, -1 over n d.

    >>> flow.fft.fftfreq(4)
    tensor([ 0.0000,  0.2500, -0.5000, -0.2500])
    """
    count = _count("fftfreq", n, d)
    places: Tensor = roll(
        arange(-(count // 2), count - count // 2, **_factory_options(out, options)), -(count // 2)
    )
    return _finished(places / (count * d), out, options)


def rfftfreq(n: int, d: float = 1.0, *, out: Tensor | None = None, **options: object) -> Tensor:
    """The frequencies of the n // 2 + 1 results of `rfft`: 0, 1, .. over n d.

    >>> flow.fft.rfftfreq(4)
    tensor([0.0000, 0.2500, 0.5000])
    """
    count = _count("rfftfreq", n, d)
    places: Tensor = arange(0, count // 2 + 1, **_factory_options(out, options))
    return _finished(places / (count * d), out, options)


def _count(name: str, n: int, d: float) -> int:
    count = whole(name, "n", n)
    if count < 1 or d == 0:
        raise ArgumentError(f"{name}: n is at least 1 and d is not 0, got {n} and {d}")
    return count


def _factory_options(out: Tensor | None, options: Mapping[str, object]) -> dict[str, Any]:
    factory = {k: v for k, v in options.items() if k != "requires_grad"}
    kind = out._meta.dtype if out is not None else get_default_dtype()
    return {**factory, "dtype": factory.get("dtype") or kind}


def _finished(frequencies: Any, out: Tensor | None, options: dict[str, Any]) -> Tensor:
    if out is not None:
        return out.copy_(frequencies)
    return frequencies.requires_grad_(bool(options.get("requires_grad")))  # type: ignore[no-any-return]


def _shifted(name: str, input: Tensor, dim: Dims, back: bool) -> Tensor:
    x = need_tensor(name, "input", input)
    dims = tuple(range(x._meta.ndim)) if dim is None else wrap_dims(name, dim, x._meta.ndim)
    sizes = [x._meta.shape[d] for d in dims]
    by = [(n + 1) // 2 if back else n // 2 for n in sizes]
    return roll(x, by, list(dims)) if dims else x.clone()


def fftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """The results of `fftn` with frequency 0 in the middle of `dim` (one or several; None: all).

    >>> flow.fft.fftshift(flow.fft.fftfreq(4))
    tensor([-0.5000, -0.2500,  0.0000,  0.2500])
    """
    return _shifted("fftshift", input, dim, False)


def ifftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> flow.fft.ifftshift(flow.tensor([-2, -1, 0, 1]))
    tensor([ 0,  1, -2, -1])
    """
    return _shifted("ifftshift", input, dim, True)
