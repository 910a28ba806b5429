"""Optimizers and learning rate schedules, with PyTorch's names and meaning (LAMB: OneFlow's).

A step issues one instruction a parameter, or some where it needs norms; a schedule only writes
numbers into the optimizer's parameter groups.
Not here: the arithmetic of a step (`ops/updates/optimizer.py`).
"""

from typing import Any

from flowvm.errors import MissingNameError
from flowvm.loading.listing import listing
from flowvm.optim import lr_scheduler as lr_scheduler
from flowvm.optim import swa_utils as swa_utils
from flowvm.vm.callers.tracebacks import border

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.optim.adagrad import Adadelta, Adagrad, RMSprop
from flowvm.optim.adam import Adam, AdamW
from flowvm.optim.adamax import Adamax, NAdam, RAdam
from flowvm.optim.factored import LAMB, Adafactor, Muon
from flowvm.optim.lbfgs import LBFGS
from flowvm.optim.optimizer import Optimizer
from flowvm.optim.rprop import ASGD, Rprop
from flowvm.optim.sgd import SGD
from flowvm.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD", "LAMB", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
    "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "SparseAdam", "lr_scheduler",
    "swa_utils",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())


@border
def __getattr__(name: str) -> Any:
    raise MissingNameError(f"flowvm.optim has no {name!r}", name, lambda: __all__)
