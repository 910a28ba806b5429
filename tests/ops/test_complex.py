"""Complex tensors against PyTorch: values, dtypes and shapes, gradients, and refused calls.

A case is a function of a library (flowvm or PyTorch) and tensors.  Each is called with complex64
and complex128, and where it gives floats its gradients are compared too: the vector-Jacobian
product with the same output gradient.
"""

import re

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

_numbers = np.random.default_rng(20)


def c(*shape):
    return _numbers.standard_normal(shape) + 1j * _numbers.standard_normal(shape)


X, Y, M, V, W = c(4, 5), c(4, 5), c(5, 6), c(5), c(5)
B, D, S = c(3, 4, 5), c(3, 5, 2), c(4, 4)
AT = np.array([0, 2, 1])
EACH = _numbers.integers(0, 4, (3, 5))
MASK = _numbers.random((4, 5)) > 0.5


def assigned(t, a, b, i):
    a = a.clone()
    a[i] = b[:3]
    a[0] = 1j
    a[:, 1] = 2
    a[1:2] = b[1:2]
    return a


def parts_assigned(t, a, b):
    a = a.clone()
    a.real = b.real
    a.imag = b.real
    return a


def real_doubled(t, a):
    a = a.clone()
    a.real.mul_(2)
    return a


POINTWISE = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "conj", "conj_physical",
    "cos", "cosh", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "neg", "positive",
    "reciprocal", "rsqrt", "sgn", "sigmoid", "sin", "sinc", "sinh", "sqrt", "square", "tan",
    "tanh",
)  # fmt: skip
PREDICATES = ["isfinite", "isinf", "isnan", "isreal", "logical_not"]

CASES = {
    **{n: ((lambda t, a, n=n: getattr(t, n)(a)), X) for n in (*POINTWISE, *PREDICATES)},
    # two operands, and numbers
    "add": (lambda t, a, b: a + b[0], X, Y),
    "add a number": (lambda t, a: a + (1 - 2j), X),
    "a number less": (lambda t, a: 2.5 - a, X),
    "add alpha": (lambda t, a, b: t.add(a, b, alpha=2j), X, Y),
    "sub alpha": (lambda t, a, b: t.sub(a, b, alpha=2), X, Y),
    "mul": (lambda t, a, b: a * b, X, Y),
    "mul real": (lambda t, a, b: a * b.real, X, Y),
    "mul a number": (lambda t, a: 3j * a, X),
    "div": (lambda t, a, b: a / b, X, Y),
    "div by a number": (lambda t, a: a / 2, X),
    "div of a number": (lambda t, a: 1j / a, X),
    "pow": (lambda t, a, b: a**b, X, Y),
    "pow real": (lambda t, a, b: a.real.abs() ** b, X, Y),
    **{f"pow {p}": ((lambda t, a, p=p: a**p), X) for p in (0, 1, 2, 3, 4, -1, 0.5, -0.5, 1 + 1j)},
    "power of a number": (lambda t, a: 2**a, X),
    "float_power": (lambda t, a: t.float_power(a, 2), X),
    "eq": (lambda t, a, b: a == b, X, Y),
    "ne a number": (lambda t, a: a != 1j, X),
    "isclose": (lambda t, a, b: t.isclose(a, b), X, X + 1e-9),
    "logical_and": (lambda t, a, b: t.logical_and(a, b), X, Y),
    "where": (lambda t, a, m, b: t.where(m, a, b), X, MASK, Y),
    "where real": (lambda t, a, m, b: t.where(m, a, b.real), X, MASK, Y),
    "addcmul": (lambda t, a, b: t.addcmul(a, b, b, value=2), X, Y),
    "addcdiv": (lambda t, a, b: t.addcdiv(a, b, b), X, Y),
    "lerp": (lambda t, a, b: t.lerp(a, b, 0.3), X, Y),
    # parts
    "real": (lambda t, a: a.real, X),
    "imag": (lambda t, a: a.imag, X),
    "view_as_real": (lambda t, a: t.view_as_real(a), X),
    "view_as_real of a transpose": (lambda t, a: t.view_as_real(a.T), X),
    "view_as_complex": (lambda t, a: t.view_as_complex(t.view_as_real(a)), X),
    "complex": (lambda t, a: t.complex(a.real, a.imag * 2), X),
    "polar": (lambda t, a: t.polar(a.real.abs(), a.imag), X),
    "H": (lambda t, a: a.H, X),
    "mH": (lambda t, a: a.mH, B),
    "adjoint": (lambda t, a: t.adjoint(a), B),
    # in place and out=
    "add_": (lambda t, a, b: a.clone().add_(b), X, Y),
    "mul_ a number": (lambda t, a: a.clone().mul_(1j), X),
    "div_": (lambda t, a, b: a.clone().div_(b.real), X, Y),
    "exp_": (lambda t, a: a.clone().exp_(), X),
    "fill_": (lambda t, a: a.clone().fill_(2 - 1j), X),
    "zero_": (lambda t, a: a.clone().zero_(), X),
    "copy_": (lambda t, a, b: a.clone().copy_(b.real), X, Y),
    "setitem": (assigned, X, Y, AT),
    # places and shapes
    "clone": (lambda t, a: a.clone(), X),
    "contiguous": (lambda t, a: a.T.contiguous(), c(40, 50)),
    "slice": (lambda t, a: a[1:, ::2].contiguous(), X),
    "to complex128": (lambda t, a: a.to(t.complex128), X),
    "to bool": (lambda t, a: a.bool(), X * MASK),
    "from real": (lambda t, a: a.real.to(t.complex64), X),
    "cat": (lambda t, a, b: t.cat([a, b], 1), X, Y),
    "cat with real": (lambda t, a, b: t.cat([a, b.real], 0), X, Y),
    "stack": (lambda t, a, b: t.stack([a, b], 1), X, Y),
    "flip": (lambda t, a: t.flip(a, (0, 1)), X),
    "roll": (lambda t, a: t.roll(a, 2, 1), X),
    "tril": (lambda t, a: t.tril(a), X),
    "triu": (lambda t, a: t.triu(a, 1), X),
    "diag": (lambda t, a: t.diag(a), V),
    "diagonal": (lambda t, a: t.diag(a), X),
    "diag_embed": (lambda t, a: t.diag_embed(a), X),
    "trace": (lambda t, a: t.trace(a), S),
    "repeat": (lambda t, a: a.repeat(2, 3), X),
    "repeat_interleave": (lambda t, a: t.repeat_interleave(a, 2, 0), X),
    "index": (lambda t, a, i: a[i], X, AT),
    "index columns": (lambda t, a, i: a[:, i], X, AT),
    "mask": (lambda t, a, m: a[m], X, MASK),
    "index_select": (lambda t, a, i: t.index_select(a, 0, i), X, AT),
    "gather": (lambda t, a, i: t.gather(a, 0, i), X, EACH),
    "take": (lambda t, a, i: t.take(a, i), X, EACH),
    "scatter": (lambda t, a, b, i: t.scatter(a, 0, i[:1], b), X, Y, EACH),
    "scatter a number": (lambda t, a, i: t.scatter(a, 0, i[:1], 2.5j), X, EACH),
    "scatter_add": (lambda t, a, b, i: t.scatter_add(a, 0, i, b), X, Y, EACH),
    "index_add": (lambda t, a, b, i: t.index_add(a, 0, i, b[:3], alpha=2), X, Y, AT),
    "index_copy": (lambda t, a, b, i: t.index_copy(a, 0, i, b[:3]), X, Y, AT),
    "index_fill": (lambda t, a, i: t.index_fill(a, 0, i, 3j), X, AT),
    "index_put": (lambda t, a, b, i: t.index_put(a, (i,), b[:3]), X, Y, AT),
    "index_put adding": (
        lambda t, a, b, i: t.index_put(a, (i,), b[:3], accumulate=True), X, Y, AT
    ),
    "masked_fill": (lambda t, a, m: a.masked_fill(m, 1.5j), X, MASK),
    "masked_select": (lambda t, a, m: t.masked_select(a, m), X, MASK),
    "masked_scatter": (lambda t, a, m, b: t.masked_scatter(a, m, b), X, MASK, Y),
    "split": (lambda t, a: t.split(a, 2), X),
    "unfold": (lambda t, a: a.unfold(0, 2, 1), X),
    "as_strided": (lambda t, a: t.as_strided(a, (2, 2), (1, 2)), X),
    "nonzero": (lambda t, a: t.nonzero(a), X * MASK),
    "pad": (lambda t, a: t.nn.functional.pad(a, (1, 2)), X),
    "pad circular": (lambda t, a: t.nn.functional.pad(a, (1, 2), mode="circular"), B),
    "pad reflect": (lambda t, a: t.nn.functional.pad(a, (1, 2), mode="reflect"), B),
    "kron": (lambda t, a, b: t.kron(a, b), X, Y),
    "block_diag": (lambda t, a, b: t.block_diag(a, b), X, Y),
    "embedding": (lambda t, a, i: t.nn.functional.embedding(i, a), X, AT),
    "meshgrid": (lambda t, a, b: t.meshgrid(a, b, indexing="ij"), V, W),
    # reductions
    "sum": (lambda t, a: t.sum(a), X),
    "sum over a dimension": (lambda t, a: t.sum(a, 1, keepdim=True), X),
    "sum of a transpose": (lambda t, a: a.mT.sum((0, 1)), B),
    "sum to complex128": (lambda t, a: a.sum(dtype=t.complex128), X),
    "sum of real": (lambda t, a: a.real.sum(dtype=t.complex64), X),
    "mean": (lambda t, a: t.mean(a), X),
    "mean over a dimension": (lambda t, a: t.mean(a, 0), X),
    "prod": (lambda t, a: t.prod(a), X),
    "prod over a dimension": (lambda t, a: t.prod(a, 1, True), X),
    "prod with zeros": (lambda t, a: t.prod(a, 1), X * MASK),
    "prod of nothing": (lambda t, a: t.prod(a[:, :0], 1), X),
    "var": (lambda t, a: t.var(a), X),
    "std": (lambda t, a: t.std(a, 0, correction=0), X),
    "var_mean": (lambda t, a: t.var_mean(a, 1), X),
    "norm": (lambda t, a: t.norm(a), X),
    "norm 1": (lambda t, a: t.norm(a, 1, 1), X),
    "norm inf": (lambda t, a: t.norm(a, float("inf"), 1), X),
    "vector_norm": (lambda t, a: t.linalg.vector_norm(a, 3), X),
    "dist": (lambda t, a, b: t.dist(a, b), X, Y),
    "cumsum": (lambda t, a: t.cumsum(a, 1), X),
    "cumprod": (lambda t, a: t.cumprod(a, 1), X),
    "any": (lambda t, a: t.any(a, 1), X * MASK),
    "all": (lambda t, a: t.all(a), X * MASK),
    "count_nonzero": (lambda t, a: t.count_nonzero(a, 1), X * MASK),
    "diff": (lambda t, a: t.diff(a), X),
    "trapezoid": (lambda t, a: t.trapezoid(a), X),
    # products
    "matmul": (lambda t, a, b: a @ b, X, M),
    "matmul batches": (lambda t, a, b: a @ b, B, M),
    "matmul vectors": (lambda t, a, b: a @ b, V, W),
    "mm": (lambda t, a, b: t.mm(a, b), X, M),
    "mv": (lambda t, a, b: t.mv(a, b), X, V),
    "bmm": (lambda t, a, b: t.bmm(a, b), B, D),
    "dot": (lambda t, a, b: t.dot(a, b), V, W),
    "vdot": (lambda t, a, b: t.vdot(a, b), V, W),
    "vecdot": (lambda t, a, b: t.linalg.vecdot(a, b), X, Y),
    "outer": (lambda t, a, b: t.outer(a, b), V, W),
    "inner": (lambda t, a, b: t.inner(a, b), X, Y),
    "einsum": (lambda t, a, b: t.einsum("ij,jk->ik", a, b), X, M),
    "einsum batches": (lambda t, a, b: t.einsum("bij,bjk->bk", a, b), B, D),
    "tensordot": (lambda t, a, b: t.tensordot(a, b, 1), X, M),
    "linear": (lambda t, a, b, z: t.nn.functional.linear(a, b.T, z), X, M, c(6)),
    "addmm": (lambda t, z, a, b: t.addmm(z, a, b, beta=2, alpha=3), c(6), X, M),
    "addmv": (lambda t, z, a, b: t.addmv(z, a, b), c(4), X, V),
    "baddbmm": (lambda t, z, a, b: t.baddbmm(z, a, b), c(3, 4, 2), B, D),
    "matrix_power": (lambda t, a: t.matrix_power(a, 3), S),
    # made
    "ones_like": (lambda t, a: t.ones_like(a), X),
    "full_like": (lambda t, a: t.full_like(a, 1j), X),
    "new_full": (lambda t, a: a.new_full((2,), 1 + 1j), X),
    "full": (lambda t, a: t.full((2,), 2, dtype=a.dtype), X),
    # losses, and what is made of several ops
    "l1_loss": (lambda t, a, b: t.nn.functional.l1_loss(a, b), X, Y),
    "l1_loss with real": (lambda t, a, b: t.nn.functional.l1_loss(a, b.real), X, Y),
    "corrcoef": (lambda t, a: t.corrcoef(a), X),
    "cov": (lambda t, a: t.cov(a), X),
    "logsumexp": (lambda t, a: t.logsumexp(a, 1), X),
    "conv1d": (lambda t, a, b: t.nn.functional.conv1d(a[None], b[None, :, :3]), X, Y),
    "conv2d": (
        lambda t, a, b: t.nn.functional.conv2d(a[None], b[:, None, :2, :2], groups=3), B, D
    ),
    "unfold images": (lambda t, a: t.nn.functional.unfold(a[None], 2, padding=1), B),
    "fold": (lambda t, a: t.nn.functional.fold(a, (2, 3), (2, 1), padding=(1, 0)), c(4, 9)),
    "matrix_norm": (lambda t, a: t.linalg.matrix_norm(a), X),
    "matrix_norm 1": (lambda t, a: t.linalg.matrix_norm(a, 1), X),
    "norm of a matrix": (lambda t, a: t.linalg.norm(a, -float("inf")), X),
    "multi_dot": (lambda t, a, b: t.linalg.multi_dot([a, b, b.mH, b]), X, M),
    "einsum of three": (lambda t, a, b, z: t.einsum("ij,jk,k->i", a, b, z), X, M, c(6)),
    "full of a number": (lambda t, a: t.full((2,), 2j), X),
    "eye": (lambda t, a: t.eye(3, dtype=a.dtype), X),
    "tensor": (lambda t, a: t.tensor([[1, 2j], [3, 4.5]]), X),
    "tensor of a dtype": (lambda t, a: t.tensor([1, 2.5, 1j], dtype=a.dtype), X),
    "zeros": (lambda t, a: t.zeros(2, dtype=a.dtype), X),
    "randn of none": (lambda t, a: t.randn(0, dtype=a.dtype), X),
}  # fmt: skip

# changes in place of memory that a part shows, which is not recorded
UNRECORDED = {
    "assign parts": (parts_assigned, X, Y),
    "double the real part": (real_doubled, X),
    "abs out": (lambda t, a: t.abs(a, out=t.empty(4, 5, dtype=a.real.dtype)), X),
    "add out": (lambda t, a, b: t.add(a, b, out=t.empty_like(a)), X, Y),
    "eq out": (lambda t, a, b: t.eq(a, b, out=t.empty(4, 5, dtype=t.bool)), X, X),
}

NOT_DEFINED = (
    "sign", "floor", "ceil", "trunc", "round", "frac", "erf", "lgamma", "relu", "sort", "argmax",
    "amax", "median", "histc",
)  # fmt: skip


def assigned_to_real(t, a):
    a = a.real.clone()
    a[0] = 1j


REFUSED = {
    "assign to real": assigned_to_real,
    "backward": lambda t, a: (a.requires_grad_() * 2).sum().backward(),
    "complex gradient": lambda t, a: a.requires_grad_().real.backward(t.ones_like(a)),
    "jacrev": lambda t, a: t.func.jacrev(t.square)(a),
    "jacrev to complex": lambda t, a: t.func.jacrev(lambda x: x * 1j)(a.real),
    "func.grad": lambda t, a: t.func.grad(t.sum)(a),
    "jacobian": lambda t, a: t.autograd.functional.jacobian(t.square, a),
    "vjp": lambda t, a: t.autograd.functional.vjp(t.sum, a),
    "mse_loss": lambda t, a: t.nn.functional.mse_loss(a, a),
    "to_complex of integers": lambda t, a: (a, t.int64.to_complex()),
    "Adafactor": lambda t, a: stepped(t, a, "Adafactor"),
    **{n: (lambda t, a, n=n: getattr(t, n)(a)) for n in NOT_DEFINED},
    "clamp": lambda t, a: t.clamp(a, min=0),
    "less": lambda t, a: a < a,
    "maximum": lambda t, a: t.maximum(a, a),
    "remainder": lambda t, a: a % 2,
    "floor_divide": lambda t, a: a // 2,
    "bitwise_and": lambda t, a: a & a,
    "atan2": lambda t, a: t.atan2(a, a),
    "cummax": lambda t, a: t.cummax(a, 0),
    "softmax": lambda t, a: t.softmax(a, 1),
    "float": lambda t, a: float(a[0, 0]),
    "imag of real": lambda t, a: t.imag(a.real),
    "into a real tensor": lambda t, a: a.real.clone().add_(a),
    "index": lambda t, a: a[a],
}


def tensors(library, arrays, dtype):
    tensors = []
    for array in arrays:
        kind = dtype if array.dtype.kind == "c" else array.dtype
        make = torch.from_numpy if library is torch else flow.tensor
        tensors.append(make(np.array(array, kind)))
    return tensors


def listed(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def same(ours, theirs):
    theirs = theirs.resolve_conj()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert tuple(ours.shape) == tuple(theirs.shape)
    tolerance = 2e-5 if ours.dtype in (flow.complex64, flow.float32) else 1e-11
    np.testing.assert_allclose(
        ours.numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", [*CASES, *UNRECORDED])
@pytest.mark.product(4)
def test_values_are_pytorchs(name, dtype):
    function, *arrays = (CASES | UNRECORDED)[name]
    ours = listed(function(flow, *tensors(flow, arrays, dtype)))
    theirs = listed(function(torch, *tensors(torch, arrays, dtype)))
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


def backward(library, results):
    """Run backward from a weighted sum of all results; both libraries have the same weights."""
    outs = [out for out in results if out.requires_grad]
    if not outs:
        pytest.skip("nothing to differentiate")
    numbers = np.random.default_rng(5)
    total = 0
    for out in outs:
        weight = numbers.standard_normal(tuple(out.shape))
        if out.is_complex():
            weight = weight + 1j * numbers.standard_normal(tuple(out.shape))
        (weight,) = tensors(library, [weight], "complex128")
        part = (out * weight).sum()
        total = total + (part.real if part.is_complex() else part)
    total.backward()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.product(4)
def test_gradients_are_pytorchs(name):
    function, *arrays = CASES[name]
    leaves = {}
    grads = {}
    for library in (flow, torch):
        leaves[library] = tensors(library, arrays, "complex128")
        inputs = [t for t in leaves[library] if t.is_complex()]
        for t in inputs:
            t.requires_grad_(True)
        try:
            backward(library, listed(function(library, *leaves[library])))
        except RuntimeError:
            if library is torch:
                pytest.skip("PyTorch has no gradient here")
            raise
        grads[library] = [t.grad for t in inputs]
    for a, b in zip(grads[flow], grads[torch], strict=True):
        if a is None or b is None:  # nothing comes of it: none, or zeros
            assert all(not g.any() for g in (a, b) if g is not None)
        else:
            same(a, b)


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_turns_down_is_an_error_at_the_call(name):
    for library, kinds in (
        (torch, (RuntimeError, TypeError, ValueError, IndexError)),
        (flow, (RuntimeError, TypeError, ValueError)),
    ):
        (x,) = tensors(library, [X], "complex64")
        with pytest.raises(kinds) as caught:
            REFUSED[name](library, x)
        assert len(str(caught.value)) > 10
    assert re.search("complex|integers|real", str(caught.value))


def stepped(library, start, name, count=3, **options):
    """The parameter behind `count` steps from `start` towards 1j, and its optimizer."""
    x = library.nn.Parameter(start)
    optimizer = getattr(library.optim, name)([x], **options)

    def closure():
        optimizer.zero_grad()
        loss = (x - 1j).abs().pow(2).sum()
        loss.backward()
        return loss

    for _ in range(count):
        optimizer.step(closure)
    return x.detach(), optimizer


OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adam": {"lr": 0.1, "weight_decay": 0.1},
    "Adam amsgrad": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.3},
    "Adadelta": {"lr": 0.5},
    "Rprop": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "LBFGS": {"lr": 0.1, "max_iter": 4},
    "LBFGS with a search": {"line_search_fn": "strong_wolfe"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_pytorchs(name):
    kind, options = name.split()[0], OPTIMIZERS[name]
    results = []
    for library in (flow, torch):
        (start,) = tensors(library, [X], "complex128")
        results.append(stepped(library, start, kind, **options)[0])
    same(*results)


def test_an_optimizer_goes_on_from_its_saved_state():
    whole, _ = stepped(flow, flow.tensor(X), "Adam", 4)
    half, first = stepped(flow, flow.tensor(X), "Adam", 2)
    x = flow.nn.Parameter(half)
    second = flow.optim.Adam([x])
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.zero_grad()
        (x - 1j).abs().pow(2).sum().backward()
        second.step()
    assert np.array_equal(x.detach().numpy(), whole.numpy())


def test_a_step_in_a_graph_is_the_eager_one():
    class Step(flow.nn.Graph):
        def __init__(self, x, optimizer):
            super().__init__()
            self.x = x
            self.add_optimizer(optimizer)

        def build(self, target):
            loss = (self.x - target).abs().pow(2).sum()
            loss.backward()
            return loss

    x = flow.nn.Parameter(flow.tensor(X))
    step = Step(x, flow.optim.Adam([x], lr=0.1))
    for _ in range(3):
        step(flow.full((), 1j, dtype=flow.complex128))
    plain, _ = stepped(flow, flow.tensor(X), "Adam", 3, lr=0.1)
    np.testing.assert_allclose(x.detach().numpy(), plain.numpy(), rtol=1e-12)


def test_a_compiled_function():
    @flow.compile
    def energy(z):
        return (z * z.conj()).real.sum(), flow.fft.fft(z).abs()

    z = flow.tensor(X)
    for _ in range(2):
        total, spectrum = energy(z)
        np.testing.assert_allclose(total.item(), (abs(X) ** 2).sum(), rtol=1e-12)
        np.testing.assert_allclose(spectrum.numpy(), abs(np.fft.fft(X)), rtol=1e-12)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_gradients_are_clipped_as_pytorchs(norm_type):
    results = []
    for library in (flow, torch):
        (x,) = tensors(library, [X], "complex128")
        x.requires_grad_()
        (x.abs() ** 2).sum().backward()
        total = library.nn.utils.clip_grad_norm_([x], 0.1, norm_type)
        results.append((total, x.grad))
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)


def test_a_layer_with_complex_weights():
    flow.manual_seed(1)
    layer = flow.nn.Linear(5, 3, dtype=flow.complex64)
    assert layer.weight.dtype is flow.complex64
    assert layer.weight.imag.abs().max().item() > 0
    theirs = torch.nn.Linear(5, 3, dtype=torch.complex64)
    with torch.no_grad():
        for own, other in zip(layer.parameters(), theirs.parameters(), strict=True):
            other.copy_(torch.from_numpy(own.detach().numpy()))
    x, y = (tensors(library, [X], "complex64")[0] for library in (flow, torch))
    same(layer(x), theirs(y))
    assert flow.nn.Linear(2, 2).to(flow.complex128).weight.dtype is flow.complex128


@pytest.mark.parametrize("number", [-0j, complex(2, -0.0), complex(flow.inf, -0.0)])
def test_a_zero_keeps_its_sign(number):
    tensor = flow.zeros(2, dtype=flow.complex64)
    tensor[1] = number
    for zero in (
        flow.full((1,), number),
        flow.full_like(tensor, number),
        tensor.index_fill(0, flow.tensor([0]), number),
        tensor[1:],
    ):
        assert str(zero[0].item()) == str(number)


def test_filled_with_random_numbers():
    flow.manual_seed(3)
    z = flow.empty(20000, dtype=flow.complex128).normal_(2.0, 3.0)
    assert abs(z.real.mean().item() - 2) < 0.15  # 10 standard deviations
    assert abs(z.imag.mean().item() - 2) < 0.15
    assert abs(z.imag.std().item() - 3 * 0.5**0.5) < 0.1
    z.uniform_(-1, 3)
    for part in (z.real, z.imag):
        assert -1 <= part.min().item() < -0.9
        assert 2.9 < part.max().item() < 3
    assert not np.array_equal(z.real.numpy(), z.imag.numpy())


def test_dtypes_know_their_parts():
    assert flow.complex64.to_real() is flow.float32
    assert flow.float64.to_complex() is flow.complex128
    assert flow.float32.to_real() is flow.float32
    assert flow.float16.to_complex() is flow.complex64


def test_what_is_near():
    near, far = flow.tensor(X) + 1e-12, flow.tensor(X) + 1e-2j
    assert flow.allclose(near, flow.tensor(X))
    assert not flow.allclose(far, flow.tensor(X))
    flow.testing.assert_close(near, flow.tensor(X))
    with pytest.raises(AssertionError, match="Mismatched elements: 20 / 20"):
        flow.testing.assert_close(far, flow.tensor(X))


def test_numbers_go_to_python_and_numpy():
    assert float(flow.tensor(1.5 + 0j)) == 1.5
    assert int(flow.tensor(2 + 0j)) == 2
    z = flow.tensor([1 + 2j, -0.5j])
    assert z.dtype is flow.complex64
    assert z.tolist() == [1 + 2j, -0.5j]
    assert z[0].item() == complex(z[0]) == 1 + 2j
    assert bool(z[1])
    assert z.numpy().dtype == np.complex64
    assert flow.from_numpy(z.numpy()).dtype is flow.complex64
    assert np.array_equal(flow.tensor(X).numpy(), X)


def test_parts_are_views():
    z = flow.tensor([1 + 2j, 3 - 4j])
    z.imag[1] = 9
    z.real = 5
    assert z.tolist() == [5 + 2j, 5 + 9j]
    assert z.is_complex()
    assert not z.is_conj()
    assert z.resolve_conj() is z


def test_gradients_of_gradients():
    z = flow.tensor(V, requires_grad=True)
    r = flow.tensor(np.abs(W), requires_grad=True)
    for function in (lambda a, b: a * b + b**a, lambda a, b: a.sgn() * a.angle(), polar_and_norm):
        assert flow.autograd.gradcheck(function, (z, r))
        assert flow.autograd.gradgradcheck(function, (z, r))


def polar_and_norm(a, b):
    return flow.polar(b, b) @ a.conj(), a.norm(), a.cumprod(0).std()


def test_a_graph_is_what_eager_code_is():
    def step(a, b):
        y = ((a * b + 1j).exp() * 2.0) @ b.to(a.dtype)
        return y, y.real * 2 + y.imag, y.abs().sum(), flow.cat([y, b.to(a.dtype)])

    class Step(flow.nn.Graph):
        def build(self, a, b):
            return step(a, b)

    graph, a, b = Step(), flow.tensor(X), flow.tensor(V.real.copy())
    for _ in range(2):
        for ours, plain in zip(graph(a, b), step(a, b), strict=True):
            np.testing.assert_allclose(ours.numpy(), plain.numpy(), rtol=1e-12)


def test_changes_in_place_in_a_graph():
    def step(z, i):
        y = z * 2
        y.real.mul_(3)
        y.imag[0] = 1.0
        a = flow.index_add(y, 0, i, z[:3])
        a[1] = 2j
        a[i] = z[:3]
        b = flow.zeros(4, 5, dtype=flow.complex128)
        b[:2] = y[:2]
        b[2:] = a[:2]
        tail = flow.cat([a, flow.zeros(1, 5, dtype=flow.complex128)])
        return y, a, b, flow.view_as_real(a).sum(-1), tail, b.cumprod(0), b.mT.contiguous()

    class Step(flow.nn.Graph):
        def build(self, z, i):
            return step(z, i)

    graph, z, i = Step(), flow.tensor(X), flow.tensor(AT)
    for _ in range(2):
        for ours, plain in zip(graph(z, i), step(z, i), strict=True):
            np.testing.assert_allclose(ours.numpy(), plain.numpy(), rtol=1e-12)


def test_a_part_of_what_has_a_gradient_is_not_changed_in_place():
    z = flow.tensor(V, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="parts"):
        z.real.mul_(2)


def test_files(tmp_path):
    z = flow.tensor([[1 + 2j, 3]])
    flow.save({"z": z}, tmp_path / "z.safetensors")
    assert flow.load(tmp_path / "z.safetensors")["z"].tolist() == z.tolist()
    torch.save({"z": torch.tensor(V)}, tmp_path / "z.pt")
    assert flow.load(tmp_path / "z.pt")["z"].tolist() == V.tolist()
    wide = flow.tensor(X)
    held = {"z": wide, "again": wide, "n": np.array(V), "one": wide[0, 0], "none": wide[:0]}
    flow.save(held, tmp_path / "z.ckpt")
    back = flow.load(tmp_path / "z.ckpt")
    assert back["z"] is back["again"]
    for name, value in held.items():
        assert back[name].dtype == value.dtype
        assert tuple(back[name].shape) == tuple(value.shape)
        assert back[name].tolist() == value.tolist()


def test_a_damaged_file_of_pairs(tmp_path):
    path = tmp_path / "z.ckpt"
    flow.save({"z": flow.tensor(X), "x": flow.zeros(2)}, path)
    whole = path.read_bytes()
    for wrong in (b'[\\"x\\"]', b'[\\"y\\"]', b"[[1,2]]", b'{\\"z\\":1}'):
        old = b'[\\"z\\"]'
        assert whole.count(old) == 1
        size = int.from_bytes(whole[:8], "little") + len(wrong) - len(old)
        path.write_bytes(size.to_bytes(8, "little") + whole[8:].replace(old, wrong))
        with pytest.raises(ValueError, match="damaged"):
            flow.load(path)


@pytest.mark.parametrize("array", [X, V.astype("complex64"), np.array([1 + 2j, -3, 0]), V * 1e-6])
def test_printed_as_pytorch_prints(array):
    with flow.printoptions(linewidth=200):
        ours = repr(flow.tensor(array))
    torch.set_printoptions(linewidth=200)
    try:
        theirs = repr(torch.tensor(array))
    finally:
        torch.set_printoptions(profile="default")
    assert ours == theirs.replace("torch.", "")


def test_random_numbers():
    flow.manual_seed(3)
    z = flow.randn(20000, dtype=flow.complex128)
    assert abs(z.var().item() - 1) < 0.1  # 14 standard deviations
    assert abs(z.real.std().item() - 0.5**0.5) < 0.05
    u = flow.rand(100, dtype=flow.complex64)
    assert 0 <= u.real.min().item() <= u.imag.max().item() < 1
