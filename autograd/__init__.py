"""flowvm.autograd: gradients.

`flowvm.eager.calls` records a Node for each differentiable call; here is what goes back over
them. `engine` runs the nodes, `backward` is what programs call, `leaf` is where gradients end.
Not here: the gradients of ops, which stand beside their declarations.
"""

from flowvm.autograd import functional as functional
from flowvm.autograd import graph as graph
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from flowvm.autograd.backward import backward, grad
from flowvm.autograd.checkpoint import checkpoint, checkpoint_sequential
from flowvm.autograd.function import Function, FunctionCtx, once_differentiable
from flowvm.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from flowvm.autograd.gradcheck import gradcheck, gradgradcheck
from flowvm.autograd.hooks import RemovableHandle
from flowvm.autograd.leaf import AccumulateGrad
from flowvm.autograd.modes import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled,
)
from flowvm.autograd.variable import Variable
from flowvm.errors import GradcheckError

__all__ = [
    "AccumulateGrad", "Function", "FunctionCtx", "GradcheckError", "RemovableHandle", "Variable",
    "backward", "checkpoint", "checkpoint_sequential", "detect_anomaly", "enable_grad",
    "functional", "grad", "gradcheck", "gradgradcheck", "graph", "hessian", "hvp", "inference_mode",
    "is_anomaly_enabled", "is_grad_enabled", "is_inference_mode_enabled", "jacobian", "jvp",
    "no_grad", "once_differentiable", "set_detect_anomaly", "set_grad_enabled", "vhp", "vjp",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
