"""The kernels of softmax, the norms and the class losses against float64: every way a row can lie,
values that break naive formulas, gradients, and the number of instructions.
"""

import numpy as np
import pytest

import flowvm as flow
from flowvm.nn import functional as F

FLOATS = ["float32", "float64"]


def tensor(array):
    return flow.from_numpy(np.array(array))


def leaf(array):
    return tensor(array).requires_grad_()


def close(actual, want, dtype, slack=1.0, least=1e-30):
    """Within rounding of the largest number there is."""
    actual = np.asarray(actual, np.float64)
    size = np.abs(want[np.isfinite(want)]).max(initial=least)
    np.testing.assert_allclose(
        actual / size, want / size, rtol=0, atol=slack * (3e-6 if dtype == "float32" else 3e-14)
    )


def names(function):
    """The instructions that a call issues."""
    return [i.name for i in flow.vm.trace(function).instructions if i.name != "release"]


# --- softmax -------------------------------------------------------------------------------------

# runs short, long and split; neighbours in one visit and split; one row, one column, one element
ROWS = [
    ((70, 10), 1), ((5, 48), 1), ((5, 49), 1), ((3, 4099), 1), ((2, 70001), 1), ((1, 1), 1),
    ((2, 7, 130), 1), ((3, 256, 5), 1), ((3, 257, 5), 1), ((2, 700, 600), 1), ((1000, 3), 0),
    ((7, 1, 3), 1), ((2, 3, 4, 5), 2),
]  # fmt: skip


def softmax64(x, axis):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), ROWS, ids=str)
def test_softmax_and_its_gradient(rng, shape, axis, dtype):
    x = (rng.standard_normal(shape) * 4 + 1e3).astype(dtype)
    if shape[axis] > 2:  # parts that are -inf alone
        np.moveaxis(x, axis, -1)[0, ..., : shape[axis] // 2] = -np.inf
    g = rng.standard_normal(shape).astype(dtype)
    p, wide = softmax64(x.astype(np.float64), axis), g.astype(np.float64)
    a, b = leaf(x), leaf(x)
    soft, logs = flow.softmax(a, axis), flow.log_softmax(b, axis)
    close(soft.detach().numpy(), p, dtype)
    finite = p > 0
    actual = logs.detach().numpy()
    close(actual[finite], np.log(p[finite]), dtype)
    assert np.isneginf(actual[~finite & np.isneginf(x)]).all()
    soft.backward(tensor(g))
    logs.backward(tensor(g))
    # differences of numbers as large as g: what is left may be as small as it likes
    large = np.abs(wide).max() * (1 + shape[axis] ** 0.5)
    close(a.grad.numpy(), p * (wide - (wide * p).sum(axis, keepdims=True)), dtype, 1, large)
    close(b.grad.numpy(), wide - p * wide.sum(axis, keepdims=True), dtype, 1, large)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("shape", "axis"), ROWS[:5] + ROWS[6:10], ids=str)
def test_softmax_of_a_row_without_meaning(shape, axis, bad):
    """NaN and infinity make their own row NaN and no other; -inf does where there is nothing else.

    +inf alone is a maximum, and what lies infinitely far below it is 0, as in PyTorch: so only the
    sum's NaN is asked for.
    """
    x = np.zeros(shape, np.float32)
    rows = np.moveaxis(x, axis, -1)
    rows[0, ..., -1] = bad
    if bad < 0:
        rows[0] = bad
    for function in (flow.softmax, flow.log_softmax):
        actual = np.moveaxis(function(tensor(x), axis).numpy(), axis, -1)
        assert np.isnan(actual[0, ..., -1]).all()
        assert np.isfinite(actual[1:]).all()


# --- norms ---------------------------------------------------------------------------------------


def norm64(x, axes, w, b, g, eps=1e-5, center=True):
    """out, dx, dw, db in float64; w and b as they broadcast over x."""
    mean = x.mean(axes, keepdims=True) if center else 0.0
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)
    xhat, h = (x - mean) * rstd, g * w
    apart = h.mean(axes, keepdims=True) if center else 0.0
    dx = rstd * (h - apart - xhat * (h * xhat).mean(axes, keepdims=True))
    over = tuple(i for i in range(x.ndim) if w.shape[i] == 1)
    return (xhat * w + b, dx, (g * xhat).sum(over, keepdims=True), g.sum(over, keepdims=True))


def check_norm(rng, shape, wide, axes, call, dtype, offset=0.0, grouped=None, center=True):
    """`wide` is the shape in which weights broadcast, `grouped` the one in which `axes` are."""
    x = (rng.standard_normal(shape) * 2 + offset).astype(dtype)
    w, b = (rng.standard_normal(wide).astype(dtype) for _ in range(2))
    g = rng.standard_normal(shape).astype(dtype)
    leaves = leaf(x), leaf(w.ravel()), leaf(b.ravel())
    out = call(*leaves)
    out.backward(tensor(g))
    x, w, b, g = (v.astype(np.float64) for v in (x, w, b, g))
    if not center:
        b = b * 0
    if grouped is None:
        want = norm64(x, axes, w, b, g, center=center)
    else:  # weights are no dimension of their own there: D(g * weight) by hand
        one = np.ones((1,) * len(grouped))
        flat, dx, _, _ = norm64(x.reshape(grouped), axes, one, 0 * one, (g * w).reshape(grouped))
        xhat = flat.reshape(shape)
        over = tuple(i for i in range(x.ndim) if w.shape[i] == 1)
        want = xhat * w + b, dx.reshape(shape), (g * xhat).sum(over), g.sum(over)
    # the mean itself is rounded, by 2**-24 of it, against the spread of its group
    groups = x.reshape(grouped or shape)
    spread = np.sqrt(groups.var(axes) + 1e-5)
    least = 1 / spread.min()  # what dx is made of
    far = 2 * np.abs(groups.mean(axes) / spread).max() if center else 0.0
    slack = 1 + far / 20 if dtype == "float32" else 1 + far / 2
    close(out.detach().numpy(), want[0], dtype, slack)
    close(leaves[0].grad.numpy(), want[1], dtype, 2 * slack, least)
    # a mean that is off shifts all of a group alike, and dw by as much of db
    close(leaves[1].grad.numpy(), want[2].ravel(), dtype, 2 * slack, np.abs(want[3]).max())
    if center:
        close(leaves[2].grad.numpy(), want[3].ravel(), dtype, 2 * slack)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5, 1), (300, 3), (7, 17), (70, 64), (3, 1000), (2, 5001)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_layer_norm(rng, shape, dtype, offset):
    def call(x, w, b):
        return flow.layer_norm(x, shape[1], w, b)

    check_norm(rng, shape, (1, shape[1]), (1,), call, dtype, offset)


@pytest.mark.parametrize("shape", [(300, 3), (3, 1000)])
def test_rms_norm(rng, shape):
    def call(x, w, b):
        return flow.rms_norm(x, shape[1], w, 1e-5)

    check_norm(rng, shape, (1, shape[1]), (1,), call, "float32", center=False)


# (N, C), small planes, large ones, groups beyond the cache
PLANES = [(130, 70), (9, 1030), (2, 3), (6, 70, 9), (40, 3, 127), (3, 5, 128), (2, 2, 300, 301)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", PLANES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_batch_norm(rng, shape, dtype, offset):
    def call(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)

    wide = (1, shape[1], *(1,) * (len(shape) - 2))
    check_norm(rng, shape, wide, (0, *range(2, len(shape))), call, dtype, offset)


@pytest.mark.parametrize(
    ("shape", "groups"), [((6, 70), 5), ((3, 4, 9), 2), ((2, 2, 300, 301), 1)], ids=str
)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_group_norm(rng, shape, groups, offset):
    def call(x, w, b):
        return flow.group_norm(x, groups, w, b)

    wide = (1, shape[1], *(1,) * (len(shape) - 2))
    grouped = (shape[0], groups, int(np.prod(shape[1:])) // groups)
    check_norm(rng, shape, wide, (2,), call, "float32", offset, grouped)


@pytest.mark.parametrize("shape", [(3, 4, 9), (1, 2, 400, 401)], ids=str)
def test_instance_norm(rng, shape):
    def call(x, w, b):
        return F.instance_norm(x, weight=w, bias=b)

    wide = (1, shape[1], *(1,) * (len(shape) - 2))
    check_norm(rng, shape, wide, tuple(range(2, len(shape))), call, "float32")


@pytest.mark.parametrize("shape", [(33, 70), (6, 70, 9), (3, 5, 128)], ids=str)
def test_batch_norm_by_given_statistics(rng, shape):
    c, wide = shape[1], (1, shape[1], *(1,) * (len(shape) - 2))
    x, w, b, g = (rng.standard_normal(s) for s in (shape, c, c, shape))
    mean, var = rng.standard_normal(c), rng.uniform(0.5, 2, c)
    leaves = leaf(x), leaf(w), leaf(b)
    # statistics may be of another dtype than the input
    statistics = tensor(mean.astype("float32")), tensor(var.astype("float32"))
    out = F.batch_norm(leaves[0], *statistics, leaves[1], leaves[2])
    out.backward(tensor(g))
    mean, var = (t.numpy().astype(np.float64).reshape(wide) for t in statistics)
    xhat = (x - mean) / np.sqrt(var + 1e-5)
    over = (0, *range(2, len(shape)))
    close(out.detach().numpy(), xhat * w.reshape(wide) + b.reshape(wide), "float64")
    close(leaves[0].grad.numpy(), g * w.reshape(wide) / np.sqrt(var + 1e-5), "float64")
    close(leaves[1].grad.numpy(), (g * xhat).sum(over), "float64")
    close(leaves[2].grad.numpy(), g.sum(over), "float64")


@pytest.mark.parametrize("shape", [(33, 5), (40, 5, 9), (4, 5, 300)], ids=str)
def test_batch_norm_of_constants_is_the_bias(shape):
    """Whatever the constant: the mean is exact, so nothing is left to be divided by sqrt(eps)."""
    x, bias = flow.full(shape, 12345.678), flow.arange(5).to(flow.float32)
    mean, var = flow.zeros(5), flow.ones(5)
    out = F.batch_norm(x, mean, var, flow.ones(5), bias, training=True, momentum=1.0)
    want = np.broadcast_to(np.arange(5.0).reshape(1, 5, *(1,) * (len(shape) - 2)), shape)
    np.testing.assert_array_equal(out.numpy(), want)
    np.testing.assert_array_equal(mean.numpy(), np.float32(12345.678))
    np.testing.assert_array_equal(var.numpy(), 0.0)


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (0, 3, 200)], ids=str)
def test_norms_of_nothing(shape):
    x = flow.zeros(shape).requires_grad_()
    w, b = flow.ones(3).requires_grad_(), flow.zeros(3).requires_grad_()
    for out in (flow.group_norm(x, 3, w, b), F.batch_norm(x, flow.zeros(3), flow.ones(3), w, b)):
        assert tuple(out.shape) == shape
        out.sum().backward()
    assert w.grad.tolist() == b.grad.tolist() == [0.0, 0.0, 0.0]


def test_some_of_weight_and_bias(rng):
    x, w, b = rng.standard_normal((6, 4, 5)), rng.standard_normal(4), rng.standard_normal(4)
    plain = flow.group_norm(tensor(x), 2).numpy()
    wide = w[:, None], b[:, None]
    np.testing.assert_allclose(flow.group_norm(tensor(x), 2, tensor(w)).numpy(), plain * wide[0])
    np.testing.assert_allclose(
        flow.group_norm(tensor(x), 2, bias=tensor(b)).numpy(), plain + wide[1]
    )
    rows, v = flow.layer_norm(tensor(x), 5).numpy(), rng.standard_normal(5)
    np.testing.assert_allclose(flow.layer_norm(tensor(x), 5, bias=tensor(v)).numpy(), rows + v)


# --- losses against classes ----------------------------------------------------------------------


def entropy64(x, target, weight, ignored, reduction, smoothing):
    """The loss and its gradient by x for an incoming gradient of ones."""
    n = x.shape[1]
    p = softmax64(x, 1)
    logs = x - x.max(1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    counted = np.expand_dims(target != ignored, 1)
    hot = np.zeros_like(x)
    np.put_along_axis(hot, np.expand_dims(np.where(target == ignored, 0, target), 1), 1.0, 1)
    per = weight.reshape(1, n, *(1,) * (x.ndim - 2))
    goal = counted * ((1 - smoothing) * hot * per + smoothing / n * per)
    loss, grad = -(goal * logs).sum(1), p * goal.sum(1, keepdims=True) - goal
    divisor = (counted * hot * per).sum() if reduction == "mean" else 1.0
    return (loss if reduction == "none" else loss.sum() / divisor), grad / divisor


@pytest.mark.parametrize(
    "shape", [(70, 10), (9, 49), (5, 3001), (2, 5, 70), (3, 300, 17), (2, 4, 6, 300)], ids=str
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_cross_entropy(rng, shape, smoothing, weighted, offset):
    x = (rng.standard_normal(shape) + offset).astype("float32")
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target.flat[::5] = 1
    weight = rng.uniform(0.5, 2, shape[1]).astype("float32") if weighted else None
    for reduction in ("none", "sum", "mean"):
        a = leaf(x)
        loss = flow.cross_entropy(
            a,
            tensor(target),
            None if weight is None else tensor(weight),
            ignore_index=1,
            reduction=reduction,
            label_smoothing=smoothing,
        )
        loss.backward(flow.ones_like(loss))
        per = np.ones(shape[1]) if weight is None else weight.astype(np.float64)
        want, grad = entropy64(x.astype(np.float64), target, per, 1, reduction, smoothing)
        close(loss.detach().numpy(), np.asarray(want), "float32")
        close(a.grad.numpy(), grad, "float32")


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(rng, reduction, weighted):
    x, target = rng.standard_normal((5000, 7, 3)), rng.integers(0, 7, (5000, 3))
    weight = rng.uniform(0.5, 2, 7) if weighted else np.ones(7)
    a = leaf(x)
    loss = flow.nll_loss(
        a, tensor(target), tensor(weight) if weighted else None, ignore_index=2, reduction=reduction
    )
    loss.backward(flow.ones_like(loss))
    each = weight[target] * (target != 2)
    divisor = each.sum() if reduction == "mean" else 1.0
    want = -np.take_along_axis(x, target[:, None], 1)[:, 0] * each
    size = 1e-30
    if reduction != "none":  # of a sum of both signs little may be left
        size, want = np.linalg.norm(want) / divisor, want.sum() / divisor
    close(loss.detach().numpy(), want, "float64", least=size)
    grad = np.zeros_like(x)
    np.put_along_axis(grad, target[:, None], -each[:, None] / divisor, 1)
    close(a.grad.numpy(), grad, "float64")


def test_a_masked_class_has_no_gradient():
    x = leaf(np.array([[0.0, -np.inf, 1.0]], np.float32))
    flow.cross_entropy(x, flow.tensor([2])).backward()
    assert np.isfinite(x.grad.numpy()).all()
    assert x.grad.numpy()[0, 1] == 0.0


def test_learned_weights_of_classes(rng):
    x, target = rng.standard_normal((6, 4)), np.array([0, 1, 2, 3, 1, 2])
    weight = rng.uniform(0.5, 2, 4)
    for smoothing in (0.0, 0.2):
        a, b, w = leaf(x), leaf(x), leaf(weight)
        one = flow.cross_entropy(a, tensor(target), w, label_smoothing=smoothing)
        two = flow.cross_entropy(b, tensor(target), tensor(weight), label_smoothing=smoothing)
        one.backward()
        two.backward()
        np.testing.assert_allclose(one.item(), two.item())
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-12)
        assert w.grad is not None


# --- workers and instructions ---------------------------------------------------------------------


def test_the_same_bits_with_any_number_of_workers(rng):
    x, w = rng.standard_normal((600, 520)).astype("float32"), flow.ones(520)
    long, target = rng.standard_normal((2, 200000)).astype("float32"), rng.integers(0, 520, 600)
    planes = rng.standard_normal((4, 6, 150, 151)).astype("float32")
    mean, var, six = flow.zeros(6), flow.ones(6), flow.ones(6)
    calls = [
        (lambda a: flow.layer_norm(a, 520, w, w), x),
        (lambda a: F.batch_norm(a, None, None, w, w, training=True), x),
        (lambda a: F.batch_norm(a, mean, var, six, six, training=True), planes),
        (lambda a: flow.group_norm(a, 1, six, six), planes),
        (lambda a: flow.softmax(a, 1), long),
        (lambda a: flow.log_softmax(a, 0), x),
        (lambda a: flow.cross_entropy(a, tensor(target)), x),
    ]
    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            bits = []
            for call, array in calls:
                a = leaf(array)
                w.grad, out = None, call(a)
                (out * out).sum().backward()
                bits += [out.detach().numpy().tobytes(), a.grad.numpy().tobytes()]
            results.append(bits)
    assert results[0] == results[1] == results[2]


def test_one_instruction_forward_and_one_backward(rng):
    x, g = leaf(rng.standard_normal((8, 6)).astype("float32")), flow.ones(8, 6)
    w, b = flow.ones(6).requires_grad_(), flow.zeros(6).requires_grad_()
    mean, var, target = flow.zeros(6), flow.ones(6), flow.zeros(8, dtype=flow.int64)
    back = "normalize_backward"
    cases = [
        (lambda: flow.layer_norm(x, 6, w, b).backward(g), ["normalize", back]),
        (lambda: flow.rms_norm(x, 6, w).backward(g), ["normalize", back]),
        (lambda: F.batch_norm(x, mean, var, w, b, True).backward(g), ["batch_norm", back]),
        (lambda: F.batch_norm(x, mean, var, w, b).backward(g), ["normalize", back]),
        (lambda: flow.softmax(x, 1).backward(g), ["softmax", "softmax_backward"]),
        (
            lambda: flow.cross_entropy(x, target).backward(),
            ["cross_entropy", "cross_entropy_backward"],
        ),
        (lambda: flow.nll_loss(x, target).backward(), ["nll_loss", "nll_loss_backward"]),
    ]
    flow.ones(()).requires_grad_().backward()  # the gradient that every backward starts with
    for call, want in cases:
        x.grad = w.grad = b.grad = None
        assert names(call) == want


def test_the_backward_of_a_softmax_by_pytorchs_name(rng):
    g, y = rng.random((3, 4)), rng.random((3, 4))
    result = flow._softmax_backward_data(flow.tensor(g), flow.tensor(y), -1, flow.float64)
    np.testing.assert_allclose(result.numpy(), y * (g - (g * y).sum(1, keepdims=True)), rtol=1e-12)
    result = flow._log_softmax_backward_data(flow.tensor(g), flow.tensor(y), 1, flow.float64)
    np.testing.assert_allclose(result.numpy(), g - np.exp(y) * g.sum(1, keepdims=True), rtol=1e-12)
