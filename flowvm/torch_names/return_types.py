"""`flow.return_types`: a class for each function with several results.

    >>> flow.tensor([3.0, 5.0]).max(0)
    flow.return_types.max(
    values=tensor(5.),
    indices=tensor(1))

They are tuples with names, made of one sequence, as PyTorch's are: `max((values, indices))`.  With
`out=` a function returns its other class, `max_out`.
"""
# ruff: noqa: N801 - classes are called as the functions are

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowvm.eager.tensor import Tensor
from flowvm.loading.listing import listing

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Slotted(type):
    """Give a result class no instance dict, and a docstring that names its function."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: Mapping[str, object]) -> _Slotted:
        function = name.removesuffix("_out").replace("linalg_", "linalg.")
        return super().__new__(
            cls,
            name,
            bases,
            {"__slots__": (), "__doc__": f"The result of `flow.{function}`.", **space},
        )


class Results(tuple[Any, ...], metaclass=_Slotted):
    """A tuple with named elements; a subclass annotates the names."""

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

    def __new__(cls, sequence: Iterable[object]) -> Self:
        values = tuple.__new__(cls, sequence)
        if len(values) != cls.n_fields:
            raise TypeError(
                f"flow.return_types.{cls.__name__}() takes a {cls.n_fields}-sequence "
                f"({len(values)}-sequence given)"
            )
        return values

    def __repr__(self) -> str:
        parts = [f"{n}={value!r}" for n, value in zip(self.__match_args__, self, strict=True)]
        return f"flow.return_types.{type(self).__name__}(\n" + ",\n".join(parts) + ")"

    def into(self, outs: Iterable[Tensor]) -> Results:
        """Return the results that were written to `outs`."""
        return (self._into or type(self))(outs)


class _Located(Results):
    values: Tensor
    indices: Tensor  # int64: where they were


class _Factors(Results):
    Q: Tensor
    R: Tensor


class _LogDeterminant(Results):
    sign: Tensor
    logabsdet: Tensor


class _Triangles(Results):
    P: Tensor
    L: Tensor
    U: Tensor


class _Counted(Results):
    hist: Tensor
    bin_edges: object  # of each dimension for histogramdd


class cummax(_Located): ...


class cummin(_Located): ...


class kthvalue(_Located): ...


class max(_Located): ...


class median(_Located): ...


class min(_Located): ...


class mode(_Located): ...


class nanmedian(_Located): ...


class sort(_Located): ...


class topk(_Located): ...


class aminmax(Results):
    min: Tensor
    max: Tensor


class frexp(Results):
    """The result of `flow.frexp`: mantissa * 2 ** exponent."""

    mantissa: Tensor
    exponent: Tensor


class histogram(_Counted): ...


class histogramdd(_Counted): ...


class geqrf(Results):
    """The result of `flow.geqrf`: R with reflectors below it, and their factors."""

    a: Tensor
    tau: Tensor


class lu_unpack(_Triangles): ...


class qr(_Factors): ...


class slogdet(_LogDeterminant):
    """The result of `flow.slogdet`: a determinant is sign * exp(logabsdet)."""


class svd(Results):
    """The result of `flow.svd`: U @ diag(S) @ V.T."""

    U: Tensor
    S: Tensor
    V: Tensor


class triangular_solve(Results):
    solution: Tensor
    cloned_coefficient: Tensor


class linalg_cholesky_ex(Results):
    L: Tensor
    info: Tensor


class linalg_eig(Results):
    """The result of `flow.linalg.eig`: eigenvectors @ diag(eigenvalues) @ inv(eigenvectors)."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_eigh(Results):
    """The result of `flow.linalg.eigh`: eigenvectors @ diag(eigenvalues) @ eigenvectors.mH."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_inv_ex(Results):
    inverse: Tensor
    info: Tensor


class linalg_ldl_factor(Results):
    """The result of `flow.linalg.ldl_factor`: L and D in one matrix, and LAPACK's exchanges."""

    LD: Tensor
    pivots: Tensor


class linalg_ldl_factor_ex(Results):
    """The result of `flow.linalg.ldl_factor_ex`, with LAPACK's info."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


class linalg_lstsq(Results):
    """The result of `flow.linalg.lstsq`.  Fields that the driver does not compute are empty."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class linalg_lu(_Triangles):
    """The result of `flow.linalg.lu`: P @ L @ U."""


class linalg_lu_factor(Results):
    """The result of `flow.linalg.lu_factor`: L and U in one matrix, and LAPACK's exchanges of
    rows.
    """

    LU: Tensor
    pivots: Tensor


class linalg_lu_factor_ex(Results):
    """The result of `flow.linalg.lu_factor_ex`, with LAPACK's info."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class linalg_qr(_Factors): ...


class linalg_slogdet(_LogDeterminant):
    """The result of `flow.linalg.slogdet`: a determinant is sign * exp(logabsdet)."""


class linalg_solve_ex(Results):
    result: Tensor
    info: Tensor


class linalg_svd(Results):
    """The result of `flow.linalg.svd`: U @ diag(S) @ Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _with_twins() -> list[type[Results]]:
    """Return all classes, and for each the one of results with `out=`: its twin, which is no
    subclass of it.
    """
    twins = []
    for name, kind in list(globals().items()):
        if isinstance(kind, type) and issubclass(kind, Results) and name[0] != "_":
            if kind is Results:
                continue
            twins.append(kind)
            if kind is histogramdd:  # which has no out=
                continue
            space = {
                "__module__": __name__, "__doc__": kind.__doc__,
                "__annotations__": vars(kind).get("__annotations__", {}),
            }  # fmt: skip
            kind._into = globals()[f"{name}_out"] = type(f"{name}_out", kind.__bases__, space)
            twins.append(kind._into)
    return twins


all_return_types = _with_twins()
__all__ = ["all_return_types"]
__all__ += sorted(kind.__name__ for kind in all_return_types)
__dir__ = listing(globals())
