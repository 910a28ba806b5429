"""`torch.fx.passes.graph_drawer`, which does not exist here; its names say what to use instead."""

from flowvm.loading.missing_names import nothing_of

__getattr__ = nothing_of("fx.passes.graph_drawer")
