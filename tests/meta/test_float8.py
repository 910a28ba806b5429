"""The floats of 8 bits: every code, many numbers, and moved ones, as in PyTorch."""

import io
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import DTypeError
from flowvm.meta.dtype import ALL_DTYPES, MINIFLOATS
from flowvm.meta.float8 import FORMATS

NAMES = [dtype.name for dtype in MINIFLOATS]
CODES = flow.arange(256).to(flow.uint8)


def singles() -> np.ndarray:
    """Return float32 numbers of all exponents, around the formats' ends, infinities and NaN."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        near = rng.standard_normal(20000) * np.exp(rng.uniform(-20, 14, 20000))
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 480, 57344, 61440, 65536, 240, 248]
    return np.concatenate([bits, near.astype(np.float32), np.float32(ends)])


def codes_of(t) -> np.ndarray:
    return t.view(flow.uint8).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_and_its_slow_twin_give_the_same_codes(name):
    dtype, values = getattr(flow, name), singles()
    np.testing.assert_array_equal(
        codes_of(flow.tensor(values).to(dtype)), FORMATS[name].encoded(values)
    )
    numbers = CODES.view(dtype).float().numpy()
    np.testing.assert_array_equal(numbers, FORMATS[name].decoded(np.arange(256)))
    numeric = ~np.isnan(numbers)
    np.testing.assert_array_equal(
        FORMATS[name].encoded(numbers)[numeric], np.arange(256, dtype=np.uint8)[numeric]
    )


@pytest.mark.parametrize("name", NAMES)
def test_conversions_are_pytorchs(name):
    """Each format has its turn of the other dtypes: a pair compiles a kernel for seconds."""
    nth = NAMES.index(name)
    torch = pytest.importorskip("torch")
    dtype, theirs, values = getattr(flow, name), getattr(torch, name), singles()
    expected = torch.from_numpy(values).to(theirs).view(torch.uint8).numpy()
    np.testing.assert_array_equal(codes_of(flow.tensor(values).to(dtype)), expected)
    with np.errstate(over="ignore", invalid="ignore"):
        sources = [values.astype(np.float64), values.astype(np.float16)]
    sources += [np.arange(-300, 300), np.arange(256, dtype=np.uint8), np.array([True, False])]
    for source in sources[nth :: len(NAMES)]:
        expected = torch.from_numpy(source).to(theirs).view(torch.uint8).numpy()
        np.testing.assert_array_equal(codes_of(flow.tensor(source).to(dtype)), expected)
    codes, others = CODES.view(dtype), torch.arange(256).to(torch.uint8).view(theirs)
    for target in ("float32", "float64", "float16", "bool", "complex64")[nth :: len(NAMES)]:
        np.testing.assert_array_equal(
            codes.to(getattr(flow, target)).numpy(), others.to(getattr(torch, target)).numpy()
        )
    for target in (name, NAMES[nth - 1]):
        expected = others.to(getattr(torch, target)).view(torch.uint8).numpy()
        np.testing.assert_array_equal(codes_of(codes.to(getattr(flow, target))), expected)


@pytest.mark.parametrize("name", NAMES)
def test_limits_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    ours, theirs = flow.finfo(getattr(flow, name)), torch.finfo(getattr(torch, name))
    for limit in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution"):
        assert getattr(ours, limit) == getattr(theirs, limit), limit


@pytest.mark.parametrize("name", NAMES)
def test_elements_are_moved_as_they_are(name):
    dtype = getattr(flow, name)
    x = CODES.view(dtype).view(64, 4)[:, 1:3]
    bits = np.arange(256, dtype=np.uint8).reshape(64, 4)[:, 1:3]
    order = flow.tensor([3, 0, 63])
    for tensor, expected in (
        (x.clone(), bits),
        (x.t().contiguous(), bits.T),
        (x[order], bits[[3, 0, 63]]),
        (x.index_select(0, order), bits[[3, 0, 63]]),
        (x[order.new_ones(64) > 0], bits),
        (flow.cat([x, x]), np.concatenate([bits, bits])),
        (x.flip(0), bits[::-1]),
        (x.roll(1, 0), np.roll(bits, 1, 0)),
        (x.repeat(2, 1), np.tile(bits, (2, 1))),
        (x.gather(1, flow.ones(64, 1, dtype=flow.int64)), bits[:, 1:]),
    ):
        assert tensor.dtype is dtype
        np.testing.assert_array_equal(codes_of(tensor), expected)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_made_read_printed_and_compared(name):
    dtype = getattr(flow, name)
    x = flow.tensor([1.0, 2.0, 4.0], dtype=dtype)
    assert repr(x) == f"tensor([1., 2., 4.], dtype={name})"
    assert x.tolist() == [1.0, 2.0, 4.0]
    assert x[2].item() == 4.0
    assert (x == flow.full((3,), 2.0, dtype=dtype)).tolist() == [False, True, False]
    assert flow.where(x != x[:1], x, x[2]).tolist() == [4.0, 2.0, 4.0]
    assert x.clone().fill_(2.0).tolist() == [2.0] * 3
    assert flow.zeros(2).copy_(x[1:]).tolist() == [2.0, 4.0]
    assert (x.element_size(), x.is_floating_point()) == (1, True)
    assert x.type() == f"flowvm.{name.capitalize()}Tensor"


@pytest.mark.parametrize("name", NAMES)
def test_files_and_pickles_keep_the_codes(name):
    dtype, file = getattr(flow, name), io.BytesIO()
    codes = CODES.view(dtype)
    flow.save({"codes": codes}, file)
    file.seek(0)
    for back in (flow.load(file)["codes"], pickle.loads(pickle.dumps(codes))):
        assert back.dtype is dtype
        np.testing.assert_array_equal(codes_of(back), CODES.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_files_and_capsules(name):
    torch = pytest.importorskip("torch")
    dtype, theirs = getattr(flow, name), torch.arange(256).to(torch.uint8)
    theirs, file = theirs.view(getattr(torch, name)), io.BytesIO()
    torch.save({"part": theirs.view(16, 16)[:, 1:3]}, file)
    file.seek(0)
    part = flow.load(file)["part"]
    assert part.dtype is dtype
    np.testing.assert_array_equal(codes_of(part), CODES.view(16, 16)[:, 1:3].numpy())
    assert flow.from_dlpack(theirs).dtype is dtype
    assert torch.from_dlpack(CODES.view(dtype)).dtype is theirs.dtype


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + x,
        lambda x: x + 1,
        lambda x: x.sum(),
        lambda x: x @ x,
        lambda x: x.sort(),
        lambda x: x.softmax(0),
        lambda x: x.clone().add_(1),
        lambda x: flow.cat([x, flow.ones(2)]),
        lambda x: flow.ones(2) * x,
        lambda x: flow.promote_types(x.dtype, flow.float32),
    ],
)
def test_arithmetic_is_turned_down(compute):
    with pytest.raises(DTypeError, match=r"convert with \.to"):
        compute(flow.ones(2, dtype=flow.float8_e4m3fn))


def test_no_array_and_no_default():
    x = flow.ones(2, dtype=flow.float8_e5m2)
    with pytest.raises(TypeError, match="NumPy has no float8_e5m2"):
        x.numpy()
    with pytest.raises(TypeError, match="that ops compute in"):
        flow.set_default_dtype(flow.float8_e5m2)
    assert not set(MINIFLOATS) & set(ALL_DTYPES)


def test_a_graph_rounds_where_eager_code_does():
    def step(x):
        return (x * 3).to(flow.float8_e5m2).float() + 1

    x = flow.tensor(np.random.default_rng(0).standard_normal(50).astype(np.float32))
    compiled = flow.compile(step)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x).numpy(), step(x).numpy())


def test_a_gradient_goes_through_conversions():
    x = flow.ones(3, requires_grad=True)
    (x.to(flow.float8_e4m3fn).float() * 3).sum().backward()
    assert x.grad.tolist() == [3, 3, 3]
