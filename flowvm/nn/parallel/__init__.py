"""`nn.parallel`: modules that train on several ranks.

Not here: groups and collectives (`flowvm.distributed`), layers (`flowvm.nn.modules`).
"""

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.nn.parallel.data_parallel import DataParallel, data_parallel
from flowvm.nn.parallel.distributed import DistributedDataParallel
from flowvm.nn.parallel.joins import Join, JoinHook, Joinable

__all__ = [
    "DataParallel", "DistributedDataParallel", "Join", "JoinHook", "Joinable", "data_parallel",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
