"""Random numbers on CUDA are the CPU's: bit for bit where a number is words and one rounding, to a
few units in the last place where it goes through a logarithm or a fused product.
"""

import numpy as np
import pytest
from played import agree, launch, named, on_cpu, play, same

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.random.parts import shuffle
from flowvm.ops.random.parts.poisson import NO_MEAN

SIZES = (0, 1, 2, 3, 5, 6, 1027)
SEEDS = ((-5, 3), (67280421310721, 0), ((1 << 63) - 1, 1 << 40))
DROP = {"float64": 0, "float32": 8, "float16": 21}
assert flow.eye(1).numel() == 1  # all ops are declared


def like(n, dtype):
    return TensorMeta.of((n,), dtype_named(dtype))


def near(op, attrs, scalars, scale, dtype):
    """A fresh output is the CPU's to 4 units in the last place of `scale`."""
    (expected,), _ = on_cpu(op, [], attrs, scalars)
    (actual,), _ = play(op, [], attrs, scalars)
    assert actual.dtype == expected.dtype == np.dtype(dtype)
    allowed = 4 * np.finfo(dtype).eps * np.maximum(np.abs(expected), scale)
    assert (np.abs(actual - expected) <= allowed).all(), (
        f"{scalars}: {actual} and on the CPU {expected}"
    )


@pytest.mark.parametrize("start", SEEDS)
@pytest.mark.parametrize("n", SIZES)
def test_uniform_numbers(n, start):
    for dtype in ("float32", "float64"):
        agree(named("rand"), [], (like(n, dtype), DROP[dtype]), (0.0, 1.0, *start))
        agree(named("uniform_"), [np.zeros(n, dtype)], (DROP[dtype],), (0.0, 1.0, *start))
        near(named("rand"), (like(n, dtype), DROP[dtype]), (-0.3, 1.7, *start), 2, dtype)
    agree(named("rand"), [], (like(n, "float32"), DROP["float16"]), (0.0, 1.0, *start))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_normal_and_exponential_numbers(n, dtype):
    meta = like(n, dtype)
    near(named("randn"), (meta,), (0.0, 1.0, *SEEDS[0]), 0.25, dtype)
    near(named("randn"), (meta,), (3.0, 2.0, *SEEDS[1]), 3, dtype)
    near(named("exponential"), (meta,), (0.5, *SEEDS[0]), 0.1, dtype)


def test_numbers_in_place_are_those_of_a_fresh_tensor():
    for fresh, into, scalars in (
        ("randn", "normal_", (0.0, 1.0)),
        ("exponential", "exponential_", (2.0,)),
    ):
        x = np.zeros(77, np.float32)
        (expected,), _ = play(named(fresh), [], (like(77, "float32"),), (*scalars, *SEEDS[0]))
        play(named(into), [x], (), (*scalars, *SEEDS[0]))
        same(x, expected)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32", "float64", "bool"])
@pytest.mark.parametrize("n", SIZES)
def test_integers(n, dtype):
    for seed in SEEDS:
        agree(named("randint"), [], (like(n, dtype),), (0, 2, *seed))
    if dtype == "int64":
        agree(named("randint"), [], (like(n, dtype),), (-(1 << 62), (1 << 63) - 1, *SEEDS[0]))
        agree(named("random_"), [np.zeros(n, np.int64)], (), (-7, 1 << 33, *SEEDS[0]))


@pytest.mark.parametrize("n", SIZES)
def test_choices(rng, n):
    for dtype in ("float32", "float64", "bool"):
        for p in (0.0, 0.3, 1.0):
            agree(named("bernoulli", ()), [], (like(n, dtype),), (p, *SEEDS[0]))
            agree(named("bernoulli_"), [np.zeros(n, dtype)], (), (p, *SEEDS[1]))
    for dtype in ("float32", "float64"):
        chances = rng.random(n).astype(dtype)
        agree(named("bernoulli", ("p",)), [chances], (dtype_named(dtype),), SEEDS[0])
        for p in (0.0, 0.25, 1.0):
            agree(named("dropout"), [rng.standard_normal(n).astype(dtype)], (), (p, *SEEDS[2]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_poisson_counts(rng, dtype):
    means = (rng.random(500) * 30).astype(dtype)
    agree(named("poisson"), [means], (), SEEDS[0])
    for bad in (-1.0, np.nan, np.inf):
        means[7] = bad
        outputs, details = play(named("poisson"), [means], (), SEEDS[0])
        assert not outputs
        assert (details[0], details[6]) == (7, NO_MEAN)


@pytest.mark.parametrize("n", [0, 1, 2, 33, 300])
def test_permutations(n):
    for seed in SEEDS:
        agree(named("randperm"), [], (like(n, "int64"),), seed)


@pytest.mark.parametrize("order", ["", "reversed"])
def test_permutations_in_buckets(monkeypatch, order):
    monkeypatch.setattr(shuffle, "BUCKET", 100)
    agree(named("randperm"), [], (like(1501, "int64"),), SEEDS[0], order=order)


def test_a_bucket_that_does_not_fit_shared_memory(monkeypatch):
    from flowvm.ops.random.cuda import shuffle as ours

    monkeypatch.setattr(shuffle, "BUCKET", 100)
    monkeypatch.setattr(ours, "FITS", 50)
    agree(named("randperm"), [], (like(1502, "int64"),), SEEDS[1])


DRAWS = {
    "rand": lambda place: flow.rand(3, 5, device=place),
    "rand half": lambda place: flow.rand(7, dtype=flow.float16, device=place),
    "rand_like": lambda place: flow.rand_like(flow.zeros(5, device=place)),
    "uniform_": lambda place: flow.empty(9, device=place).uniform_(),
    "randint": lambda place: flow.randint(3, 100, (5,), device=place),
    "randint_like": lambda place: flow.randint_like(flow.zeros(5, device=place), 9),
    "random_": lambda place: flow.empty(5, dtype=flow.int32, device=place).random_(),
    "randperm": lambda place: flow.randperm(50, device=place),
    "bernoulli": lambda place: flow.bernoulli(flow.full((9,), 0.4, device=place)),
    "bernoulli_": lambda place: flow.empty(9, device=place).bernoulli_(0.3),
    "multinomial": lambda place: flow.multinomial(flow.arange(5, device=place) + 0.5, 3),
    "replaced": lambda place: flow.multinomial(flow.arange(5, device=place) + 0.5, 8, True),
    "poisson": lambda place: flow.poisson(flow.full((9,), 30.0, device=place)),
    "dropout": lambda place: flow.nn.functional.dropout(flow.ones(20, device=place), 0.3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_one_seed_gives_the_same_numbers_on_both_devices(device, name):
    results = []
    for place in (flow.device("cpu"), device):
        flow.manual_seed(7)
        drawn = DRAWS[name](place)
        assert drawn.device == place
        results.append(drawn.cpu().numpy())
    same(*results)


def test_the_gradient_of_dropout_has_its_mask(device):
    x = flow.ones(40, device=device).requires_grad_()
    y = flow.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    same(x.grad.cpu().numpy(), y.detach().cpu().numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_the_kernels_compile(ptx_of, dtype, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    meta, x = like(1000, dtype), np.zeros(1000, dtype)
    plans = [
        launch(named("randint"), [], (meta,)),
        launch(named("bernoulli", ()), [], (meta,)),
        launch(named("randperm"), [], (like(100, "int64"),)),
        launch(named("randperm"), [], (like(1 << 20, "int64"),)),
    ]
    if x.dtype.kind == "f":
        plans += [
            launch(named("rand"), [], (meta, DROP[dtype])),
            launch(named("randn"), [], (meta,)),
            launch(named("exponential"), [], (meta,)),
            launch(named("bernoulli", ("p",)), [x], (meta.dtype,)),
            launch(named("dropout"), [x]),
            launch(named("poisson"), [x]),
        ]
    for one in plans:
        assert all(".entry" in text for text in ptx_of.launch(one, ((7, 0), (10, 0))))
