"""The classes of CUDA tensors that PyTorch had before dtypes: `flow.cuda.FloatTensor(2, 3)`.

`flowvm.ops.shapes.typed` says what calling one, and asking whether a tensor is one, means.
"""

from __future__ import annotations

from flowvm.ops.shapes.typed import on_cuda

BFloat16Tensor = on_cuda["BFloat16Tensor"]
BoolTensor = on_cuda["BoolTensor"]
ByteTensor = on_cuda["ByteTensor"]
CharTensor = on_cuda["CharTensor"]
DoubleTensor = on_cuda["DoubleTensor"]
FloatTensor = on_cuda["FloatTensor"]
HalfTensor = on_cuda["HalfTensor"]
IntTensor = on_cuda["IntTensor"]
LongTensor = on_cuda["LongTensor"]
ShortTensor = on_cuda["ShortTensor"]
