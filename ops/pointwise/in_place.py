"""The in-place methods that PyTorch has as functions too: `flow.clamp_(x, 0, 1)` is
`x.clamp_(0, 1)`.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm.eager.tensor import Tensor
from flowvm.ops.declare.composite import need_tensor

# public: each of flow
METHODS = """
    abs_ i0_ acos_ acosh_ addmv_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ as_strided_
    asin_ asinh_ atan_ atanh_ ceil_ clamp_ clamp_max_ clamp_min_ clip_ cos_ cosh_ deg2rad_
    detach_ erf_ erfc_ exp2_ exp_ expm1_ fill_ fix_ floor_ frac_ gcd_ index_put_ lcm_ ldexp_
    log10_ log1p_ log2_ log_ logit_ nan_to_num_ neg_ negative_ rad2deg_ reciprocal_
    resize_as_ round_ rsqrt_ sigmoid_ sin_ sinc_ sinh_ sqrt_ square_ tan_ tanh_ trunc_
    xlogy_ zero_
"""


def _function(name: str) -> Callable[..., Tensor]:
    def call(input: Tensor, *args: object, **kwargs: object) -> Tensor:
        changed: Tensor = getattr(need_tensor(name, "input", input), name)(*args, **kwargs)
        return changed

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`input.{name}(...)`: the method, as a function."
    return call


globals().update({name: _function(name) for name in METHODS.split()})
