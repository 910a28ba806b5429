"""`flow.sparse`: there are no sparse tensors here; each name says so."""

from flowvm.loading.absent import nothing_of
from flowvm.vm.callers.tracebacks import border

__getattr__ = border(nothing_of("sparse"))
