"""Every layer and loss against torch: outputs, gradients, buffers. Skipped without torch."""

import math
from typing import Any

import numpy as np
import pytest

import flowvm as flow

CLASSES = np.array([2, 0, 3, 1])
IMAGE_CLASSES = np.arange(4 * 3 * 2).reshape(4, 3, 2) % 5
SIGNS = np.array([1, -1, -1, 1])
INDICES = np.array([[0, 3, 3], [1, 0, 4]])


def _called(module: Any, shape: tuple[int, ...]) -> Any:
    """A lazy module that has seen an input."""
    lib = flow if isinstance(module, flow.nn.Module) else __import__("torch")
    module.eval()(lib.ones(shape))
    return module


LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "linear": (lambda nn: nn.Linear(5, 3), ((4, 5),)),
    "linear-3d-no-bias": (lambda nn: nn.Linear(5, 3, bias=False), ((2, 4, 5),)),
    "linear-1d": (lambda nn: nn.Linear(5, 3), ((5,),)),
    "bilinear": (lambda nn: nn.Bilinear(3, 4, 5), ((2, 6, 3), (2, 6, 4))),
    "flatten": (lambda nn: nn.Flatten(), ((2, 3, 4),)),
    "unflatten": (lambda nn: nn.Unflatten(1, (2, -1)), ((3, 8, 2),)),
    "identity": (lambda nn: nn.Identity(3, any=2), ((2, 3),)),
    "conv1d": (lambda nn: nn.Conv1d(3, 4, 3, padding=1), ((2, 3, 7),)),
    "conv1d-unbatched": (lambda nn: nn.Conv1d(3, 4, 3), ((3, 7),)),
    "conv1d-same-even": (lambda nn: nn.Conv1d(3, 4, 4, padding="same"), ((2, 3, 7),)),
    "conv2d": (lambda nn: nn.Conv2d(3, 4, 3), ((2, 3, 6, 5),)),
    "conv2d-strided": (
        lambda nn: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        ((2, 4, 7, 6),),
    ),
    "conv2d-groups": (lambda nn: nn.Conv2d(4, 6, 3, groups=2, bias=False), ((2, 4, 5, 5),)),
    "conv2d-same": (
        lambda nn: nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(2, 1)),
        ((2, 2, 6, 5),),
    ),
    "conv2d-valid": (lambda nn: nn.Conv2d(2, 3, 3, padding="valid"), ((2, 2, 6, 5),)),
    "batchnorm1d": (lambda nn: nn.BatchNorm1d(5), ((6, 5),)),
    "batchnorm1d-3d": (lambda nn: nn.BatchNorm1d(5, momentum=0.3), ((6, 5, 4),)),
    "batchnorm1d-average": (lambda nn: nn.BatchNorm1d(5, momentum=None), ((6, 5),)),
    "batchnorm2d": (lambda nn: nn.BatchNorm2d(3, eps=1e-3), ((4, 3, 5, 2),)),
    "batchnorm2d-bare": (
        lambda nn: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        ((4, 3, 5, 2),),
    ),
    "layernorm": (lambda nn: nn.LayerNorm(6), ((4, 6),)),
    "layernorm-2": (lambda nn: nn.LayerNorm((3, 6), eps=1e-3), ((4, 3, 6),)),
    "layernorm-no-bias": (lambda nn: nn.LayerNorm(6, bias=False), ((4, 6),)),
    "layernorm-bare": (lambda nn: nn.LayerNorm(6, elementwise_affine=False), ((4, 6),)),
    "rmsnorm": (lambda nn: nn.RMSNorm(6, eps=1e-5), ((4, 6),)),
    "rmsnorm-default-eps": (lambda nn: nn.RMSNorm((3, 6)), ((4, 3, 6),)),
    "groupnorm": (lambda nn: nn.GroupNorm(2, 6), ((4, 6, 3),)),
    "groupnorm-4d": (lambda nn: nn.GroupNorm(3, 6, affine=False), ((2, 6, 3, 2),)),
    "instancenorm1d": (lambda nn: nn.InstanceNorm1d(3), ((4, 3, 5),)),
    "instancenorm2d": (lambda nn: nn.InstanceNorm2d(3, affine=True), ((4, 3, 5, 2),)),
    "instancenorm2d-unbatched": (lambda nn: nn.InstanceNorm2d(3), ((3, 5, 2),)),
    "maxpool1d": (lambda nn: nn.MaxPool1d(3, 2, padding=1), ((2, 3, 8),)),
    "maxpool2d": (lambda nn: nn.MaxPool2d(2), ((2, 3, 6, 5),)),
    "maxpool2d-ceil": (
        lambda nn: nn.MaxPool2d((3, 2), 2, (1, 0), dilation=(1, 2), ceil_mode=True),
        ((2, 3, 6, 6),),
    ),
    "avgpool1d": (lambda nn: nn.AvgPool1d(3, 2, 1), ((2, 3, 8),)),
    "avgpool2d": (lambda nn: nn.AvgPool2d((2, 3), count_include_pad=False), ((2, 3, 6, 6),)),
    "adaptiveavg1d": (lambda nn: nn.AdaptiveAvgPool1d(3), ((2, 3, 8),)),
    "adaptiveavg2d": (lambda nn: nn.AdaptiveAvgPool2d((3, None)), ((2, 3, 7, 5),)),
    "adaptivemax1d": (lambda nn: nn.AdaptiveMaxPool1d(3), ((2, 3, 8),)),
    "adaptivemax2d": (lambda nn: nn.AdaptiveMaxPool2d((3, 2)), ((2, 3, 7, 5),)),
    "conv3d": (
        lambda nn: nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=1, groups=2),
        ((2, 2, 3, 5, 4),),
    ),
    "conv1d-reflect": (
        lambda nn: nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"),
        ((2, 2, 5),),
    ),
    "conv2d-circular-same": (
        lambda nn: nn.Conv2d(2, 3, (3, 4), padding="same", padding_mode="circular"),
        ((2, 2, 5, 6),),
    ),
    "convtranspose1d": (
        lambda nn: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2),
        ((2, 4, 5),),
    ),
    "convtranspose2d": (
        lambda nn: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, dilation=(1, 2), bias=False),
        ((2, 3, 3, 4),),
    ),
    "convtranspose3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, stride=2), ((1, 2, 2, 3, 2),)),
    "pads1d": (
        lambda nn: nn.Sequential(
            nn.ConstantPad1d((1, 2), 0.5),
            nn.ReflectionPad1d(2),
            nn.ReplicationPad1d((0, 1)),
            nn.CircularPad1d(1),
            nn.ZeroPad1d((-1, 2)),
        ),
        ((2, 3, 4),),
    ),
    "pads2d": (
        lambda nn: nn.Sequential(
            nn.ConstantPad2d((1, 0, 2, 1), 0.5),
            nn.ReflectionPad2d(1),
            nn.ReplicationPad2d(1),
            nn.CircularPad2d((1, 0, 0, 2)),
            nn.ZeroPad2d(1),
        ),
        ((2, 2, 3, 4),),
    ),
    "pads3d": (
        lambda nn: nn.Sequential(
            nn.ConstantPad3d(1, 0.5),
            nn.ReflectionPad3d((1, 0, 0, 1, 1, 0)),
            nn.ReplicationPad3d((0, 1, 0, 0, 0, 0)),
            nn.CircularPad3d((0, 1, 0, 0, 0, 0)),
            nn.ZeroPad3d((0, 0, 1, 0, 0, 0)),
        ),
        ((1, 2, 2, 3, 2),),
    ),
    "maxpool3d": (lambda nn: nn.MaxPool3d((2, 3, 2), 2, (1, 0, 1)), ((2, 2, 4, 5, 3),)),
    "avgpool3d": (lambda nn: nn.AvgPool3d(2, 1, 1, count_include_pad=False), ((1, 2, 3, 4, 3),)),
    "adaptive3d": (
        lambda nn: nn.Sequential(nn.AdaptiveAvgPool3d((3, 4, None)), nn.AdaptiveMaxPool3d(2)),
        ((2, 2, 4, 5, 3),),
    ),
    "lppools": (
        lambda nn: nn.Sequential(
            nn.LPPool3d(2.0, (1, 2, 2)),
            nn.Flatten(2, 3),
            nn.LPPool2d(3, (1, 2), 1),
            nn.Flatten(2),
            nn.LPPool1d(1.0, 2),
        ),
        (np.linspace(0.1, 2.0, 96).reshape(1, 2, 3, 4, 4),),
    ),
    "batchnorm3d": (lambda nn: nn.BatchNorm3d(3), ((4, 3, 2, 3, 2),)),
    "syncbatchnorm": (lambda nn: nn.SyncBatchNorm(3, momentum=None), ((4, 3, 2),)),
    "instancenorm3d": (lambda nn: nn.InstanceNorm3d(3, affine=True), ((4, 3, 2, 3, 2),)),
    "localresponsenorm": (lambda nn: nn.LocalResponseNorm(4, k=2.0), ((2, 6, 3, 2),)),
    "softmax2d": (lambda nn: nn.Softmax2d(), ((2, 4, 3, 2),)),
    "pairwisedistance": (lambda nn: nn.PairwiseDistance(keepdim=True), ((4, 6), (4, 6))),
    "cosinesimilarity": (lambda nn: nn.CosineSimilarity(-1), ((4, 6), (4, 6))),
    "lazy1d": (
        lambda nn: _called(
            nn.Sequential(
                nn.LazyConv1d(4, 2),
                nn.LazyBatchNorm1d(),
                nn.LazyConvTranspose1d(3, 2),
                nn.LazyInstanceNorm1d(affine=True),
                nn.LazyLinear(2),
            ),
            (2, 2, 5),
        ),
        ((2, 2, 5),),
    ),
    "lazy2d": (
        lambda nn: _called(
            nn.Sequential(
                nn.LazyConv2d(4, 2),
                nn.LazyBatchNorm2d(),
                nn.LazyConvTranspose2d(3, 2),
                nn.LazyInstanceNorm2d(),
            ),
            (2, 2, 4, 3),
        ),
        ((2, 2, 4, 3),),
    ),
    "lazy3d": (
        lambda nn: _called(
            nn.Sequential(
                nn.LazyConv3d(4, 2),
                nn.LazyBatchNorm3d(),
                nn.LazyConvTranspose3d(3, 2),
                nn.LazyInstanceNorm3d(),
            ),
            (2, 2, 3, 3, 2),
        ),
        ((2, 2, 3, 3, 2),),
    ),
    "unfold": (lambda nn: nn.Unfold((2, 3), 2, 1, (1, 2)), ((2, 3, 6, 7),)),
    "unfold-unbatched": (lambda nn: nn.Unfold(3), ((3, 5, 4),)),
    "fold": (lambda nn: nn.Fold((5, 7), (2, 3), (2, 1), (1, 2), (2, 3)), ((2, 12, 9),)),
    "fold-unbatched": (lambda nn: nn.Fold(4, 2, stride=2), ((8, 4),)),
    "pixelshuffle": (lambda nn: nn.PixelShuffle(2), ((2, 8, 3, 2),)),
    "pixelunshuffle": (lambda nn: nn.PixelUnshuffle(3), ((2, 2, 3, 6),)),
    "channelshuffle": (lambda nn: nn.ChannelShuffle(3), ((2, 6, 3, 2),)),
    "upsample-nearest": (lambda nn: nn.Upsample(scale_factor=2), ((2, 3, 4, 5),)),
    "upsample-linear": (lambda nn: nn.Upsample(7, mode="linear"), ((2, 3, 4),)),
    "upsample-bilinear": (
        lambda nn: nn.Upsample(scale_factor=(1.7, 0.6), mode="bilinear"),
        ((2, 3, 4, 5),),
    ),
    "upsample-bicubic": (
        lambda nn: nn.Upsample((7, 3), mode="bicubic", align_corners=True),
        ((2, 3, 4, 5),),
    ),
    "upsample-trilinear": (
        lambda nn: nn.Upsample(scale_factor=1.6, mode="trilinear", recompute_scale_factor=True),
        ((1, 2, 3, 4, 5),),
    ),
    "upsamplingnearest2d": (lambda nn: nn.UpsamplingNearest2d((5, 9)), ((2, 1, 3, 4),)),
    "upsamplingbilinear2d": (lambda nn: nn.UpsamplingBilinear2d(scale_factor=3), ((2, 1, 3, 4),)),
    "embedding": (lambda nn: nn.Embedding(5, 3), (INDICES,)),
    "embedding-padding": (lambda nn: nn.Embedding(5, 3, padding_idx=-2), (INDICES,)),
    "embeddingbag": (lambda nn: nn.EmbeddingBag(5, 3, padding_idx=3), (INDICES,)),
    "embeddingbag-sum": (
        lambda nn: nn.EmbeddingBag(5, 3, mode="sum"),
        (INDICES.reshape(-1), np.array([0, 2, 2]), (6,)),
    ),
    "embeddingbag-max": (
        lambda nn: nn.EmbeddingBag(5, 3, mode="max", include_last_offset=True),
        (INDICES.reshape(-1), np.array([0, 2, 2, 6])),
    ),
    "dropout-0": (lambda nn: nn.Dropout(0.0), ((3, 4),)),
    "prelu": (lambda nn: nn.PReLU(), ((3, 4),)),
    "prelu-channels": (lambda nn: nn.PReLU(4, 0.1), ((3, 4, 2),)),
    "sequential": (
        lambda nn: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 2)),
        ((5, 4),),
    ),
    "celu": (lambda nn: nn.CELU(0.7), ((4, 5),)),
    "elu": (lambda nn: nn.ELU(1.5), ((4, 5),)),
    "gelu": (lambda nn: nn.GELU(), ((4, 5),)),
    "gelu-tanh": (lambda nn: nn.GELU("tanh"), ((4, 5),)),
    "glu": (lambda nn: nn.GLU(), ((4, 6),)),
    "glu-dim": (lambda nn: nn.GLU(0), ((4, 6),)),
    "hardshrink": (lambda nn: nn.Hardshrink(0.4), ((4, 5),)),
    "hardsigmoid": (lambda nn: nn.Hardsigmoid(), ((4, 5),)),
    "hardswish": (lambda nn: nn.Hardswish(), ((4, 5),)),
    "hardtanh": (lambda nn: nn.Hardtanh(-0.5, 0.7), ((4, 5),)),
    "leakyrelu": (lambda nn: nn.LeakyReLU(0.2), ((4, 5),)),
    "logsigmoid": (lambda nn: nn.LogSigmoid(), ((4, 5),)),
    "logsoftmax": (lambda nn: nn.LogSoftmax(1), ((4, 5),)),
    "mish": (lambda nn: nn.Mish(), ((4, 5),)),
    "relu": (lambda nn: nn.ReLU(), ((4, 5),)),
    "relu6": (lambda nn: nn.ReLU6(), ((4, 5),)),
    "selu": (lambda nn: nn.SELU(), ((4, 5),)),
    "sigmoid": (lambda nn: nn.Sigmoid(), ((4, 5),)),
    "silu": (lambda nn: nn.SiLU(), ((4, 5),)),
    "softmax": (lambda nn: nn.Softmax(0), ((4, 5),)),
    "softmin": (lambda nn: nn.Softmin(-1), ((4, 5),)),
    "softplus": (lambda nn: nn.Softplus(2.0, 1.5), ((4, 5),)),
    "softshrink": (lambda nn: nn.Softshrink(0.4), ((4, 5),)),
    "softsign": (lambda nn: nn.Softsign(), ((4, 5),)),
    "tanh": (lambda nn: nn.Tanh(), ((4, 5),)),
    "tanhshrink": (lambda nn: nn.Tanhshrink(), ((4, 5),)),
    "threshold": (lambda nn: nn.Threshold(0.1, -2.0), ((4, 5),)),
}

PROBABILITIES = np.linspace(0.05, 0.95, 12).reshape(4, 3)
LOSSES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "l1": (lambda nn: nn.L1Loss(), ((4, 3), (4, 3))),
    "mse-sum": (lambda nn: nn.MSELoss(reduction="sum"), ((4, 3), (4, 3))),
    "mse-none": (lambda nn: nn.MSELoss(reduction="none"), ((4, 3), (4, 3))),
    "smooth_l1": (lambda nn: nn.SmoothL1Loss(beta=0.6), ((4, 3), (4, 3))),
    "huber": (lambda nn: nn.HuberLoss(delta=0.6), ((4, 3), (4, 3))),
    "cross_entropy": (lambda nn: nn.CrossEntropyLoss(), ((4, 5), CLASSES)),
    "cross_entropy-smooth": (
        lambda nn: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2),
        ((4, 5), CLASSES),
    ),
    "cross_entropy-image": (lambda nn: nn.CrossEntropyLoss(), ((4, 5, 3, 2), IMAGE_CLASSES)),
    "cross_entropy-soft": (lambda nn: nn.CrossEntropyLoss(), ((4, 3), PROBABILITIES)),
    "nll": (lambda nn: nn.NLLLoss(reduction="none"), ((4, 5), CLASSES)),
    "bce": (lambda nn: nn.BCELoss(), (PROBABILITIES, PROBABILITIES[::-1].copy())),
    "bce-logits": (lambda nn: nn.BCEWithLogitsLoss(), ((4, 3), PROBABILITIES)),
    "kl": (lambda nn: nn.KLDivLoss(reduction="batchmean"), ((4, 3), PROBABILITIES)),
    "kl-log": (lambda nn: nn.KLDivLoss(reduction="sum", log_target=True), ((4, 3), (4, 3))),
    "soft_margin": (lambda nn: nn.SoftMarginLoss(), ((4,), SIGNS)),
    "hinge": (lambda nn: nn.HingeEmbeddingLoss(0.7), ((4,), SIGNS)),
    "margin_ranking": (lambda nn: nn.MarginRankingLoss(0.3), ((4,), (4,), SIGNS)),
    "cosine": (lambda nn: nn.CosineEmbeddingLoss(0.1), ((4, 6), (4, 6), SIGNS)),
    "triplet": (lambda nn: nn.TripletMarginLoss(0.8, swap=True), ((4, 6), (4, 6), (4, 6))),
    "triplet-1": (lambda nn: nn.TripletMarginLoss(p=1.0), ((4, 6), (4, 6), (4, 6))),
    "ctc": (
        lambda nn: nn.CTCLoss(blank=4, reduction="sum"),
        ((6, 2, 5), np.array([[1, 1, 0], [2, 3, 0]]), np.array([6, 5]), np.array([3, 2])),
    ),
    "nll2d": (lambda nn: nn.NLLLoss2d(), ((4, 5, 3, 2), IMAGE_CLASSES)),
    "multi_margin": (lambda nn: nn.MultiMarginLoss(p=2, margin=0.7), ((4, 5), CLASSES)),
    "multilabel_margin": (
        lambda nn: nn.MultiLabelMarginLoss(),
        ((2, 4), np.array([[3, 0, -1, 1], [1, -1, 2, 0]])),
    ),
    "multilabel_soft_margin": (
        lambda nn: nn.MultiLabelSoftMarginLoss(reduction="sum"),
        ((4, 3), PROBABILITIES),
    ),
    "triplet_distance": (
        lambda nn: nn.TripletMarginWithDistanceLoss(swap=True, margin=0.6),
        ((4, 6), (4, 6), (4, 6)),
    ),
    "poisson": (lambda nn: nn.PoissonNLLLoss(), ((4, 3), PROBABILITIES * 9)),
    "poisson-full": (
        lambda nn: nn.PoissonNLLLoss(log_input=False, full=True, reduction="sum"),
        (PROBABILITIES, (PROBABILITIES * 9).astype(np.int64)),
    ),
    "gaussian": (lambda nn: nn.GaussianNLLLoss(full=True), ((4, 3), (4, 3), PROBABILITIES)),
}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.product(3)
def test_layer_in_training(case: str, like_torch: Any) -> None:
    like_torch.check(*LAYERS[case])


@pytest.mark.parametrize(
    "case", ["batchnorm1d", "batchnorm2d", "batchnorm2d-bare", "instancenorm2d", "sequential"]
)
def test_layer_in_evaluation(case: str, like_torch: Any) -> None:
    like_torch.check(*LAYERS[case], training=False)


@pytest.mark.parametrize("case", LOSSES)
def test_loss(case: str, like_torch: Any) -> None:
    like_torch.check(*LOSSES[case])


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "NLLLoss"])
def test_class_weights(loss: str, like_torch: Any) -> None:
    def make(nn: Any) -> Any:
        lib = like_torch.torch if nn is like_torch.torch.nn else __import__("flowvm")
        weight = lib.tensor([0.5, 1.0, 2.0, 0.1, 1.5], dtype=lib.float64)
        return getattr(nn, loss)(weight=weight, ignore_index=1)

    like_torch.check(make, ((4, 5), CLASSES))


def test_infinite_scores_of_classes_that_are_not_compared() -> None:
    import torch

    scores, classes = [[math.inf, 0.0, 0.0], [-math.inf, 0.0, 0.0]], [[0, -1, 1]] * 2
    values = []
    for lib in (flow, torch):
        x = lib.tensor(scores, requires_grad=True)
        loss = lib.nn.functional.multilabel_margin_loss(x, lib.tensor(classes), reduction="none")
        loss[:1].sum().backward()
        values.append((loss.tolist(), x.grad.tolist()))
    assert values[0] == values[1] == ([0.0, math.inf], [[0.0] * 3] * 2)
