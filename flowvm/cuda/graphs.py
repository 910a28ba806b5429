"""PyTorch's names of captured launches, which are captured by `flow.compile` here."""

from __future__ import annotations

from flowvm.errors import CaptureError


# public: cuda
class CUDAGraph:
    """PyTorch's name for launches that a device repeats, so that programs may name the type.
    `flow.compile` and `nn.Graph` capture here; making one is a CaptureError that says so.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise CaptureError(
            f"flow.cuda.{type(self).__name__}: a graph of a function or a module is captured by "
            f"flow.compile or nn.Graph, on CUDA devices as on the CPU"
        )


# public: cuda
class graph(CUDAGraph):  # noqa: N801 - PyTorch's name
    """PyTorch's context in which such launches are captured; see CUDAGraph."""
