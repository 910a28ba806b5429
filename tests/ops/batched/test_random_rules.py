"""Random numbers inside maps: the levels that draw for themselves, and dropout."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import func
from flowvm.ops.batched.random_rules import own_numbers

COUNT = 4


def test_levels_of_maps_that_want_different_numbers():
    seen = []

    def inner(x):
        seen.append([(a.size, a.stride) for a in own_numbers()])
        return x

    def outer(x):
        return func.vmap(inner, randomness="different")(x)

    x = flow.zeros(COUNT, 3)
    func.vmap(outer, randomness="different")(x)
    func.vmap(outer, randomness="same")(x)
    assert seen == [[(COUNT, 0), (3, 0)], [(3, 0)]]
    assert own_numbers() == ()


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_dropout_of_examples(randomness):
    x = flow.rand(COUNT, 200) + 1
    x.requires_grad_()

    def dropped(x):
        return flow.nn.functional.dropout(x, 0.5)

    out = func.vmap(dropped, randomness=randomness)(x)
    kept = out.detach().numpy() != 0
    np.testing.assert_allclose(out.detach().numpy()[kept], 2 * x.detach().numpy()[kept], rtol=1e-6)
    assert len({row.tobytes() for row in kept}) == (COUNT if randomness == "different" else 1)
    out.sum().backward()  # the numbers are drawn again, and are the same
    np.testing.assert_array_equal(x.grad.numpy(), 2.0 * kept)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: flow.bernoulli(x), lambda x: flow.rand_like(x), lambda x: flow.randn_like(x),
        lambda x: flow.poisson(5 + x), lambda x: flow.randint_like(x, 100),
        lambda x: flow.multinomial(x, 20, replacement=True),
    ],
    ids=["bernoulli", "rand", "randn", "poisson", "randint", "multinomial"],
)  # fmt: skip
def test_draws_with_operands(draw):
    x = flow.full((COUNT, 64), 0.5)
    own = func.vmap(draw, randomness="different")(x).numpy()
    assert len({row.tobytes() for row in own}) == COUNT
    same = func.vmap(draw, randomness="same")(x).numpy()
    assert len({row.tobytes() for row in same}) == 1
