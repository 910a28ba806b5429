"""The usual parametrizations: a weight by its direction and length, one of spectral norm 1, one
with orthogonal rows or columns.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm import linalg, ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import finfo, int32
from flowvm.nn import functional as F
from flowvm.nn.module import Module
from flowvm.nn.modules.conv import _ConvTransposeNd
from flowvm.nn.utils.parametrize import register_parametrization
from flowvm.nn.utils.weight_norm import directed, norm_except_dim

__dir__ = listing(globals())


class _WeightNorm(Module):
    """Direction and length (Salimans and Kingma, 2016)."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return directed(weight_g, weight_v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lengths of a weight's slices, and the weight."""
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Have `module.<name>` computed as lengths (`original0`) times directions (`original1` divided
    by its lengths), one for each index of `dim`, or one in all if that is None.

    State dicts of the older `nn.utils.weight_norm` load.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> list(layer.state_dict())
    ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def older(state_dict: dict[str, object], prefix: str, *rest: object) -> None:
        old, new = (f"{prefix}{name}_g", f"{prefix}{name}_v"), f"{prefix}parametrizations.{name}."
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                state_dict[f"{new}original{i}"] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(older)
    return module


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which power iteration follows (Miyato et al.,
    2018).
    """

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise IndexError(f"dim {dim} is out of range for a weight of {weight.ndim} dimensions")
        if n_power_iterations <= 0:
            raise ArgumentError(
                f"spectral_norm: n_power_iterations is positive, got {n_power_iterations}"
            )
        self.dim = dim if dim >= 0 else dim + weight.ndim
        self.eps = eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            matrix = self._matrix(weight).detach()
            h, w = matrix.shape
            self.register_buffer("_u", F.normalize(_drawn(matrix, h), dim=0, eps=eps))
            self.register_buffer("_v", F.normalize(_drawn(matrix, w), dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.dim != 0:
            others = (d for d in range(weight.ndim) if d != self.dim)
            weight = weight.permute(self.dim, *others)
        return ops.flatten(weight, 1)

    def _iterate(self, matrix: Tensor, times: int) -> None:
        with no_grad():
            for _ in range(times):
                self._u.copy_(F.normalize(ops.mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(F.normalize(ops.mv(matrix.t(), self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / ops.dot(u, ops.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """Itself: what has the norm already stays."""
        return value


def _drawn(like: Tensor, n: int) -> Tensor:
    out: Tensor = ops.empty(n, dtype=like.dtype, device=like.device).normal_(0, 1)
    return out


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Have `module.<name>` divided by its largest singular value, as a matrix of `dim` (by default
    0, or 1 for transposed convolutions) by all else.

    In training, each call takes n_power_iterations steps towards it.

    >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 3), n_power_iterations=50)
    >>> flow.allclose(flow.linalg.svdvals(layer.weight)[0], flow.tensor(1.0), atol=1e-4)
    True
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{type(module).__name__} has no parameter or buffer {name!r}")
    if dim is None:
        dim = 1 if isinstance(module, _ConvTransposeNd) else 0
    parametrization = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, parametrization)


# --- orthogonal -----------------------------------------------------------------------------------


def _skew(x: Tensor) -> Tensor:
    """A skew-symmetric matrix (*, n, n) of what stands in x (*, n, k) on and below the diagonal."""
    n, k = x.shape[-2:]
    lower = ops.tril(x)
    if n != k:
        lower = ops.cat([lower, x.new_zeros((*x.shape[:-2], n, n - k))], -1)
    return lower - lower.mT


def _exponential(x: Tensor) -> Tensor:
    """exp(A) of the skew-symmetric A, the columns that x (*, n, k) has."""
    return linalg.matrix_exp(_skew(x))[..., : x.shape[-1]]


def _cayley(x: Tensor) -> Tensor:
    """(I - A / 2)⁻¹ (I + A / 2) of the skew-symmetric A, the columns that x (*, n, k) has."""
    half = _skew(x) * 0.5
    eye = ops.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    return linalg.solve(eye - half, eye + half)[..., : x.shape[-1]]


def _householder(x: Tensor) -> Tensor:
    """The product of the reflectors below x's diagonal, its columns with the diagonal's signs."""
    below = ops.tril(x, -1)
    tau = 2.0 / (1.0 + (below * below).sum(-2))
    signs = x.detach().diagonal(0, -2, -1).to(int32)  # which are 1 or -1 and stay so
    return linalg.householder_product(below, tau) * signs.unsqueeze(-2)


_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix_exp": _exponential,
    "cayley": _cayley,
    "householder": _householder,
}


def _is_orthogonal(q: Tensor) -> bool:
    n, k = q.shape[-2:]
    eye = ops.eye(k, dtype=q.dtype, device=q.device)
    return bool(ops.allclose(q.mT @ q, eye, atol=10.0 * n * finfo(q.dtype).eps))


def _made_orthogonal(x: Tensor) -> Tensor:
    """Q of tall matrices x = Q R, where R has no negative number on its diagonal."""
    factors, tau = ops.geqrf(x)
    signs = factors.diagonal(0, -2, -1).sgn().unsqueeze(-2)
    return linalg.householder_product(factors, tau) * signs  # type: ignore[no-any-return]


class _Orthogonal(Module):
    """Orthonormal columns, or rows where there are fewer of them, by one of _MAPS.

    With `base` it is that times the map, near whose zero training begins (Lezcano-Casado,
    "Trivializations for gradient-based optimization on manifolds", 2019).
    """

    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        wide = X.shape[-2] < X.shape[-1]
        q = _MAPS[self.orthogonal_map](X.mT if wide else X)
        base = self.base if self.use_trivialization else None
        if base is not None:  # which it has from the first assignment on
            q = base @ q
        return q.mT if wide else q

    def right_inverse(self, Q: Tensor) -> Tensor:
        """Return the parameter that the map turns into Q; Q is made orthogonal first if
        necessary.
        """
        if Q.shape != self.shape:
            raise ArgumentError(
                f"orthogonal: the weight has shape {tuple(self.shape)}, got {tuple(Q.shape)}"
            )
        wide = Q.shape[-2] < Q.shape[-1]
        tall = Q.mT if wide else Q
        if self.use_trivialization:
            self.base = self._completed(tall)
            # minus one on the diagonal: of that the reflectors' product is the identity
            start = ops.zeros_like(Q)
            start.diagonal(0, -2, -1).fill_(-1.0)
            return start
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                f"orthogonal: {self.orthogonal_map} without use_trivialization has no inverse, so "
                "the parameter cannot be assigned"
            )
        factors, tau = ops.geqrf(tall)
        signs = factors.diagonal(0, -2, -1).sign()
        signs = ops.where(tau.eq(0.0), -signs, signs)  # LAPACK left these reflectors out
        signed = ops.diagonal_scatter(factors, signs, 0, -2, -1)
        return signed.mT if wide else signed

    def _completed(self, q: Tensor) -> Tensor:
        """An orthogonal matrix whose first columns are those of the tall q, made orthogonal."""
        n, k = q.shape[-2:]
        if n == k:
            return q.clone() if _is_orthogonal(q) else _made_orthogonal(q)
        more = ops.randn((*q.shape[:-2], n, n - k), dtype=q.dtype, device=q.device)
        return _made_orthogonal(ops.cat([q, more], -1))


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Have `module.<name>`, matrices (*, m, n), computed so that its columns are orthonormal, or
    its rows where m < n.

    orthogonal_map      "matrix_exp" or "cayley", of a skew-symmetric matrix, or "householder", a
                        product of reflections; by default the first for square matrices, and the
                        last for others
    use_trivialization  keep what was assigned as a factor, `parametrizations.<name>[0].base`

    >>> w = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)).weight
    >>> flow.allclose(w @ w.T, flow.eye(3), atol=1e-5)
    True
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{type(module).__name__} has no parameter or buffer {name!r}")
    if weight.ndim < 2:
        raise ArgumentError(
            f"orthogonal: {name} must be matrices (*, m, n), got shape {tuple(weight.shape)}"
        )
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square else "householder"
    if orthogonal_map not in _MAPS:
        raise ArgumentError(
            f"orthogonal: orthogonal_map is one of {', '.join(map(repr, _MAPS))}, got "
            f"{orthogonal_map!r}"
        )
    parametrization = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, parametrization, unsafe=True)


__all__ = own_names(globals())
