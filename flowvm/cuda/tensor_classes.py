"""The classes of CUDA tensors that PyTorch had before dtypes: `flow.cuda.FloatTensor(2, 3)`.

`flowvm.ops.shapes.tensor_classes` says what calling one, and asking whether a tensor is one, means.
"""

from __future__ import annotations

from flowvm.ops.shapes.tensor_classes import on_cuda

BFloat16Tensor = on_cuda["BFloat16Tensor"]  # public: cuda
BoolTensor = on_cuda["BoolTensor"]  # public: cuda
ByteTensor = on_cuda["ByteTensor"]  # public: cuda
CharTensor = on_cuda["CharTensor"]  # public: cuda
DoubleTensor = on_cuda["DoubleTensor"]  # public: cuda
FloatTensor = on_cuda["FloatTensor"]  # public: cuda
HalfTensor = on_cuda["HalfTensor"]  # public: cuda
IntTensor = on_cuda["IntTensor"]  # public: cuda
LongTensor = on_cuda["LongTensor"]  # public: cuda
ShortTensor = on_cuda["ShortTensor"]  # public: cuda
