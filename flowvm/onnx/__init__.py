"""`flow.onnx`: a model's computation as an ONNX file, for other programs.

`export` captures one call of the model (`flowvm.nn.graph.function`) and translates each op of that
LogicalGraph, before any pass, to ONNX nodes that give the same numbers.  The package `onnx` is
imported when `export` is called.

Not here: capture (`nn.graph`), what an op means (`ops`), reading ONNX files.
"""

from flowvm.loading.listing import listing
from flowvm.onnx.exporter import TrainingMode as TrainingMode
from flowvm.onnx.exporter import export as export

__all__ = ["TrainingMode", "export", "is_in_onnx_export"]
__dir__ = listing(globals())


def is_in_onnx_export() -> bool:
    """Return False: an export runs the model as a call does."""
    return False
