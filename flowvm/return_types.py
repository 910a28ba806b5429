"""`flow.return_types`: a class for each function with several results.

    >>> flow.tensor([3.0, 5.0]).max(0)
    flow.return_types.max(
    values=tensor(5.),
    indices=tensor(1))

They are tuples with names, made of one sequence, as PyTorch's are: `max((values, indices))`.  With
`out=` a function returns its other class, `max_out`.

Long because each class names its results.
"""
# ruff: noqa: N801 - classes are called as the functions are

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, ClassVar, Self

from flowvm.eager.tensor import Tensor
from flowvm.loading.listing import listing


class Results(tuple[Any, ...]):
    """A tuple with named elements; a subclass annotates the names."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    n_fields: ClassVar[int] = 0
    n_sequence_fields: ClassVar[int] = 0
    n_unnamed_fields: ClassVar[int] = 0
    _into: ClassVar[type[Results] | None] = None  # the class of results written into out=

    def __init_subclass__(cls) -> None:
        names = tuple(vars(cls).get("__annotations__", ()))
        if names:
            cls.__match_args__ = names  # type: ignore[misc]
            cls.n_fields = cls.n_sequence_fields = len(names)
        for place, name in enumerate(names):
            setattr(cls, name, property(itemgetter(place)))

    def __new__(cls, sequence: Iterable[Any]) -> Self:
        made = tuple.__new__(cls, sequence)
        if len(made) != cls.n_fields:
            raise TypeError(
                f"flow.return_types.{cls.__name__}() takes a {cls.n_fields}-sequence "
                f"({len(made)}-sequence given)"
            )
        return made

    def __repr__(self) -> str:
        parts = [f"{n}={value!r}" for n, value in zip(self.__match_args__, self, strict=True)]
        return f"flow.return_types.{type(self).__name__}(\n" + ",\n".join(parts) + ")"

    def into(self, outs: Iterable[Tensor]) -> Results:
        """Return the results that were written to `outs`."""
        return (self._into or type(self))(outs)


class _Located(Results):
    __slots__ = ()
    values: Tensor
    indices: Tensor  # int64: where they were


class _Factors(Results):
    __slots__ = ()
    Q: Tensor
    R: Tensor


class _LogDeterminant(Results):
    __slots__ = ()
    sign: Tensor
    logabsdet: Tensor


class _Triangles(Results):
    __slots__ = ()
    P: Tensor
    L: Tensor
    U: Tensor


class _Counted(Results):
    __slots__ = ()
    hist: Tensor
    bin_edges: Any  # of each dimension for histogramdd


class cummax(_Located):
    """The result of `flow.cummax`."""

    __slots__ = ()


class cummin(_Located):
    """The result of `flow.cummin`."""

    __slots__ = ()


class kthvalue(_Located):
    """The result of `flow.kthvalue`."""

    __slots__ = ()


class max(_Located):
    """The result of `flow.max` along a dimension."""

    __slots__ = ()


class median(_Located):
    """The result of `flow.median` along a dimension."""

    __slots__ = ()


class min(_Located):
    """The result of `flow.min` along a dimension."""

    __slots__ = ()


class mode(_Located):
    """The result of `flow.mode`."""

    __slots__ = ()


class nanmedian(_Located):
    """The result of `flow.nanmedian` along a dimension."""

    __slots__ = ()


class sort(_Located):
    """The result of `flow.sort`."""

    __slots__ = ()


class topk(_Located):
    """The result of `flow.topk`."""

    __slots__ = ()


class aminmax(Results):
    """The result of `flow.aminmax`."""

    __slots__ = ()
    min: Tensor
    max: Tensor


class frexp(Results):
    """The result of `flow.frexp`: mantissa * 2 ** exponent."""

    __slots__ = ()
    mantissa: Tensor
    exponent: Tensor


class histogram(_Counted):
    """The result of `flow.histogram`."""

    __slots__ = ()


class histogramdd(_Counted):
    """The result of `flow.histogramdd`."""

    __slots__ = ()


class geqrf(Results):
    """The result of `flow.geqrf`: R with reflectors below it, and their factors."""

    __slots__ = ()
    a: Tensor
    tau: Tensor


class lu_unpack(_Triangles):
    """The result of `flow.lu_unpack`."""

    __slots__ = ()


class qr(_Factors):
    """The result of `flow.qr`."""

    __slots__ = ()


class slogdet(_LogDeterminant):
    """The result of `flow.slogdet`: a determinant is sign * exp(logabsdet)."""

    __slots__ = ()


class svd(Results):
    """The result of `flow.svd`: U @ diag(S) @ V.T."""

    __slots__ = ()
    U: Tensor
    S: Tensor
    V: Tensor


class triangular_solve(Results):
    """The result of `flow.triangular_solve`."""

    __slots__ = ()
    solution: Tensor
    cloned_coefficient: Tensor


class linalg_cholesky_ex(Results):
    """The result of `flow.linalg.cholesky_ex`."""

    __slots__ = ()
    L: Tensor
    info: Tensor


class linalg_eig(Results):
    """The result of `flow.linalg.eig`: eigenvectors @ diag(eigenvalues) @ inv(eigenvectors)."""

    __slots__ = ()
    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_eigh(Results):
    """The result of `flow.linalg.eigh`: eigenvectors @ diag(eigenvalues) @ eigenvectors.mH."""

    __slots__ = ()
    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_inv_ex(Results):
    """The result of `flow.linalg.inv_ex`."""

    __slots__ = ()
    inverse: Tensor
    info: Tensor


class linalg_ldl_factor(Results):
    """The result of `flow.linalg.ldl_factor`: L and D in one matrix, and LAPACK's exchanges."""

    __slots__ = ()
    LD: Tensor
    pivots: Tensor


class linalg_ldl_factor_ex(Results):
    """The result of `flow.linalg.ldl_factor_ex`, with LAPACK's info."""

    __slots__ = ()
    LD: Tensor
    pivots: Tensor
    info: Tensor


class linalg_lstsq(Results):
    """The result of `flow.linalg.lstsq`.  Fields that the driver does not compute are empty."""

    __slots__ = ()
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class linalg_lu(_Triangles):
    """The result of `flow.linalg.lu`: P @ L @ U."""

    __slots__ = ()


class linalg_lu_factor(Results):
    """The result of `flow.linalg.lu_factor`: L and U in one matrix, and LAPACK's exchanges of
    rows.
    """

    __slots__ = ()
    LU: Tensor
    pivots: Tensor


class linalg_lu_factor_ex(Results):
    """The result of `flow.linalg.lu_factor_ex`, with LAPACK's info."""

    __slots__ = ()
    LU: Tensor
    pivots: Tensor
    info: Tensor


class linalg_qr(_Factors):
    """The result of `flow.linalg.qr`."""

    __slots__ = ()


class linalg_slogdet(_LogDeterminant):
    """The result of `flow.linalg.slogdet`: a determinant is sign * exp(logabsdet)."""

    __slots__ = ()


class linalg_solve_ex(Results):
    """The result of `flow.linalg.solve_ex`."""

    __slots__ = ()
    result: Tensor
    info: Tensor


class linalg_svd(Results):
    """The result of `flow.linalg.svd`: U @ diag(S) @ Vh."""

    __slots__ = ()
    U: Tensor
    S: Tensor
    Vh: Tensor


def _with_twins() -> list[type[Results]]:
    """Return all classes, and for each the one of results with `out=`: its twin, which is no
    subclass of it.
    """
    found = []
    for name, kind in list(globals().items()):
        if isinstance(kind, type) and issubclass(kind, Results) and name[0] != "_":
            if kind is Results:
                continue
            found.append(kind)
            if kind is histogramdd:  # which has no out=
                continue
            space: dict[str, Any] = {
                "__slots__": (), "__module__": __name__, "__doc__": kind.__doc__,
                "__annotations__": vars(kind).get("__annotations__", {}),
            }  # fmt: skip
            kind._into = globals()[f"{name}_out"] = type(f"{name}_out", kind.__bases__, space)
            found.append(kind._into)
    return found


all_return_types = _with_twins()
__all__ = ["all_return_types"]
__all__ += sorted(kind.__name__ for kind in all_return_types)
__dir__ = listing(globals())
