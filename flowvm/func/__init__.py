"""`flow.func`: functions of functions: gradients, Jacobians, maps over a batch, modules.

PyTorch's `torch.func`, over the one tape of `flowvm.autograd`: transforms nest.  `trees` is what
they say of nested arguments.
Not here: `flow.autograd.functional`, whose functions take a point rather than give a function.
"""

from flowvm.func import forward_ad
from flowvm.func.batching import explain, vmap
from flowvm.func.stateless import functional_call, stack_module_state
from flowvm.func.transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
)
from flowvm.loading.listing import listing

__all__ = [
    "explain",
    "forward_ad",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]
__dir__ = listing(globals())
