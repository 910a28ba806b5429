"""flow.func.vmap: every op's samples against the loop, nested transforms against torch.func."""

import functools
import threading

import numpy as np
import pytest
import torch
from torch import func as peer

import flowvm as flow
from flowvm import func, nn
from flowvm.eager.batched import maps
from flowvm.eager.values import adopt_array
from flowvm.func import batching
from tests.ops.helpers.op_calls import (
    NO_TENSOR,
    all_samples,
    arrays_of,
    in_dtype,
    is_float,
    mapped,
    tensors_in,
)

SIZE = 3
# as_strided counts from the memory's first element, which in a loop is another example's
SAMPLED = [(n, s) for n, s in all_samples() if n not in NO_TENSOR and n != "as_strided"]
pytestmark = pytest.mark.filterwarnings("ignore:vmap")


def _run(function, sample, tensors):
    inputs = iter(tensors)
    args, kwargs = mapped((sample.args, sample.kwargs), lambda a: next(inputs))
    return tensors_in(function(*args, **kwargs))


def _slopes(function, sample, *tensors):
    """The gradients of a sum over all results by all floats."""
    places = [k for k, t in enumerate(tensors) if t.dtype.is_floating_point]

    def total(*floats):
        whole = list(tensors)
        for k, x in zip(places, floats, strict=True):
            whole[k] = x
        outs = [o for o in _run(function, sample, whole) if o.dtype.is_floating_point]
        return functools.reduce(lambda a, b: a + b, [(o * o).sum() for o in outs])

    return list(func.grad(total, tuple(range(len(places))))(*[tensors[k] for k in places]))


def _loop(f, value, dims):
    """The results of a loop, None where one example's call is an error."""
    try:
        results = batching._looped(f, tuple(value), {}, dims, 0, "same", list(value), SIZE)
        return [r.numpy() for r in results]
    except Exception:
        return None


@pytest.mark.product(16)
@pytest.mark.parametrize(("name", "op"), SAMPLED, ids=[n for n, _ in SAMPLED])
def test_samples_against_the_loop(name, op, rng):
    for sample in list(op.generate(rng))[:4]:
        sample = in_dtype(sample, "float32")
        arrays = arrays_of(sample)
        if not arrays:
            continue
        # factors that leave any sample's domain what it is
        several = [np.stack([a * np.float32(t) if is_float(a) else a for t in (1, 0.9, 0.7)])
                   for a in arrays]  # fmt: skip
        for dims in {(0,) * len(arrays), (0,) + (None,) * (len(arrays) - 1)}:
            pairs = zip(several, arrays, dims, strict=True)
            inputs = [adopt_array(np.array(a if d is None else s)) for s, a, d in pairs]
            functions = [lambda *ts, sample=sample: _run(op.function, sample, ts)]
            if op.grad and any(map(is_float, arrays)):
                functions.append(functools.partial(_slopes, op.function, sample))
            for f in functions:
                want = _loop(f, inputs, list(dims))
                if not want:
                    continue
                results = func.vmap(f, dims, randomness="same")(*inputs)
                for one, other in zip(results, want, strict=True):
                    assert tuple(one.shape) == other.shape, (name, dims)
                    np.testing.assert_allclose(one.numpy(), other, rtol=3e-4, atol=1e-4)


# --- against torch.func ---------------------------------------------------------------------------


def _floats(rng, *shape):
    return (rng.standard_normal(shape) * 0.5).astype(np.float32)


def _loss(m, w, x):
    return (m.sin(x * w) * x.sum()).sum()


NESTED = {
    "vmap of vmap": lambda m, f, a, b: f.vmap(f.vmap(lambda x, y: m.sin(x * y) + x))(a, b),
    "all pairs": lambda m, f, a, b: f.vmap(lambda x: f.vmap(lambda y: m.dot(x, y))(b))(a),
    "vmap of jvp": lambda m, f, a, b: f.vmap(
        lambda x, t: f.jvp(lambda z: m.sin(z) * z.sum(), (x,), (t,))
    )(a, b),
    "jvp of vmap": lambda m, f, a, b: f.jvp(f.vmap(lambda z: m.sin(z) * z.sum()), (a,), (b,)),
    "vmap of vjp": lambda m, f, a, b: f.vmap(
        lambda x, t: f.vjp(lambda z: m.sin(z) * z.sum(), x)[1](t)
    )(a, b),
    "grad of vmap": lambda m, f, a, b: f.grad(
        lambda w: f.vmap(lambda x: _loss(m, w, x))(a).pow(2).sum()
    )(b[0]),
    "per-sample gradients": lambda m, f, a, b: f.vmap(
        f.grad(lambda w, x: _loss(m, w, x)), (None, 0)
    )(b[0], a),
    "grad of vmap of grad": lambda m, f, a, b: f.grad(
        lambda w: f.vmap(f.grad(lambda x: _loss(m, w, x)))(a).pow(2).sum()
    )(b[0]),
    "grad in maps in grad in a map": lambda m, f, a, b: f.vmap(
        f.grad(lambda x: f.vmap(f.grad(lambda z: m.sin(z * x).sum()))(b).pow(2).sum())
    )(a),
    "vmap of hessian": lambda m, f, a, b: f.vmap(f.hessian(lambda x: m.sin(x).sum() * x.prod()))(a),
    "hessian of a vector": lambda m, f, a, b: f.hessian(lambda x: m.sin(x) * x.sum())(a[0]),
    "jacrev of vmap": lambda m, f, a, b: f.jacrev(f.vmap(lambda x: m.sin(x) * x.sum()))(a),
    "columns": lambda m, f, a, b: f.vmap(
        f.jacfwd(lambda x: m.cat([m.sin(x) * x.sum(), x * x, x, x]))
    )(a),
    "columns of columns": lambda m, f, a, b: f.jacfwd(
        f.jacfwd(lambda x: m.cat([m.sin(x) * x.sum(), x * x, x, x]))
    )(a[0]),
    "by two arguments": lambda m, f, a, b: f.jacrev(
        lambda x, y: (m.outer(x, y), (x * y).sum()), (0, 1)
    )(a[0], b[0]),
    "rows in chunks": lambda m, f, a, b: f.jacrev(lambda x: m.sin(x) * x.sum(), chunk_size=2)(a),
    "examples in chunks": lambda m, f, a, b: f.vmap(
        lambda x, y: (x * y, x.sum()), chunk_size=2, out_dims=(1, 0)
    )(a, b),
    "trees": lambda m, f, a, b: f.vmap(
        lambda d, y: {"r": d["p"] * y + d["q"][0]}, in_dims=({"p": 1, "q": (None,)}, 0), out_dims=-1
    )({"p": a.T, "q": (b[0],)}, b)["r"],
    "changes in place": lambda m, f, a, b: f.vmap(f.grad(functools.partial(_changing)))(a),
    "one for all": lambda m, f, a, b: f.vmap(lambda x: (x, b * 2), out_dims=(0, None))(a),
    "a layer with weights": lambda m, f, a, b: f.vmap(
        f.grad(lambda w, x: (m.nn.functional.layer_norm(x[None], (3,), w) ** 3).sum()), (None, 0)
    )(b[0], a),
    "losses of classes": lambda m, f, a, b: f.vmap(
        f.grad(lambda x: m.nn.functional.cross_entropy(x[None], m.tensor([1]), b[0].exp()))
    )(a),
    "images": lambda m, f, a, b: f.vmap(
        f.grad(lambda w, x: (m.nn.functional.conv1d(x[None, None], w[None, None]) ** 2).sum()),
        (None, 0),
    )(b[0, :2], a),
    "a step of 0 dimensions": lambda m, f, a, b: f.vmap(lambda x: m.softmax(x * b[0], 0) * x)(
        a[:, 0]
    ),
}


def _changing(x):
    y = x.clone()
    y.mul_(x)
    y[1].add_(x[0])
    return y.sum()


def _leaves(result):
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in _leaves(part)]
    return [result]


@pytest.mark.parametrize("name", NESTED)
def test_nested_transforms(name, rng):
    a, b = _floats(rng, 5, 3), _floats(rng, 5, 3)
    before = dict(func.explain())
    results = _leaves(NESTED[name](flow, func, flow.tensor(a), flow.tensor(b)))
    want = _leaves(NESTED[name](torch, peer, torch.tensor(a), torch.tensor(b)))
    assert func.explain() == before  # nothing looped
    for one, other in zip(results, want, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-4, atol=2e-5)
    assert maps.now() == ()


def test_what_dtypes_0d_tensors_compute_in():
    x, y = np.arange(5, dtype=np.float64), np.arange(3, dtype=np.float32)
    result = func.vmap(lambda t: t * flow.tensor(y))(flow.tensor(x))
    want = peer.vmap(lambda t: t * torch.tensor(y))(torch.tensor(x))
    assert result.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(result.numpy(), want.numpy())


def test_a_closed_over_leaf_gets_the_sum(rng):
    x = flow.tensor(_floats(rng, 6, 3))
    w = flow.tensor(_floats(rng, 3)).requires_grad_()
    for _ in range(3):  # levels are used again while graphs of former calls live
        w.grad = None
        func.vmap(lambda t: (t * w).sum())(x).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), x.numpy().sum(0), rtol=1e-5)


# --- what cannot be computed at once --------------------------------------------------------------


def test_python_decisions_run_for_each_example():
    def decides(x):
        return x * 2 if x.sum() > 0 else x

    batching.looped.pop("decides", None)
    x = flow.tensor([[1.0, 2.0], [-1.0, -2.0]])
    with pytest.warns(UserWarning, match="decides"):
        result = func.vmap(decides)(x)
    assert result.tolist() == [[2.0, 4.0], [-1.0, -2.0]]
    assert "values" in func.explain()["decides"]
    func.vmap(decides)(x)  # says so once


def test_a_tensor_from_outside_changes_as_in_a_loop():
    total = flow.zeros(2)
    result = func.vmap(lambda x: total.add_(x).clone())(flow.ones(3, 2))
    assert total.tolist() == [3.0, 3.0]
    assert result[:, 0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda x: func.vmap(lambda t: t, chunk_size=0)(x), ValueError),
        (lambda x: func.vmap(lambda t: t, out_dims=None)(x), ValueError),
        (lambda x: func.vmap(lambda t: t, in_dims=2)(x), ValueError),
        (lambda x: func.vmap(lambda t: t @ flow.ones(7))(x), RuntimeError),
    ],
)
def test_what_is_refused(wrong, error):
    with pytest.raises(error):
        wrong(flow.ones(4, 3))
    assert maps.now() == ()


# --- random numbers -------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda x: x + flow.rand(50),
    "rand_like": flow.rand_like,
    "dropout": lambda x: nn.functional.dropout(x + 1),
    "dropout of what is one": lambda x: nn.functional.dropout(flow.ones(50)) + 0 * x,
    "bernoulli": lambda x: flow.bernoulli(x + 0.5),
    "normal_": lambda x: x.clone().normal_(),
    "randperm": lambda x: x + flow.randperm(50),
    "multinomial": lambda x: flow.multinomial(flow.ones(60), 50) + 0 * x,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name, seed):
    flow.manual_seed(seed)
    x = flow.zeros(2, 50)
    one, other = func.vmap(DRAWS[name], randomness="different")(x).numpy()
    assert (one != other).any()
    one, other = func.vmap(DRAWS[name], randomness="same")(x).numpy()
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="randomness"):
        func.vmap(DRAWS[name])(x)


def test_maps_in_maps_draw_each_as_it_says(seed):
    flow.manual_seed(seed)
    inner = func.vmap(lambda x: x + flow.rand(4), randomness="same")
    array = func.vmap(inner, randomness="different")(flow.zeros(2, 3, 4)).numpy()
    np.testing.assert_array_equal(array[:, 0], array[:, 1])
    assert (array[0] != array[1]).any()


def test_gradients_see_the_mask_that_was_drawn(seed):
    flow.manual_seed(seed)
    f = func.vmap(lambda x: nn.functional.dropout(x), randomness="different")
    x = flow.ones(3, 40).requires_grad_()
    y = f(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    jacobian = func.jacrev(lambda x: nn.functional.dropout(x))(flow.ones(40)).numpy()
    assert set(np.diag(jacobian)) == {0.0, 2.0}
    assert np.count_nonzero(jacobian) == np.count_nonzero(np.diag(jacobian))


# --- modules, graphs, threads ---------------------------------------------------------------------


def _per_sample(model):
    def loss(params, x):
        return (func.functional_call(model, params, (x,)) ** 2).sum()

    return func.vmap(func.grad(loss), (None, 0))


def test_a_graph_captures_maps(rng):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = {k: p.detach() for k, p in model.named_parameters()}
    per_sample = _per_sample(model)

    class Gradients(nn.Graph):
        def build(self, x):
            gradients = per_sample(params, x)
            return gradients["0.weight"], func.hessian(lambda z: (z.sin() * z.sum()).sum())(x[0])

    graph = Gradients()
    for _ in range(2):
        x = flow.tensor(_floats(rng, 5, 3))
        weight, hessian = graph(x)
        np.testing.assert_allclose(
            weight.numpy(), per_sample(params, x)["0.weight"].numpy(), rtol=1e-4, atol=1e-6
        )
        want = func.hessian(lambda z: (z.sin() * z.sum()).sum())(x[0])
        np.testing.assert_allclose(hessian.numpy(), want.numpy(), rtol=1e-4, atol=1e-6)


def test_compiled_functions_run_as_a_part_of_a_map(rng):
    x = flow.tensor(_floats(rng, 4, 3))
    compiled = flow.compile(lambda z: z.cos() * 3)
    compiled(x[0])
    for _ in range(2):
        np.testing.assert_allclose(func.vmap(compiled)(x).numpy(), np.cos(x.numpy()) * 3, rtol=1e-5)


def test_gradients_of_norms_of_given_statistics(rng):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
    params = {k: p.detach() for k, p in model.named_parameters()}
    x = flow.tensor(_floats(rng, 3, 1, 1, 5, 5))
    gradients = _per_sample(model)(params, x)
    for k in range(3):
        loss = lambda p, k=k: (func.functional_call(model, p, (x[k],)) ** 2).sum()  # noqa: E731
        for name, want in func.grad(loss)(params).items():
            np.testing.assert_allclose(
                gradients[name][k].numpy(), want.numpy(), rtol=1e-3, atol=1e-5, err_msg=name
            )


def test_a_function_of_ones_own(rng):
    class Square(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = flow.tensor(_floats(rng, 4, 3))
    gradients = func.vmap(func.grad(lambda z: Square.apply(z).sum()))(x)
    np.testing.assert_allclose(gradients.numpy(), 2 * x.numpy(), rtol=1e-6)


def test_duals_through_a_map(rng):
    x = flow.tensor(_floats(rng, 4, 3))
    with func.forward_ad.dual_level():
        y = func.vmap(lambda z: z.sin())(func.forward_ad.make_dual(x, flow.ones_like(x)))
        tangent = func.forward_ad.unpack_dual(y).tangent
        np.testing.assert_allclose(tangent.numpy(), np.cos(x.numpy()), rtol=1e-5)


def test_maps_of_threads_are_apart(rng):
    a = flow.tensor(_floats(rng, 8, 3))
    results = {}

    def work(k):
        for _ in range(20):
            results[k] = func.vmap(func.grad(lambda x: (x**3).sum() * (k + 1)))(a).numpy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(3):
        np.testing.assert_allclose(results[k], 3 * a.numpy() ** 2 * (k + 1), rtol=1e-5)


def test_what_a_tensor_says_of_itself():
    texts = []
    func.vmap(lambda x: (texts.append(repr(x)), x)[1])(flow.ones(4, 3))
    assert "f32[3] for each of 4" in texts[0]


def test_norms_outside_of_the_graph():
    x = flow.randn(4, 5, 3)
    for f, axis in (
        (lambda v: nn.functional.layer_norm(v, (3,)), 0),
        (lambda v: nn.functional.rms_norm(v, (3,)), 1),
        (func.vmap(lambda v: nn.functional.layer_norm(v, (3,))), 0),
    ):
        whole = [f(row) for row in x.unbind(axis)]
        np.testing.assert_allclose(
            func.vmap(f, axis)(x).numpy(), flow.stack(whole).numpy(), rtol=1e-5, atol=1e-6
        )
