"""`torch.fx.passes.graph_drawer`, which is not here: a name of it says what there is instead."""

from flowvm.loading.absent import nothing_of

__getattr__ = nothing_of("fx.passes.graph_drawer")
