"""`flow.distributed.rpc`: ranks call no functions of each other; each name says so."""

from flowvm.loading.missing_names import nothing_of
from flowvm.vm.callers.tracebacks import border

__getattr__ = border(nothing_of("distributed.rpc"))
