"""`flow.utils.cpp_extension`: there is no C++ here; each name says so."""

from flowvm.loading.missing_names import nothing_of
from flowvm.vm.callers.tracebacks import border

__getattr__ = border(nothing_of("utils.cpp_extension"))
