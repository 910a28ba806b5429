"""From all real numbers to a constraint's set: `biject_to` by a bijection, `transform_to` by some
transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm.distributions import constraints, transforms
from flowvm.loading.listing import listing, own_names

if TYPE_CHECKING:
    from flowvm.distributions.transforms import ComposeTransform, SigmoidTransform
    from flowvm.graph.memory.offsets import MemoryPlan


__dir__ = listing(globals())


class ConstraintRegistry:
    """Factories of transforms by constraint.

    >>> positive = flow.distributions.constraints.positive
    >>> flow.distributions.transform_to(positive)(flow.tensor(0.0))  # exp(0)
    tensor(1.)
    """

    def __init__(self) -> None:
        self._named: dict[Any, Callable[[Any], Any]] = {}
        self._bounded: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = []

    def register(
        self, constraint: object, factory: Callable[[Any], Any] | None = None
    ) -> Callable[[Any], Any]:
        """Let `factory(constraint)` make the transform to a constraint, or to all of a class; a
        decorator without it.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        self._named[constraint] = factory
        return factory

    def when(self, accepts: Callable[[Any], bool], factory: Callable[[Any], Any]) -> None:
        """Let `factory` make the transform to constraints of which `accepts` is true."""
        self._bounded.append((accepts, factory))

    def __call__(self, constraint: object) -> Any:
        """The transform to a constraint.  NotImplementedError where there is none."""
        for key in (constraint, type(constraint)):
            if key in self._named:
                return self._named[key](constraint)
        for accepts, factory in self._bounded:
            if accepts(constraint):
                return factory(constraint)
        raise NotImplementedError(f"Cannot transform {constraint!r} constraints")


biject_to = ConstraintRegistry()  # public: distributions
transform_to = ConstraintRegistry()  # public: distributions


def _has(*names: str) -> Callable[[Any], bool]:
    bounds = {"lower_bound", "upper_bound"}
    return lambda c: not c.is_discrete and bounds & set(vars(c)) == set(names)


def _above(constraint: MemoryPlan) -> ComposeTransform:
    parts = [transforms.ExpTransform()]
    return transforms.ComposeTransform(
        [*parts, transforms.AffineTransform(constraint.lower_bound, 1)]
    )


def _below(constraint: Any) -> ComposeTransform:
    return transforms.ComposeTransform(
        [transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)]
    )


def _between(constraint: Any) -> SigmoidTransform | ComposeTransform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if not hasattr(low, "shape") and not hasattr(high, "shape") and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform(
        [transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)]
    )


def _enter(registry: ConstraintRegistry) -> None:
    registry.register(constraints.real, lambda c: transforms.identity_transform)
    for named in (constraints.positive, constraints.nonnegative):
        registry.register(named, lambda c: transforms.ExpTransform())
    registry.register(
        constraints.independent,
        lambda c: transforms.IndependentTransform(
            registry(c.base_constraint), c.reinterpreted_batch_ndims
        ),
    )
    registry.register(constraints.lower_cholesky, lambda c: transforms.LowerCholeskyTransform())
    for named in (constraints.positive_definite, constraints.positive_semidefinite):
        registry.register(named, lambda c: transforms.PositiveDefiniteTransform())
    registry.register(constraints.corr_cholesky, lambda c: transforms.CorrCholeskyTransform())
    registry.register(
        constraints.cat,
        lambda c: transforms.CatTransform([registry(p) for p in c.cseq], c.dim, c.lengths),
    )
    registry.register(
        constraints.stack, lambda c: transforms.StackTransform([registry(p) for p in c.cseq], c.dim)
    )
    registry.when(_has("lower_bound"), _above)
    registry.when(_has("upper_bound"), _below)
    registry.when(_has("lower_bound", "upper_bound"), _between)


_enter(biject_to)
_enter(transform_to)
biject_to.register(constraints.simplex, lambda c: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda c: transforms.SoftmaxTransform())

__all__ = own_names(globals())
