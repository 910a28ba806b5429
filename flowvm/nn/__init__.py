"""Neural network layers: a Module tree over flowvm.ops, with PyTorch's names and meaning.

`parameter` and `module` are the ground, `modules` has the layers, `graph` nn.Graph.
Not here: kernels and gradients (`flowvm.ops`).
"""

from typing import TYPE_CHECKING

import flowvm.nn.graph.function  # it gives Graph its `trace`
import flowvm.nn.module_calls  # noqa: F401 - calls are told to captures
from flowvm.loading.listing import listing
from flowvm.loading.missing_names import other_names
from flowvm.nn import attention as attention
from flowvm.nn import common_types as common_types
from flowvm.nn import functional as functional
from flowvm.nn import init as init
from flowvm.nn import parallel as parallel
from flowvm.nn import parameter as parameter
from flowvm.nn import utils as utils

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.nn.composites.linear_cross_entropy import LinearCrossEntropyOptions
from flowvm.nn.graph.graph import Graph
from flowvm.nn.module import Module
from flowvm.nn.modules.activation import (
    CELU, ELU, GELU, GLU, SELU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid,
    LogSoftmax, Mish, PReLU, QuickGELU, RReLU, ReLU, ReLU6, SiLU, Sigmoid, Softmax, Softmax2d,
    Softmin, Softplus, Softshrink, Softsign, SquareReLU, Tanh, Tanhshrink, Threshold,
)
from flowvm.nn.modules.adaptive import AdaptiveLogSoftmaxWithLoss
from flowvm.nn.modules.attention import MultiheadAttention
from flowvm.nn.modules.batchnorm import (
    BatchNorm1d, BatchNorm2d, BatchNorm3d, FusedBatchNorm1d, FusedBatchNorm2d, FusedBatchNorm3d,
    SyncBatchNorm,
)
from flowvm.nn.modules.containers import (
    Identity, ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential,
)
from flowvm.nn.modules.conv import (
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
)
from flowvm.nn.modules.distance import CosineSimilarity, PairwiseDistance
from flowvm.nn.modules.dropout import (
    AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout,
)
from flowvm.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from flowvm.nn.modules.lazy import (
    LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d, LazyConv1d, LazyConv2d, LazyConv3d,
    LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d, LazyInstanceNorm1d,
    LazyInstanceNorm2d, LazyInstanceNorm3d, LazyLinear,
)
from flowvm.nn.modules.linear import Bilinear, Flatten, FusedMLP, Linear, Unflatten
from flowvm.nn.modules.loss import (
    BCELoss, BCEWithLogitsLoss, CTCLoss, CombinedMarginLoss, CosineEmbeddingLoss, CrossEntropyLoss,
    GaussianNLLLoss, HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, LinearCrossEntropyLoss,
    MSELoss, MarginRankingLoss, MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss,
    NLLLoss, NLLLoss2d, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from flowvm.nn.modules.normalization import (
    CrossMapLRN2d, GroupNorm, LayerNorm, LocalResponseNorm, RMSLayerNorm, RMSNorm,
)
from flowvm.nn.modules.padding import (
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d,
    ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d,
    ReplicationPad3d, ZeroPad1d, ZeroPad2d, ZeroPad3d,
)
from flowvm.nn.modules.pooling import (
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
    AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, FractionalMaxPool2d, FractionalMaxPool3d,
    LPPool1d, LPPool2d, LPPool3d, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool1d, MaxUnpool2d,
    MaxUnpool3d,
)
from flowvm.nn.modules.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from flowvm.nn.modules.shape import (
    ChannelShuffle, Fold, PixelShuffle, PixelUnshuffle, Unfold, Upsample, UpsamplingBilinear2d,
    UpsamplingNearest2d,
)
from flowvm.nn.modules.sparse import Embedding, EmbeddingBag
from flowvm.nn.modules.transformer import (
    Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer,
)
from flowvm.nn.parallel.data_parallel import DataParallel
from flowvm.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter

if TYPE_CHECKING:
    from flowvm.nn.modules.quantization import (
        FakeQuantization, MinMaxObserver, MovingAverageMinMaxObserver, QatConv1d, QatConv2d,
        QatConv3d, Quantization,
    )
    from flowvm.nn.modules.records import (
        CoinFlip, CropMirrorNormalize, OFRecordBytesDecoder, OFRecordImageDecoder,
        OFRecordImageDecoderRandomCrop, OFRecordImageGpuDecoderRandomCropResize, OFRecordRawDecoder,
        OFRecordReader, OfrecordRawDecoder, OfrecordReader,
    )

_LATE: dict[str, str] = {
    **dict.fromkeys((
        "FakeQuantization", "MinMaxObserver", "MovingAverageMinMaxObserver", "QatConv1d",
        "QatConv2d", "QatConv3d", "Quantization",
    ), "flowvm.nn.modules.quantization"),
    **dict.fromkeys((
        "CoinFlip", "CropMirrorNormalize", "OFRecordBytesDecoder", "OFRecordImageDecoder",
        "OFRecordImageDecoderRandomCrop", "OFRecordImageGpuDecoderRandomCropResize",
        "OFRecordRawDecoder", "OFRecordReader", "OfrecordRawDecoder", "OfrecordReader",
    ), "flowvm.nn.modules.records"),
}

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveLogSoftmaxWithLoss", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AlphaDropout", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Bilinear",
    "Buffer", "CTCLoss", "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d",
    "CoinFlip", "CombinedMarginLoss", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Conv1d",
    "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "CosineEmbeddingLoss", "CosineSimilarity", "CropMirrorNormalize", "CrossEntropyLoss",
    "CrossMapLRN2d", "DataParallel", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Embedding",
    "EmbeddingBag", "FakeQuantization", "FeatureAlphaDropout", "Flatten", "Fold",
    "FractionalMaxPool2d", "FractionalMaxPool3d", "FusedBatchNorm1d", "FusedBatchNorm2d",
    "FusedBatchNorm3d", "FusedMLP", "GRUCell", "GaussianNLLLoss", "Graph", "GroupNorm",
    "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss", "HuberLoss",
    "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss", "L1Loss",
    "LPPool1d", "LPPool2d", "LPPool3d", "LSTMCell", "LayerNorm", "LazyBatchNorm1d",
    "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d",
    "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear", "LeakyReLU", "Linear",
    "LinearCrossEntropyLoss", "LinearCrossEntropyOptions", "LocalResponseNorm", "LogSigmoid",
    "LogSoftmax", "MSELoss", "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "MaxPool3d",
    "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "MinMaxObserver", "Mish", "Module", "ModuleDict",
    "ModuleList", "MovingAverageMinMaxObserver", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss",
    "MultiMarginLoss", "MultiheadAttention", "NLLLoss", "NLLLoss2d", "OFRecordBytesDecoder",
    "OFRecordImageDecoder", "OFRecordImageDecoderRandomCrop",
    "OFRecordImageGpuDecoderRandomCropResize", "OFRecordRawDecoder", "OFRecordReader",
    "OfrecordRawDecoder", "OfrecordReader", "PReLU", "PairwiseDistance", "Parameter",
    "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss",
    "QatConv1d", "QatConv2d", "QatConv3d", "Quantization", "QuickGELU", "RMSLayerNorm", "RMSNorm",
    "RNNBase", "RNNCell", "RNNCellBase", "RReLU", "ReLU", "ReLU6", "ReflectionPad1d",
    "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
    "ReplicationPad3d", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "SoftMarginLoss",
    "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "SquareReLU",
    "SyncBatchNorm", "Tanh", "Tanhshrink", "Threshold", "Transformer", "TransformerDecoder",
    "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss", "Unflatten", "Unfold", "UninitializedBuffer",
    "UninitializedParameter", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "attention", "common_types", "functional", "init",
    "parallel", "parameter", "utils",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())

if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__ = other_names("nn", lambda: __all__, _LATE | {"image": "flowvm.nn.image"})
