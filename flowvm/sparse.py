"""`flow.sparse`: flowvm has no sparse tensors; each name raises an error that says so."""

from flowvm.loading.absent import nothing_of
from flowvm.vm.callers.tracebacks import border

__getattr__ = border(nothing_of("sparse"))
