"""Random numbers: which ones, that they repeat, and that they are distributed as they say."""

import threading

import numpy as np
import pytest
import scipy.stats

import flowvm as flow
from flowvm.ops.choices import dropout_mask
from flowvm.ops.philox import philox
from flowvm.vm.engine import engine


@pytest.fixture(autouse=True)
def _seeded(seed):
    state = flow.get_rng_state()
    flow.manual_seed(seed)
    yield
    flow.set_rng_state(state)


# the known answers of Random123
@pytest.mark.parametrize(
    ("block", "call", "key", "words"),
    [
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x85A308D3243F6A88,
            0x0370734413198A2E,
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(block, call, key, words):
    assert philox(block, call, key) == words


def test_uniform_numbers_are_the_documented_words():
    flow.manual_seed(5)
    flow.rand(3)  # call 0
    made = flow.rand(6).numpy()
    words = [*philox(0, 1, 5), *philox(1, 1, 5)]
    np.testing.assert_array_equal(made, np.array([(w >> 8) * 2.0**-24 for w in words[:6]], "f4"))


DRAWS = [
    lambda n: flow.rand(n),
    lambda n: flow.rand(n, dtype=flow.float64),
    lambda n: flow.randn(n),
    lambda n: flow.randn(n, dtype=flow.float64),
    lambda n: flow.randint(1000, (n,)),
    lambda n: flow.dropout(flow.ones(n), 0.3),
    lambda n: flow.empty(n).exponential_(),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_do_not_depend_on_the_workers(draw, seed):
    flow.manual_seed(seed)
    threaded = draw(200_001).numpy()
    with engine.run_sequentially():
        flow.manual_seed(seed)
        plain = draw(200_001).numpy()
    np.testing.assert_array_equal(threaded, plain)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_depends_on_its_place_alone(draw, seed):
    flow.manual_seed(seed)
    many = draw(1003).numpy()
    flow.manual_seed(seed)
    few = draw(10).numpy()
    np.testing.assert_array_equal(many[:10], few)


def test_calls_differ():
    assert not np.array_equal(flow.rand(8).numpy(), flow.rand(8).numpy())


def test_state_can_be_kept_and_set():
    state = flow.get_rng_state()
    first = flow.randn(5).numpy()
    flow.set_rng_state(state)
    np.testing.assert_array_equal(flow.randn(5).numpy(), first)


def test_generators_are_independent():
    mine = flow.Generator().manual_seed(1)
    first = flow.rand(4, generator=mine).numpy()
    flow.rand(4)
    again = flow.rand(4, generator=flow.Generator().manual_seed(1)).numpy()
    np.testing.assert_array_equal(first, again)
    assert mine.initial_seed() == 1


def test_threads_never_draw_the_same_call():
    generator = flow.Generator().manual_seed(0)
    calls = []

    def draw():
        calls.extend(generator.draw()[1] for _ in range(500))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(calls) == list(range(2000))


# --- distributions ------------------------------------------------------------------------------

N = 40_000


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda: flow.rand(N), "uniform"),
        (lambda: flow.rand(N, dtype=flow.float64), "uniform"),
        (lambda: flow.randn(N), "norm"),
        (lambda: flow.randn(N, dtype=flow.float64), "norm"),
        (lambda: flow.empty(N).exponential_(), "expon"),
        (lambda: (flow.empty(N).uniform_(-1, 3) + 1) / 4, "uniform"),
        (lambda: (flow.normal(2.0, 3.0, (N,)) - 2) / 3, "norm"),
    ],
)
def test_distribution(draw, distribution):
    assert scipy.stats.kstest(draw().numpy(), distribution).pvalue > 1e-4


def test_uniform_stays_below_one():
    half = flow.rand(N, dtype=flow.float16).numpy()
    assert half.min() >= 0
    assert half.max() < 1


def test_randint_is_even():
    counts = np.bincount(flow.randint(-3, 4, (N,)).numpy() + 3)
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_randperm_is_a_permutation():
    assert sorted(flow.randperm(500).tolist()) == list(range(500))
    assert flow.randperm(0).shape == (0,)


def test_multinomial():
    weights = flow.tensor([1.0, 2.0, 0.0, 7.0])
    drawn = np.bincount(flow.multinomial(weights, N, True).numpy(), minlength=4)
    assert drawn[2] == 0
    assert scipy.stats.chisquare(drawn[[0, 1, 3]], np.array([0.1, 0.2, 0.7]) * N).pvalue > 1e-4
    rows = flow.multinomial(weights.expand(200, 4), 3).numpy()
    assert all(sorted(row) == [0, 1, 3] for row in rows)


def test_bernoulli():
    assert flow.bernoulli(flow.tensor([0.0, 1.0])).tolist() == [0, 1]
    assert abs(flow.empty(N).bernoulli_(0.3).mean().item() - 0.3) < 0.02


# --- dropout ------------------------------------------------------------------------------------


def test_dropout_scales_what_it_keeps():
    out = flow.dropout(flow.ones(N), 0.25).numpy()
    assert set(np.unique(out)) == {0.0, np.float32(1 / 0.75)}
    assert abs((out == 0).mean() - 0.25) < 0.02


def test_dropout_gradient_has_the_same_mask():
    x = flow.ones(100, requires_grad=True)
    out = flow.dropout(x, 0.5)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())


def test_dropout_extremes():
    x = flow.ones(3)
    assert flow.dropout(x, 0.5, training=False) is x
    assert flow.dropout(x, 1.0).tolist() == [0, 0, 0]
    assert flow.dropout(x, 0.0).tolist() == [1, 1, 1]
    flow.dropout(x, 1.0, inplace=True)
    assert x.tolist() == [0, 0, 0]


def test_dropout_mask():
    assert set(np.unique(dropout_mask((50, 1), 0.5, flow.float32).numpy())) == {0.0, 2.0}
