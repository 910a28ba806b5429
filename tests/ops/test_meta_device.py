"""The meta device: ops give results without values; an op that needs values is an error."""

import copy
import pickle

import numpy as np
import op_calls
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import CaptureError, DeviceError, ValuelessError
from flowvm.meta.dtype import ALL_DTYPES, MINIFLOATS

# Some sample asks for values: how many elements come out, or which computation is to be made.
ASKS = {
    "argwhere", "bincount", "chebyshev_polynomial_t", "chebyshev_polynomial_u",
    "chebyshev_polynomial_v", "chebyshev_polynomial_w", "cov", "ctc_loss", "hermite_polynomial_h",
    "hermite_polynomial_he", "histogram", "histogramdd", "index_put", "laguerre_polynomial_l",
    "legendre_polynomial_p", "masked_select", "matrix_exp", "nms", "nonzero", "one_hot",
    "repeat_interleave", "segment_reduce", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "unique", "unique_consecutive",
}  # fmt: skip
NAMED = [(name, op) for name, op in op_calls.all_samples() if op.name not in op_calls.NO_TENSOR]


def metas(tensors):
    return [None if t is None else (tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def called(op, sample, device):
    """Return the metas of the results, and of the inputs' gradients."""
    results = []

    def tensor(array):
        results.append(flow.tensor(array).to(device).clone())
        if op.grad and results[-1].dtype.is_floating_point:
            results[-1].requires_grad_()
        return results[-1]

    args, kwargs = op_calls.mapped(sample.args, tensor), op_calls.mapped(sample.kwargs, tensor)
    out = op_calls.tensors_in(op.function(*args, **kwargs))
    assert {t.device.type for t in out} <= {device}
    outs, leaves = [t for t in out if t.requires_grad], [t for t in results if t.requires_grad]
    upstream = [flow.ones_like(t) for t in outs]
    grads = outs and flow.autograd.grad(outs, leaves, upstream, allow_unused=True)
    return metas(out), metas(grads)


@pytest.mark.parametrize("known", [op for _, op in NAMED], ids=[name for name, _ in NAMED])
@pytest.mark.product(4)
def test_what_comes_out_is_that_of_the_cpu(known, rng):
    has_asked = False
    for sample in known.generate(rng):
        try:
            facts = called(known, sample, "meta")
        except ValuelessError:
            has_asked = True
            continue
        assert facts == called(known, sample, "cpu"), sample
    assert has_asked == (known.name in ASKS)


READS = {
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum()),
    "float": lambda x: float(x.sum()),
    "cpu": lambda x: x.cpu(),
    "copy to the CPU": lambda x: flow.ones(2, 2).copy_(x),
    "a mask": lambda x: x[x > 0],
    "nonzero": flow.nonzero,
    "a number beside others": lambda x: flow.ones(2, 2) + x.sum(),
}


@pytest.mark.parametrize("name", READS)
def test_values_are_an_error(name):
    x = flow.ones(2, 2, device="meta") @ flow.ones(2, 2, device="meta")
    with pytest.raises((ValuelessError, DeviceError), match="meta") as caught:
        READS[name](x)
    assert name == "a number beside others" or isinstance(caught.value, NotImplementedError)
    assert (x + 1).shape == (2, 2), "and the machine goes on"


def test_what_there_is_to_know():
    x = flow.empty(3, 4, device="meta").t()
    assert (x.is_meta, x.is_cuda, x.device, x.nbytes, x.data_ptr()) == (
        True, False, flow.device("meta"), 48, 0,
    )  # fmt: skip
    assert repr(x) == str(x) == "tensor(..., shape=(4, 3), device='meta')"
    assert flow.device("meta:3") is flow.device("meta")
    assert (x.stride(), x.to("meta") is x, flow.ones(2).to("meta").is_meta) == ((1, 4), True, True)
    again = pickle.loads(pickle.dumps(x))
    assert metas([again, copy.deepcopy(x)]) == metas([x, x.clone()])
    assert (x.copy_(flow.ones(4, 3)) is x, x.fill_(2).uniform_().device.type) == (True, "meta")
    with pytest.raises(BufferError, match="meta"):
        x.__dlpack__()
    with pytest.raises(DeviceError, match="x on meta, y on cpu"):
        x + flow.ones(4, 3)
    assert (x + flow.tensor(1.0)).is_meta, "a number may be anywhere"
    assert x[:, flow.tensor([0, 2])].shape == (4, 2), "and so may indices"
    with pytest.raises(CaptureError, match="meta device"):
        flow.compile(lambda x: x * 2)(x)


def test_nothing_is_allocated():
    before = flow.vm.stats()["live_bytes"]
    x = flow.ones(1 << 20, 1 << 20, device="meta")
    y = (x @ x).softmax(1) + x.sum(0)
    assert y.shape == x.shape
    assert flow.vm.stats()["live_bytes"] - before < 1 << 20


def test_modules_are_made_without_memory_and_filled_later():
    def make():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(6), nn.GELU(),
            nn.TransformerEncoderLayer(6, 2, 12), nn.Linear(6, 2),
        )  # fmt: skip

    plain = make()
    plain(flow.ones(2, 3, 4, 4))
    with flow.device("meta"):
        model = make()
        out = model(flow.ones(2, 3, 4, 4))
    optimizer = flow.optim.AdamW(model.parameters())
    out.sum().backward()
    optimizer.step()
    assert metas(p.grad for p in model.parameters()) == metas(plain.parameters())
    assert all(p.is_meta for p in model.parameters())
    with pytest.raises(ValuelessError, match="to_empty"):
        model.to("cpu")
    on_cpu = copy.deepcopy(model).to_empty(device="cpu")
    on_cpu.load_state_dict(plain.state_dict())
    model.load_state_dict(plain.state_dict(), assign=True)
    plain.eval(), on_cpu.eval(), model.eval()
    x = flow.ones(2, 3, 4, 4)
    assert (on_cpu(x) == plain(x)).all()
    assert (model(x) == plain(x)).all()


STORABLE = (*ALL_DTYPES, *MINIFLOATS)


@pytest.mark.parametrize("kind", STORABLE, ids=lambda d: d.name)
def test_tensors_of_every_dtype_go_there(kind, tmp_path):
    x = flow.zeros(2, 3).to(kind)
    tensor = flow.empty(2, 3, device="meta")
    for y in (x.to("meta"), x.to(device="meta", dtype=kind), tensor.to(kind)):
        assert (y.device.type, y.dtype, y.shape) == ("meta", kind, (2, 3))
    flow.save({"x": x}, tmp_path / "file")
    y = flow.load(tmp_path / "file", map_location="meta")["x"]
    assert (y.device.type, y.dtype, y.shape) == ("meta", kind, (2, 3))
    with pytest.raises(ValuelessError, match="no values"):
        y.to("cpu")
