"""PyTorch's own samples of its modules, run by flowvm's of the same name: output, gradients of
inputs and parameters, state dict, repr.  Skipped without torch.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn

torch = pytest.importorskip("torch")
common_modules = pytest.importorskip("torch.testing._internal.common_modules")

SEQUENCES = (
    "GRU", "GRUCell", "LSTM", "LSTMCell", "MultiheadAttention", "RNN", "RNNCell", "Transformer",
    "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
)  # fmt: skip
RANDOM = ("FractionalMaxPool2d", "FractionalMaxPool3d")
INFOS = {info.module_cls.__name__: info for info in common_modules.module_db}
LOGARITHMS = ("KLDivLoss",)  # of negative numbers: whether a gradient beside NaN is one as well
CASES = [
    (name, dtype)
    for name in INFOS
    for dtype in ("float32", "float64")
    if hasattr(nn, name) and name not in (*SEQUENCES, *RANDOM)
    # whose target hangs on the input, which the gradient in float64 shows
    if (name, dtype) != ("KLDivLoss", "float64")
]
MOST = 6  # samples of a module: the later ones vary what the first have shown
MOST_OF_SEQUENCES = 16  # spread over all that there are
# (relative, absolute); of ctc_loss it sums logarithms of some hundred, each rounded
TOLERANCES = {"float32": (3e-4, 3e-5), "float64": (1e-7, 1e-8)}
TOLERANCE_OF_CTC = {"float32": (3e-4, 1e-3), "float64": (1e-7, 1e-8)}


def ours(x: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """The flowvm counterpart of an argument; tensors that require gradients go into `pairs`."""
    if isinstance(x, torch.Tensor):
        tensor = flow.tensor(x.detach().numpy().copy())
        if x.requires_grad:
            tensor.requires_grad_(True)
            pairs.append((x, tensor))
        return tensor
    if isinstance(x, torch.nn.TransformerEncoderLayer):
        return nn.TransformerEncoderLayer(
            x.linear1.in_features, x.self_attn.num_heads, x.linear1.out_features, 0.0,
            ours(x.activation, pairs), batch_first=x.self_attn.batch_first,
            norm_first=x.norm_first, bias=x.linear1.bias is not None,
        )  # fmt: skip
    if isinstance(x, torch.dtype):
        return getattr(flow, str(x).removeprefix("torch."))
    if isinstance(x, torch.device):
        return str(x)
    if isinstance(x, (list, tuple)):
        return type(x)(ours(item, pairs) for item in x)
    if isinstance(x, dict):
        return {key: ours(item, pairs) for key, item in x.items()}
    own = callable(x) and getattr(x, "__module__", "").startswith("torch")
    return getattr(nn.functional, x.__name__) if own else x


def tensors(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in tensors(item)]
    return [] if result is None else [result]


def same(mine: Any, theirs: Any, what: str, tolerance: tuple[float, float]) -> None:
    assert tuple(mine.shape) == tuple(theirs.shape), what
    assert str(mine.dtype).rpartition(".")[2] == str(theirs.dtype).removeprefix("torch."), what
    np.testing.assert_allclose(
        mine.detach().numpy(), theirs.detach().numpy(), *tolerance, err_msg=what
    )


def gradients(lib: Any, outputs: list[Any], inputs: list[Any], seeds: list[Any]) -> Any:
    expected = [(out, seed) for out, seed in zip(outputs, seeds, strict=True) if out.requires_grad]
    if not expected:
        return []
    outs, arguments = zip(*expected, strict=True)
    return lib.autograd.grad(
        outs, inputs, [lib.tensor(seed) for seed in arguments], allow_unused=True
    )


def compare(name: str, info: Any, sample: Any, dtype: str, training: bool) -> None:
    constructor, width = sample.constructor_input, getattr(torch, dtype)
    theirs = info.module_cls(*constructor.args, **constructor.kwargs).to(width).train(training)
    args: list[tuple[Any, Any]] = []
    mine = getattr(nn, name)(*ours(constructor.args, []), **ours(constructor.kwargs, []))
    mine = mine.to(getattr(flow, dtype)).train(training)
    assert repr(mine) == repr(theirs).replace("NonDynamicallyQuantizableLinear", "Linear")
    if name.startswith("Lazy"):
        theirs(*sample.forward_input.args)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict({key: ours(t, []) for key, t in theirs.state_dict().items()})
    called = sample.forward_input
    actual = tensors(mine(*ours(called.args, args), **ours(called.kwargs, args)))
    expected = tensors(theirs(*called.args, **called.kwargs))
    assert len(actual) == len(expected)
    if name == "RReLU" and training:
        return
    for own, target in zip(actual, expected, strict=True):
        same(own, target, "output", TOLERANCES[dtype])
    seeds = [np.cos(np.arange(t.numel())).reshape(t.shape).astype(dtype) for t in expected]
    slopes = gradients(flow, actual, [*(b for _, b in args), *mine.parameters()], seeds)
    right = gradients(torch, expected, [*(a for a, _ in args), *theirs.parameters()], seeds)
    tolerance = (TOLERANCE_OF_CTC if name == "CTCLoss" else TOLERANCES)[dtype]
    for k, (own, target) in enumerate(zip(slopes, right, strict=True)):
        if own is None or target is None:
            assert target is None or not target.any(), f"gradient {k}"
            assert own is None or not own.numpy().any(), f"gradient {k}"
        elif not (name in LOGARITHMS and target.isnan().any()):
            same(own, target, f"gradient {k}", tolerance)
    for key, value in theirs.state_dict().items():
        same(mine.state_dict()[key], value, key, TOLERANCES[dtype])


def samples(name: str, dtype: str, training: bool) -> list[Any]:
    """All samples of a module that are called."""
    info = INFOS[name]
    options = {"device": "cpu", "dtype": getattr(torch, dtype), "requires_grad": True}
    every = info.module_inputs_func(info, training=training, **options)
    return [sample for sample in every if sample.forward_input is not None]


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.product(3)
def test_samples(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    modes = (True, False) if INFOS[name].train_and_eval_differ else (True,)
    for training in modes:
        every = samples(name, dtype, training)
        assert every
        for sample in itertools.islice(every, MOST):
            compare(name, INFOS[name], sample, dtype, training)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.filterwarnings("ignore")
def test_samples_of_sequences(name: str, training: bool) -> None:
    torch.manual_seed(0)
    every = samples(name, "float64", training)
    assert every
    for sample in every[:: -(-len(every) // MOST_OF_SEQUENCES)]:
        compare(name, INFOS[name], sample, "float64", training)


@pytest.mark.parametrize("n", [2, 3])
def test_windows_at_given_places(n: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3, 7, 6, 5)[: n + 2])
    where = rng.uniform(size=(2, 3, n))
    name = f"fractional_max_pool{n}d_with_indices"
    result = getattr(nn.functional, name)(
        flow.tensor(x), 2, output_size=(4, 3, 2)[:n], _random_samples=flow.tensor(where)
    )
    right = getattr(torch.nn.functional, name)(
        torch.tensor(x), 2, output_size=(4, 3, 2)[:n], _random_samples=torch.tensor(where)
    )
    for ours, expected in zip(result, right, strict=True):
        np.testing.assert_array_equal(ours.numpy(), expected.numpy())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (11, 2), (5, 9)])
@pytest.mark.parametrize("corners", [False, True])
def test_smoothed_resizing(
    mode: str, size: tuple[int, int], corners: bool, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(2, 2, 7, 8))
    actual, right = (
        lib.nn.functional.interpolate(
            lib.tensor(x), size, mode=mode, align_corners=corners, antialias=True
        )
        for lib in (flow, torch)
    )
    np.testing.assert_allclose(actual.numpy(), right.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("targets", [[0, 5, 9, 2, 3], [1, 1], 7])
def test_adaptive_softmax(targets: Any, rng: np.random.Generator) -> None:
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], div_value=2.0).double()
    mine = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], div_value=2.0).double()
    mine.load_state_dict({key: t.numpy().copy() for key, t in theirs.state_dict().items()})
    x = rng.normal(size=(*np.shape(targets), 8))
    results = []
    for lib, layer in ((flow, mine), (torch, theirs)):
        output, loss = layer(lib.tensor(x), lib.tensor(targets))
        loss.backward()
        grads = [p.grad for p in layer.parameters() if p.grad is not None]
        values = [output, loss, *grads]
        if np.ndim(targets):
            values += [layer.log_prob(lib.tensor(x)), layer.predict(lib.tensor(x))]
        results.append([np.array(value.detach().numpy()) for value in values])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10)
    with pytest.raises(IndexError):
        mine(flow.tensor(x), flow.tensor(targets) * 0 + 10).loss.item()


def test_normalization_across_maps_as_torch_7_had_it(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 6, 3, 2))
    actual, right = (lib.nn.CrossMapLRN2d(4, alpha=0.1)(lib.tensor(x)) for lib in (flow, torch))
    np.testing.assert_allclose(actual.numpy(), right.numpy(), rtol=1e-12)
