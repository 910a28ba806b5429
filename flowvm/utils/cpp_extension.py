"""`flow.utils.cpp_extension`: there is no C++ here; each name says so."""

from flowvm.absent import nothing_of

__getattr__ = nothing_of("utils.cpp_extension")
