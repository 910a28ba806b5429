"""`flow.sparse`: there are no sparse tensors here; each name says so."""

from flowvm.absent import nothing_of

__getattr__ = nothing_of("sparse")
