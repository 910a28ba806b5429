"""bfloat16 on a device: the same bits as on the CPU where nothing is summed, cuBLAS with its own
dtype, DLPack, and PTX of the kernels that convert it.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import CAPABILITIES

sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "helpers"))

import bfloat16_checks

import flowvm as flow
from flowvm.cuda.launch import LibraryStep
from flowvm.eager.values import memory_of, values_of
from flowvm.errors import ArgumentTypeError, DeviceError
from flowvm.meta.device import Device
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.core import _cast
from flowvm.ops.declare.cuda.lowering import launch_of
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.places.gather import ADD, NONE, combine_slices
from flowvm.ops.products.matmul import matmul

F = flow.nn.functional
bf = flow.bfloat16
STEP = 2.0**-7

# equal to the bit: one rounding of what both devices compute alike
EXACT = {
    "arithmetic": lambda x: (x * 3 - 1.5).abs() + x,
    "mixed": lambda x: x + flow.arange(4, device=x.device),
    "to float16": lambda x: x.half(),
    "to float64": lambda x: x.double(),
    "to int32": lambda x: (x * 10).int(),
    "from float64": lambda x: (x.double() / 3).bfloat16(),
    "from bool": lambda x: (x > 0).bfloat16(),
    "compare": lambda x: x < 0.5,
    "bools into it": lambda x: flow.gt(x, 0, out=flow.empty(6, 4, dtype=bf, device=x.device)),
    "transposed": lambda x: x.t().contiguous(),
    "indexed": lambda x: x[flow.tensor([4, 0, 4], device=x.device)],
    "filled": lambda x: flow.full_like(x, 0.1),
    "joined": lambda x: flow.cat([x, x[:2] * 2]),
    "largest": lambda x: x.max(1)[0],
    "sorted": lambda x: x.sort(0)[0],
    "pooled": lambda x: F.max_pool2d(x.reshape(1, 1, 6, 4), 2),
    "where": lambda x: flow.where(x > 0, x, -x),
}
# summed in an order of each device's own: apart by a rounding
CLOSE = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "exp": lambda x: x.exp(),
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "averaged": lambda x: F.avg_pool2d(x.reshape(1, 1, 6, 4), 2),
    "product": lambda x: x @ x.t(),
    "products": lambda x: x.reshape(2, 3, 4) @ x.reshape(2, 4, 3),
    "with a bias": lambda x: F.linear(x, x[:3], x[:3, 0]),
    "convolution": lambda x: F.conv2d(x.reshape(1, 1, 6, 4), x[:2, :2].reshape(1, 1, 2, 2)),
    "added rows": lambda x: x.index_add(0, flow.tensor([1, 1], device=x.device), x[:2]),
    "cross_entropy": lambda x: F.cross_entropy(x, flow.tensor([0, 1, 2, 3, 0, 1], device=x.device)),
}


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
@pytest.mark.parametrize("device", ["late"], indirect=True)
def test_a_device_agrees_with_the_cpu(device, name, rng):
    x = flow.tensor(rng.standard_normal((6, 4)), dtype=bf)
    function = EXACT.get(name) or CLOSE[name]
    on_host, on_device = function(x), function(x.to(device))
    assert on_device.device.type == "cuda"
    assert on_host.dtype is on_device.dtype
    if name in EXACT:
        np.testing.assert_array_equal(memory_of(on_device), memory_of(on_host))
    else:
        expected = values_of(on_host)
        scale = float(np.abs(expected).max()) + 1
        np.testing.assert_allclose(values_of(on_device), expected, STEP, STEP * scale)


@pytest.mark.parametrize("device", ["late"], indirect=True)
@pytest.mark.parametrize("op", [p for p in bfloat16_checks.EACH if p.id != "as_strided"])
@pytest.mark.product(4)
def test_every_op(op, device, seed):
    try:
        bfloat16_checks.check(op, seed, lambda array: bfloat16_checks.as_tensor(array).to(device))
    except DeviceError as error:
        if "no CUDA kernel" not in str(error):
            raise
        pytest.skip(str(error))


def test_ties_and_what_is_next_to_them_are_rounded_alike(device):
    words = np.arange(1 << 10, dtype=np.uint32) << 22
    ties = [words, words | 0x8000, words | 0x18000, words | 0x8001, words | 0x7FFF]
    x = flow.from_numpy(np.concatenate(ties).view(np.float32))
    on_device = x.to(device).to(bf)
    np.testing.assert_array_equal(memory_of(on_device), memory_of(x.to(bf)))
    np.testing.assert_array_equal(on_device.float().numpy(), x.to(bf).float().numpy())


@pytest.mark.parametrize("device", ["late"], indirect=True)
def test_training_on_a_device(device, seed):
    def train(place):
        flow.manual_seed(seed)
        model = flow.nn.Sequential(flow.nn.Linear(6, 8), flow.nn.GELU(), flow.nn.Linear(8, 3))
        model = model.bfloat16().to(place)
        x, y = flow.randn(5, 6).to(bf).to(place), flow.tensor([0, 1, 2, 0, 1], device=place)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.25)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [values_of(p.detach()) for p in model.parameters()]

    for mine, theirs in zip(train(device), train("cpu"), strict=True):
        np.testing.assert_allclose(mine, theirs, 0, 4 * STEP)


def test_capsules_say_that_it_is_bfloat16(device):
    x = flow.arange(6.0, device=device).to(bf).reshape(2, 3)
    shared = flow.from_dlpack(x)
    assert (shared.dtype, shared.data_ptr(), shared.device) == (bf, x.data_ptr(), x.device)
    assert shared.tolist() == x.tolist()
    with pytest.raises(ArgumentTypeError, match="from_dlpack"):
        _ = x.__cuda_array_interface__
    assert "bfloat16" in repr(x)


def meta(*shape, dtype=bf):
    return TensorMeta.of(shape, dtype, Device("cuda:0"))


def test_cublas_gets_its_dtype_and_sums_in_float32():
    launch = launch_of(operator_of(matmul), (meta(4, 8), meta(8, 5)), ())
    (step,) = launch.steps
    assert isinstance(step, LibraryStep)
    numbers = [getattr(p, "value", None) for p in step.params]
    assert numbers.count(14) == 3  # CUDA_R_16BF, for a, b and c
    assert 68 in numbers  # CUBLAS_COMPUTE_32F


def test_its_kernels_compile(ptx_of):
    casts = (
        launch_of(_cast, (meta(64),), (flow.float32,)),
        launch_of(_cast, (meta(64, dtype=flow.float32),), (bf,)),
    )
    for cast in casts:
        texts = ptx_of.launch(cast, CAPABILITIES)
        assert all(".entry" in t and ".extern" not in t for t in texts)
        assert all("cvt.f32.f16" not in t for t in texts)  # bits, not another format
    metas = meta(8, 64), meta(3, dtype=flow.int64), meta(3, 64)
    cast = launch_of(operator_of(combine_slices), metas, (0, 0, 8, NONE, ADD))
    texts = "".join(ptx_of.launch(cast, CAPABILITIES[:1]))
    assert (
        "add.f32" in texts or "add.rn.f32" in texts
    )  # read as float32, rounded where it is stored
