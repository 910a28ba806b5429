"""bfloat16: its conversions bit by bit, promotion, products, exchange with libraries and files."""

import copy
import io
import pickle
import platform

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.values import adopt_array, memory_of
from flowvm.errors import DTypeError

bf = flow.bfloat16
EVERY = np.arange(1 << 16, dtype=np.uint16)  # every bit pattern


def of_bits(bits):
    """A tensor with these bits."""
    return adopt_array(np.array(bits, np.uint16), dtype=bf)


def bits_of(t):
    assert t.dtype is bf
    return memory_of(t)


def exact(bits):
    """The number that bits stand for, by the definition of the format."""
    word = bits.astype(np.int64)
    exponent, fraction = (word >> 7) & 0xFF, word & 0x7F
    size = np.where(exponent == 0, fraction * 2.0**-133, (128 + fraction) * 2.0 ** (exponent - 134))
    size = np.where(exponent == 255, np.where(fraction == 0, np.inf, np.nan), size)
    return np.where(word >> 15, -size, size)


def nearest(values):
    """Return the bits of the bfloat16 nearest to float32 numbers, by a search.

    Of two that are as near it is the even one; infinity from half a step beyond the largest.
    """
    finite = exact(EVERY[:0x7F80])  # ascending
    edges = np.append((finite[1:] + finite[:-1]) / 2, finite[-1] + 2.0**119)
    size = np.abs(values).astype(np.float64)
    low = np.searchsorted(edges, size, side="left")
    high = np.searchsorted(edges, size, side="right")
    chosen = np.where(low == high, low, np.where(low % 2 == 0, low, high))
    return (chosen | (np.signbit(values) << 15)).astype(np.uint16)


def boundary_numbers(rng):
    """float32 numbers at, half way between and next to all of bfloat16, and others by chance."""
    highs = EVERY.astype(np.uint32) << 16
    words = [highs | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    words.append(rng.integers(0, 1 << 32, 1 << 14, dtype=np.uint32))
    return np.concatenate(words).view(np.float32)


# --- conversions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["float32", "float64"])
def test_every_bit_pattern_is_read_right(to):
    actual = of_bits(EVERY).to(getattr(flow, to)).numpy()
    np.testing.assert_array_equal(actual, exact(EVERY).astype(to))
    assert (np.signbit(actual) == (EVERY >> 15)).all()


def test_float32_is_rounded_to_nearest_even(rng):
    values = boundary_numbers(rng)
    actual = bits_of(flow.from_numpy(values.copy()).to(bf))
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(actual[numbers], nearest(values[numbers]))
    nans = actual[~numbers]
    assert ((nans & 0x7FC0) == 0x7FC0).all()  # still NaN, and quiet
    np.testing.assert_array_equal(nans >> 15, np.signbit(values[~numbers]))
    np.testing.assert_array_equal(bf.stored(values), actual)  # NumPy's twin of the kernel


def test_conversions_are_pytorchs(rng):
    torch = pytest.importorskip("torch")
    values = boundary_numbers(rng)
    ours = flow.from_numpy(values.copy()).to(bf)
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    np.testing.assert_array_equal(ours.float().numpy(), theirs.float().numpy())
    every, same = of_bits(EVERY), torch.from_numpy(EVERY.view(np.int16)).view(torch.bfloat16)
    for name in ("float16", "float32", "float64", "bool"):
        mine = every.to(getattr(flow, name)).numpy()
        np.testing.assert_array_equal(mine, same.to(getattr(torch, name)).numpy())
    small = (exact(EVERY) > -129) & (exact(EVERY) < 256)
    for name in ("int8", "uint8", "int16", "int32", "int64"):
        fits = small & (exact(EVERY) > (-1 if name == "uint8" else -129))
        fits &= exact(EVERY) < (128 if name == "int8" else 256)
        mine = of_bits(EVERY[fits]).to(getattr(flow, name)).numpy()
        np.testing.assert_array_equal(
            mine, same[torch.from_numpy(fits)].to(getattr(torch, name)).numpy()
        )
    for name in ("float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
        source = (rng.standard_normal(4096) * 100).astype(name)
        mine = flow.from_numpy(source.copy()).to(bf).float().numpy()
        np.testing.assert_array_equal(mine, torch.from_numpy(source).bfloat16().float().numpy())


def test_nan_becomes_an_integer_as_other_numbers_that_none_is():
    least = -(2**31)
    assert of_bits([0x7FC0, 0x7F80, 0xFF80, 0x3FC0]).to(flow.int32).tolist()[3] == 1
    if platform.machine() == "x86_64":  # other processors have other answers, as in PyTorch
        assert of_bits([0x7FC0, 0xFF80]).to(flow.int32).tolist() == [least, least]


# --- what PyTorch has -----------------------------------------------------------------------------


def test_limits_are_pytorchs():
    torch = pytest.importorskip("torch")
    mine, theirs = flow.finfo(bf), torch.finfo(torch.bfloat16)
    for name in ("bits", "eps", "max", "min", "resolution", "smallest_normal", "tiny"):
        assert getattr(mine, name) == getattr(theirs, name), name


def test_creation():
    assert flow.tensor([1, 2.5], dtype=bf).tolist() == [1.0, 2.5]
    assert flow.tensor(np.array([1e-40, 3e38]), dtype=bf).dtype is bf
    assert flow.zeros(2, dtype=bf).tolist() == [0.0, 0.0]
    assert flow.full((2,), 0.1, dtype=bf).tolist() == [0.10009765625] * 2
    assert flow.arange(5, dtype=bf).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert flow.ones(2).bfloat16().dtype is bf
    assert flow.empty(3, dtype=bf).element_size() == 2
    uniform = flow.rand(10_000, dtype=bf).float().numpy()
    assert uniform.min() == 0.0  # one of 256 steps, with probability 1 - 1e-17
    assert uniform.max() == 1 - 2**-8  # and never 1
    normal = flow.randn(2000)
    flow.manual_seed(3)
    normal = flow.randn(2000)
    flow.manual_seed(3)
    assert (flow.randn(2000, dtype=bf) == normal.to(bf)).all()


def test_numpy_is_refused_and_says_what_to_do():
    x = flow.ones(2, dtype=bf)
    for convert in (lambda: x.numpy(), lambda: np.asarray(x), lambda: x.__array__(copy=False)):
        with pytest.raises(TypeError, match=r"NumPy has no bfloat16.*\.float\(\)"):
            convert()
    assert np.asarray(x, dtype=np.float64).tolist() == [1.0, 1.0]


def test_printing_and_python_numbers():
    x = flow.tensor([[1.5, -2.0], [0.1, float("inf")]], dtype=bf)
    assert repr(x) == ("tensor([[ 1.5000, -2.0000],\n        [ 0.1001,     inf]], dtype=bfloat16)")
    assert x[1, 0].item() == 0.10009765625
    assert float(x[0, 0]) == 1.5
    assert int(x[0, 1]) == -2
    assert bool(x[0, 0])
    assert "bfloat16" in x._repr_html_()


def test_assignment_and_views():
    x = flow.zeros(3, 4, dtype=bf)
    x[1] = 1.7
    x[0, 1:3] = [2.2, 3.3]
    x[2] = flow.arange(4)
    assert x.tolist()[1] == [1.703125] * 4
    assert x.tolist()[0] == [0.0, 2.203125, 3.296875, 0.0]
    assert x.t()[3].tolist() == [0.0, 1.703125, 3.0]
    assert x[:, ::2].reshape(-1).tolist() == [0.0, 3.296875, 1.703125, 1.703125, 0.0, 2.0]


# --- arithmetic -----------------------------------------------------------------------------------


def test_elementwise_results_are_rounded_once(rng):
    torch = pytest.importorskip("torch")
    a, b = (rng.standard_normal(5000).astype(np.float32) * 50 for _ in range(2))
    x, y = (flow.from_numpy(v.copy()).to(bf) for v in (a, b))
    t, u = (torch.from_numpy(v).bfloat16() for v in (a, b))
    pairs = ((x + y, t + u), (x * y, t * u), (x / y, t / u), (x - 0.296875, t - 0.296875), (-x, -t),
             (x * 2 + y, t * 2 + u), (x.abs().sqrt(), t.abs().sqrt()))  # fmt: skip
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.float().numpy(), theirs.float().numpy())
    assert ((x < y).numpy() == (t < u).numpy()).all()


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (3, 300, 5), (64, 128, 48), (130, 70, 1), (1, 90, 200)]
)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_are_summed_in_float32_and_rounded_once(rng, m, k, n, turned):
    a, b = (bf.loaded(bf.stored(rng.standard_normal(s))) for s in ((m, k), (k, n)))
    x, y = (
        flow.from_numpy(v.T.copy()).to(bf).t() if turn else flow.from_numpy(v).to(bf)
        for v, turn in zip((a, b), turned, strict=True)
    )
    actual = x @ y
    wide = a.astype(np.float64) @ b.astype(np.float64)
    # float32 sums of k products err by k roundings at most; then one of bfloat16
    sums = k * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b))
    error = np.abs(actual.float().numpy() - wide)
    assert actual.dtype is bf
    assert (error <= (np.abs(wide) + sums) * 2.0**-8 + 2 * sums).all()


def test_sums_do_not_lose_what_bfloat16_cannot_count():
    ones = flow.ones(100_000, dtype=bf)
    assert ones.sum().item() == 99_840.0  # 100,000 rounded once; summed in bfloat16 it stays at 256
    assert ones.sum(dtype=flow.float32).item() == 100_000.0
    assert ones.mean().item() == 1.0


def test_float16_and_bfloat16_meet_in_float32():
    half, brain = flow.ones(3).half(), flow.ones(3, dtype=bf)
    assert (half + brain).dtype is flow.float32
    assert flow.result_type(half, brain) is flow.float32
    assert (brain + 1.5).dtype is bf
    assert (brain + flow.ones(3)).dtype is flow.float32
    assert (brain + flow.ones(3, dtype=flow.int64)).dtype is bf
    with pytest.raises(DTypeError, match="float16 and bfloat16"):
        half.reshape(1, 3) @ brain.reshape(3, 1)


# --- other libraries and files --------------------------------------------------------------------


def test_dlpack_shares_memory_with_pytorch_both_ways():
    torch = pytest.importorskip("torch")
    x = flow.arange(6, dtype=bf).reshape(2, 3)
    theirs = torch.from_dlpack(x)
    assert theirs.dtype is torch.bfloat16
    theirs[0, 0] = 7
    assert x.tolist() == [[7.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    source = torch.arange(6).bfloat16().reshape(2, 3).t()
    back = flow.from_dlpack(source)
    assert back.dtype is bf
    assert back.tolist() == source.tolist()
    back += 1
    flow.vm.sync()  # PyTorch does not know that the VM writes
    assert source[0, 0].item() == 1.0


@pytest.mark.parametrize("around", ["pickle", "deepcopy", "save"])
def test_it_comes_back_with_its_bits(around):
    x = of_bits(EVERY).reshape(256, 256)
    tree = {"w": x, "none": flow.zeros(0, 2, dtype=bf), "number": flow.tensor(1.5, dtype=bf)}
    if around == "save":
        file = io.BytesIO()
        flow.save({**tree, "dtype": bf}, file)
        file.seek(0)
        back = flow.load(file)
        assert back["dtype"] is bf
    else:
        go = {"pickle": lambda t: pickle.loads(pickle.dumps(t)), "deepcopy": copy.deepcopy}[around]
        back = {name: go(t) for name, t in tree.items()}
    for name, t in tree.items():
        assert back[name].shape == t.shape
        np.testing.assert_array_equal(bits_of(back[name]), bits_of(t))


def test_safetensors_files_are_pytorchs():
    torch = pytest.importorskip("torch")
    from safetensors import torch as files

    numbers = torch.linspace(-3, 3, 20).bfloat16()
    read = flow.load(io.BytesIO(files.save({"a": torch.ones(3), "w": numbers})))
    assert read["w"].dtype is bf
    assert read["w"].tolist() == numbers.tolist()
    file = io.BytesIO()
    flow.save(read, file)
    assert torch.equal(files.load(file.getvalue())["w"], numbers)
