"""`flow.distributed.tensor`: global tensors by PyTorch's names.

    from flowvm.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (4,))
    w = distribute_tensor(weight, mesh, [Shard(0)])    # w.placements, w.full_tensor(), w.to_local()

Here: what the ranks hold (`placement_types`), tensors and modules on a mesh (`dtensor`), styles of
tensor parallel modules (`parallel`).  Not here: what any of it does (`flowvm.ops.placed`), meshes
(`flowvm.distributed.device_mesh`).
"""

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributed.device_mesh import DeviceMesh, init_device_mesh
from flowvm.distributed.tensor.dtensor import (
    DTensor, distribute_module, distribute_tensor, empty, full, ones, rand, randn, zeros,
)
from flowvm.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module",
    "distribute_tensor", "empty", "full", "init_device_mesh", "ones", "rand", "randn", "zeros",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
