"""flow.utils.checkpoint, against code without it, and against PyTorch's where both have a rule."""

from __future__ import annotations

import gc
import traceback
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.nodes import Node
from flowvm.errors import ArgumentError, AutogradError
from flowvm.utils.checkpoint import checkpoint, checkpoint_sequential
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL

nn, F = flow.nn, flow.nn.functional


def leaf(*shape):
    return flow.randn(*shape).requires_grad_()


def gradients(function, *leaves):
    """The gradients of the sum of what `function` gives; `.grad` is left empty."""
    result = function()
    (result if isinstance(result, flow.Tensor) else sum(t.sum() for t in result)).sum().backward()
    gradients = [t.grad.numpy() for t in leaves]
    for t in leaves:
        t.grad = None
    return gradients


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_are_those_without_it_bit_for_bit():
    x, a, b = leaf(4, 8), leaf(8, 8), leaf(8)

    def function(t):
        return F.gelu(t @ a + b) @ a

    same(
        gradients(lambda: checkpoint(function, x), x, a, b), gradients(lambda: function(x), x, a, b)
    )


def test_forward_keeps_no_activation():
    """Eight layers, forward only: what lives is one activation's memory, not twenty."""
    x = leaf(256, 256)

    def function(t):
        for _ in range(8):
            t = (t * 1.5).sin().exp()
        return t

    def held_bytes(run) -> int:
        gc.collect()
        flow.vm.sync()
        before = int(engine.words[CTL.LIVE_BYTES])
        out = run()
        flow.vm.sync()
        after = int(engine.words[CTL.LIVE_BYTES])
        out.sum().backward()
        x.grad = None
        return after - before

    with flow.vm.sequential():
        one = 4 * 256 * 256
        assert held_bytes(lambda: function(x)) >= 16 * one
        assert held_bytes(lambda: checkpoint(function, x)) <= 2 * one


def test_memory_is_free_while_forward_runs_and_again_while_backward_does():
    """The peak of a chain of checkpoints is that of one of them."""
    x = leaf(256, 256)

    def part(t):
        for _ in range(4):
            t = (t * 1.5).sin()
        return t

    def peak(wrap) -> int:
        gc.collect()
        flow.vm.sync()
        live = engine.words[CTL.PEAK_BYTES] = int(engine.words[CTL.LIVE_BYTES])
        t = x
        for _ in range(8):
            t = wrap(part, t)
        t.sum().backward()
        del t
        flow.vm.sync()
        x.grad = None
        return int(engine.words[CTL.PEAK_BYTES]) - live

    with flow.vm.sequential():
        plain = peak(lambda f, t: f(t))
        assert peak(checkpoint) < 0.6 * plain


def test_what_the_function_returns_comes_back_as_it_is():
    x = leaf(3)
    pair = checkpoint(lambda t: {"a": [t * 2, None], "b": (t.exp(), "text", 3)}, x)
    assert pair["a"][1] is None
    assert pair["b"][1:] == ("text", 3)
    (pair["a"][0] + pair["b"][0]).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 + np.exp(x.detach().numpy()), rtol=1e-6)


def test_one_of_several_outputs():
    x = leaf(5)
    same(
        gradients(lambda: checkpoint(lambda t: (t.sin(), t.exp()), x)[1], x),
        gradients(lambda: x.exp(), x),
    )


def test_keyword_arguments_and_tensors_in_them():
    x, y = leaf(3), leaf(3)

    def function(t, *, scale, other):
        return (t * other["y"]).exp() * scale

    same(
        gradients(lambda: checkpoint(function, x, scale=3.0, other={"y": y}), x, y),
        gradients(lambda: function(x, scale=3.0, other={"y": y}), x, y),
    )


def test_tensors_that_the_function_closes_over_keep_their_place_in_the_graph():
    """h is no leaf and is used outside too: its node runs once, with both gradients."""
    x, a = leaf(4), leaf(4)

    def run(wrap):
        h = x * x
        h.retain_grad()
        out = wrap(lambda t: (t * h).exp(), a) + h.sin()
        out.sum().backward()
        results = [x.grad.numpy(), a.grad.numpy(), h.grad.numpy()]
        x.grad = a.grad = None
        return results

    same(run(checkpoint), run(lambda f, t: f(t)))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_inside_one_another(depth):
    x, a = leaf(6), leaf(6)

    def function(t, level=depth):
        if not level:
            return (t * a).sin()
        inner = checkpoint(lambda u: function(u, level - 1) * u, t)
        return checkpoint(lambda u: (function(u, level - 1) + u).exp().tanh(), inner)

    def plain(t, level=depth):
        if not level:
            return (t * a).sin()
        inner = plain(t, level - 1) * t
        return (plain(inner, level - 1) + inner).exp().tanh()

    same(gradients(lambda: function(x), x, a), gradients(lambda: plain(x), x, a))


def test_nested_calls_are_made_as_often_as_pytorch_makes_them():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.utils.checkpoint")

    def run(lib, check):
        calls = {"outer": 0, "inner": 0}
        x = lib.ones(3, requires_grad=True)

        def inner(t):
            calls["inner"] += 1
            return t.sin().exp()

        def outer(t):
            calls["outer"] += 1
            return check(inner, t * 2).tanh()

        check(outer, x).sum().backward()
        return calls

    theirs = run(torch, lambda f, *a: torch.utils.checkpoint.checkpoint(f, *a, use_reentrant=False))
    assert run(flow, checkpoint) == theirs


def test_random_numbers_are_those_of_forward_and_go_on_behind_it():
    x = leaf(1000)

    def run(wrap):
        flow.manual_seed(7)
        out = wrap(lambda t: F.dropout(t * 2, 0.5), x)
        between = flow.rand(3)
        out.sum().backward()
        grad, x.grad = x.grad.numpy(), None
        return out.detach().numpy(), grad, between.numpy(), flow.rand(3).numpy()

    same(run(checkpoint), run(lambda f, t: f(t)))


def test_without_preserve_rng_state_they_go_on():
    x = leaf(1000)
    out = checkpoint(lambda t: t * flow.rand(1000), x, preserve_rng_state=False)
    out.sum().backward()
    assert not np.array_equal(x.grad.numpy() * x.detach().numpy(), out.detach().numpy())


def test_in_place_operations_views_and_custom_functions():
    class Cube(flow.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t * t

        @staticmethod
        def backward(ctx, g):
            (t,) = ctx.saved_tensors
            return 3 * t * t * g

    x = leaf(4, 6)

    def function(t):
        y = t * 2
        y[:, 2:4].mul_(t[:, :2])
        y = Cube.apply(y).relu_()
        first, second = (y * 3).split(3, 1)
        return first * second.exp_()

    same(gradients(lambda: checkpoint(function, x), x), gradients(lambda: function(x), x))


def test_a_second_derivative_and_a_graph_that_is_kept():
    x, a = leaf(5), leaf(5)

    def run(wrap):
        y = wrap(lambda t: (t * a).sin() * t, x).sum()
        (first,) = flow.autograd.grad(y, x, create_graph=True)
        (again,) = flow.autograd.grad(y, x, retain_graph=True)
        second = flow.autograd.grad((first * first).sum(), [x, a])
        return [t.detach().numpy() for t in (first, again, *second)]

    same(run(checkpoint), run(lambda f, t: f(t)))


def test_going_backward_twice_is_the_error_it_always_is():
    x = leaf(3)
    y = checkpoint(lambda t: t.exp(), x).sum()
    y.backward()
    with pytest.raises(AutogradError, match="second time"):
        y.backward()


def test_a_gradient_inside_the_function():
    x = leaf(4)

    def function(t):
        y = (t * t).sin()
        (g,) = flow.autograd.grad(y.sum(), t, create_graph=True)
        return y + g * g

    def run(wrap):
        z = x * 1.5
        return gradients(lambda: wrap(function, z), x)

    same(run(checkpoint), run(lambda f, t: f(t)))


def test_autocast_is_that_of_forward():
    """Backward is outside of the region.  Each call converts `a` for itself, so the gradients of
    its uses are added in float32, and without checkpoints in float16.
    """
    x, a = leaf(16, 16), leaf(16, 16)

    def function(t):
        return flow.exp((t @ a) @ a * 0.01)

    def run(wrap):
        with flow.autocast("cpu", dtype=flow.float16):
            before = x @ a
            out = wrap(function, before) + wrap(function, x)
        assert out.dtype is flow.float32
        assert before.dtype is flow.float16
        return gradients(lambda: out, x, a)

    for ours, plain in zip(run(checkpoint), run(lambda f, t: f(t)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-3, atol=1e-3 * np.abs(plain).max())


def test_a_module_with_batch_norm_counts_twice_as_in_pytorch():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.utils.checkpoint")

    def run(lib, check):
        module = lib.nn.Sequential(lib.nn.BatchNorm1d(3), lib.nn.ReLU())
        x = lib.ones(4, 3, requires_grad=True)
        check(module, x).sum().backward()
        return module[0].num_batches_tracked.item()

    theirs = run(torch, lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False))
    assert run(flow, checkpoint) == theirs == 2


def test_without_gradients_the_function_is_just_called():
    calls = []

    def function(t):
        calls.append(1)
        return t * 2

    with flow.no_grad():
        assert not checkpoint(function, leaf(3)).requires_grad
    assert not checkpoint(function, flow.ones(3)).requires_grad
    assert len(calls) == 2
    assert Node.__init__.__name__ == "__init__"


def test_contexts_of_the_first_and_the_second_time():
    calls = []

    @contextmanager
    def noting(what):
        calls.append(what)
        yield

    y = checkpoint(
        lambda t: t.exp(), leaf(3), context_fn=lambda: (noting("first"), noting("second"))
    )
    assert calls == ["first"]
    y.sum().backward()
    assert calls == ["first", "second"]


@pytest.mark.parametrize("threads", [4])
def test_threads_do_not_hear_of_each_other(threads):
    from tests.vm.live import Background

    def work(k):
        x = flow.full((8,), float(k)).requires_grad_()
        for _ in range(10):
            checkpoint(lambda t: (t * 0.1).sin().exp(), x).sum().backward()
        v = 0.1 * k
        np.testing.assert_allclose(
            x.grad.numpy(), 10 * 0.1 * np.cos(v) * np.exp(np.sin(v)), rtol=1e-5
        )

    jobs = [Background(lambda k=k: work(k)) for k in range(threads)]
    for job in jobs:
        job.result()


def test_nothing_is_kept_when_it_is_over():
    x = leaf(16)

    class Marker:
        pass

    marker = Marker()
    gone = weakref.ref(marker)
    y = checkpoint(lambda t, m=marker: t.exp().sin(), x).sum()
    del marker
    assert gone() is not None  # the function is needed again
    gc.disable()
    try:
        y.backward()
        del y
        assert gone() is None  # without a collector: there is no cycle
    finally:
        gc.enable()
    assert Node.__init__.__name__ == "__init__"


# --- errors -----------------------------------------------------------------------------------


def test_a_function_that_does_something_else_the_second_time():
    runs = []

    def more(t):
        runs.append(1)
        return t.exp().sin() if len(runs) == 1 else t.exp().sin().cos()

    def another(t):
        runs.append(1)
        return t.exp() if len(runs) == 1 else t.sin()

    for function, message in ((more, "2 operations.*3"), (another, "exp.*sin")):
        runs.clear()
        y = checkpoint(function, leaf(3)).sum()
        with pytest.raises(AutogradError, match=message) as caught:
            y.backward()
        assert function.__name__ in str(caught.value)


def test_other_shapes_the_second_time():
    sizes = iter([3, 2])
    x = leaf(3)
    y = checkpoint(lambda t: t[: next(sizes)].exp(), x)
    with pytest.raises(AutogradError, match="computed again"):
        y.sum().backward()


def test_determinism_check_none_compares_nothing_but_the_number():
    runs = []

    def function(t):
        runs.append(1)
        return t.exp() if len(runs) == 1 else t.tanh()

    x = leaf(3)
    checkpoint(function, x, determinism_check="none").sum().backward()  # wrong, and asked for
    assert x.grad is not None
    with pytest.raises(ArgumentError, match="determinism_check"):
        checkpoint(function, x, determinism_check="shape")


def test_an_error_of_the_second_time_shows_the_functions_line():
    runs = []

    def function(t):
        runs.append(1)
        if len(runs) == 2:
            raise KeyError("not there any more")  # this line
        return t.exp()

    y = checkpoint(function, leaf(3)).sum()
    with pytest.raises(KeyError) as caught:
        y.backward()
    assert "# this line" in "".join(traceback.format_exception(caught.value))
    x = leaf(3)
    checkpoint(lambda t: t.exp(), x).sum().backward()  # nothing was left behind
    assert x.grad is not None


def test_a_parameter_that_changed_since_forward():
    x, a = leaf(3), leaf(3)
    y = checkpoint(lambda t: (t * a).exp(), x).sum()
    with flow.no_grad():
        a.add_(1)
    with pytest.raises(AutogradError, match="changed in place"):
        y.backward()


def test_checkpoint_sequential():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(6, 6), nn.Tanh())))
    x, parameters = leaf(3, 6), list(model.parameters())
    plain = gradients(lambda: model(x), x, *parameters)
    for segments in (1, 2, 3, 8):
        run = gradients(lambda s=segments: checkpoint_sequential(model, s, x), x, *parameters)
        same(run, plain)
    with pytest.raises(ArgumentError, match="between 1 and 8"):
        checkpoint_sequential(model, 9, x)


def test_hooks_of_saved_tensors_inside_a_checkpoint():
    """Packed tensors are forgotten with the rest, and packed again when they are recomputed."""
    calls = []
    x = flow.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def pack(t):
        calls.append("pack")
        return t.clone()

    def unpack(t):
        calls.append("unpack")
        return t

    def cube(x):
        with flow.autograd.graph.saved_tensors_hooks(pack, unpack):
            return x * x * x

    for inside in (cube, lambda x: flow.utils.checkpoint.checkpoint(cube, x, use_reentrant=False)):
        calls.clear()
        x.grad = None
        flow.utils.checkpoint.checkpoint(inside, x, use_reentrant=False).sum().backward()
        assert x.grad.tolist() == [3.0, 12.0, 27.0]
        assert calls.count("unpack") >= 4


def test_hooks_of_some_saved_tensors_leave_the_others_to_the_hooks_around():
    weight, x = flow.ones(3, requires_grad=True), flow.tensor([1.0, 2.0, 3.0], requires_grad=True)
    outer, inner = [], []

    def remember(calls):
        return lambda t: calls.append(t) or t

    some = flow.autograd.graph.some_saved_tensors_hooks(
        lambda t: t.storage() is weight.storage(), remember(inner), lambda t: t
    )
    with flow.autograd.graph.saved_tensors_hooks(remember(outer), lambda t: t), some:
        y = (x * weight).exp()
    assert len(inner) == 2  # both that the product saved
    assert len(outer) == 1
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), np.exp(x.detach().numpy()))
