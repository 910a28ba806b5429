"""Random global programs on placements of one and two dimensions: the same as on one rank, values
and gradients.
"""

import numpy as np
import pytest
import ranks

import flowvm as flow

F = flow.nn.functional
UNARY = {
    "relu": flow.relu,
    "tanh": flow.tanh,
    "scaled": lambda x: 0.5 * x,
    "negative": lambda x: -x,
    "softmax": lambda x: flow.softmax(x, -1),
    "transposed": lambda x: (x.t().contiguous() * 2).t(),
    "centered": lambda x: x - x.mean(0, keepdim=True),
    "reshaped": lambda x: (x.reshape(6, 4) + 1).reshape(2, 2, 6).flatten(0, 1),
    "sliced": lambda x: flow.cat([x[1:], x[:1]], 0),
    "columns": lambda x: flow.cat([x[:, 2:], x[:, :2]], 1),
    "normalized": lambda x: F.layer_norm(x, (x.shape[1],)),
    "summed": lambda x: x.sum(1, keepdim=True) + x,
    "largest": lambda x: x.amax(0, keepdim=True) * x,
    "gathered": lambda x: x.index_select(0, flow.tensor([2, 0, 1, 3], device=x.device)),
}
BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "matmul": lambda x, y: (x @ y.t()) @ y * 0.1,
    "linear": lambda x, y: F.linear(x, y.t() @ y * 0.1, y[0]),
    "where": lambda x, y: flow.where(x > 0, x, y),
    "row": lambda x, y: x + y[:1],
    "joined": lambda x, y: flow.cat([x, y], 0)[::2],
}
GRIDS = [[0, 1], [0, 1, 2], [[0, 1], [2, 3]], [[0], [1]], [[0, 1, 2], [3, 4, 5]]]


def program(rng):
    """Steps: an op, the numbers of its operands, and whether the result changes its sbp."""
    steps = []
    for k in range(8):
        names = list(UNARY if rng.random() < 0.5 else BINARY)
        name = names[rng.integers(len(names))]
        operands = [int(rng.integers(2 + k)) for _ in range(1 if name in UNARY else 2)]
        steps.append((name, operands, bool(rng.random() < 0.5)))
    return steps


def computed(steps, values, change):
    """The sum of all results, the results, and the gradients of the first two values."""
    known = list(values)
    for name, operands, changes in steps:
        result = {**UNARY, **BINARY}[name](*(known[k] for k in operands))
        known.append(change(result) if changes else result)
    loss = sum((known[k] ** 2).mean() for k in range(2, len(known)))
    grads = flow.autograd.grad(loss, values, allow_unused=True)
    return [loss, *known[2:]], grads


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("number", range(8))
def test_a_random_program(grid, number, seed):
    rng = np.random.default_rng([seed, number])
    steps = program(rng)
    arrays = [rng.standard_normal((4, 6)) for _ in range(2)]
    local = [flow.tensor(a).requires_grad_() for a in arrays]
    results, grads = computed(steps, local, lambda x: x)
    expected = [r.detach().numpy() for r in results]
    slopes = [None if g is None else g.numpy() for g in grads]
    options = ranks.each_sbp(2, np.ndim(grid))

    def rank(k):
        where = flow.placement("cpu", grid)
        own = np.random.default_rng([seed, number, 1])  # all ranks draw the same

        def held():
            return options[own.integers(len(options))]

        values = [ranks.held(a, where, held()).detach().requires_grad_() for a in arrays]
        results, grads = computed(steps, values, lambda x: x.to_global(sbp=held()))
        actual = [r.numpy() for r in results]
        return actual, [None if g is None else g.numpy() for g in grads]

    for result, gradients in ranks.run(np.size(grid), rank):
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10, err_msg=f"{steps}")
        for a, b in zip(gradients, slopes, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=f"{steps}")
