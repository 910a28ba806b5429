"""Native backward: the gradients in `.grad`, and the work left to the engine's own loop."""

import gc
import sys
import threading
import traceback
import weakref

import numpy as np
import pytest

import flowvm as flow
import flowvm.nn.functional as F
from flowvm.autograd import Function, engine
from flowvm.eager.native import install
from flowvm.errors import AutogradError
from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.lines import Backward, apart
from flowvm.vm.machine.words import RING

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def chain(x, w):
    return (x @ w).relu().sum()


def diamond(x, w):
    y = x @ w
    return (y.sin() + y.cos() * y).sum()


def broadcast(x, w):
    return (x[0] * w + w[1:2] - w.mean()).pow(2).mean()


def several(x, w):
    values, _ = (x @ w).sort(1)
    return sum(part.sum() * k for k, part in enumerate(values.unbind(0), 1))


def custom(x, w):
    return (Double.apply(x @ w) * w).sum()


def hooked(x, w):
    y = x @ w
    y.register_hook(lambda g: g * 3)
    return (y * y).sum()


def twice(x, w):
    return (x * x * w).sum() + (w.t() @ w).exp().mean()


def model(x, w):
    return F.cross_entropy(F.layer_norm(x @ w, (4,)), flow.tensor([0, 3, 1, 2]))


def through_views(x, w):
    y = (x @ w).view(2, 8).t()[1:5].reshape(-1)
    return (y * y.flip(0)).sum()


def in_place(x, w):
    y = x * w
    y[1] *= 3
    y.add_(w)
    return (y * y).sum()


GRAPHS = [chain, diamond, broadcast, several, custom, hooked, twice, model, through_views, in_place]


def leaves():
    rng = np.random.default_rng(3)
    return [flow.tensor(rng.standard_normal((4, 4)), requires_grad=True) for _ in range(2)]


def gradients(graph, turns=1, **how):
    tensors = leaves()
    for _ in range(turns):
        graph(*tensors).backward(**how)
    return [None if t.grad is None else t.grad.numpy().copy() for t in tensors]


@pytest.fixture
def by_python(monkeypatch):
    """The engine's own loop, in a with statement."""

    class Apart:
        def __enter__(self):
            monkeypatch.setattr(flow.Tensor, "backward", flow.Tensor.backward.twin)
            monkeypatch.setattr(engine, "_run_usual", lambda *args: None)
            monkeypatch.setattr(engine, "_gradients", lambda node, g: node.operator.grad(node, g))

        def __exit__(self, *error):
            monkeypatch.undo()

    return Apart


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_are_those_of_the_engines_loop(graph, turns, by_python):
    results = [gradients(graph, turns) for _ in range(4)]
    with by_python():
        expected = gradients(graph, turns)
    for each in results:
        for values, right in zip(each, expected, strict=True):
            np.testing.assert_array_equal(values, right)


@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_of_gradients(graph, by_python):
    def second():
        tensors = leaves()
        first = flow.autograd.grad(graph(*tensors), tensors, create_graph=True)
        sum((g * g).sum() for g in first).backward()
        return [t.grad.numpy() for t in tensors]

    results = [second() for _ in range(3)]
    with by_python():
        expected = second()
    for each in results:
        for values, right in zip(each, expected, strict=True):
            np.testing.assert_array_equal(values, right)


def test_what_was_saved_is_freed_or_kept():
    for _ in range(4):
        x, w = leaves()
        y = chain(x, w)
        y.backward(retain_graph=True)
        once = x.grad.numpy().copy()
        y.backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * once)
        with pytest.raises(AutogradError, match="second time"):
            y.backward()


def test_what_was_changed_since_is_an_error_with_its_note():
    for _ in range(4):
        x, w = leaves()
        y = x * 1
        z = (y * w).sum()
        with flow.no_grad():
            y.detach().add_(1)
        with pytest.raises(AutogradError, match="changed in place") as error:
            z.backward()
        assert any("raised by the gradient of mul" in note for note in error.value.__notes__)


def test_a_gradient_that_others_hold_is_not_taken():
    for _ in range(4):
        x, g = flow.ones(3, requires_grad=True), flow.ones(3)
        (x + 0.0).backward(g)
        x.grad.add_(1)
        assert g.tolist() == [1, 1, 1]
        a, b = (flow.ones(3, requires_grad=True) for _ in range(2))
        (a + b).sum().backward()
        a.grad.add_(1)
        assert b.grad.tolist() == [1, 1, 1]


def test_hooks_of_leaves_are_called():
    calls = []
    for _ in range(4):
        x, w = leaves()
        x.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda t: calls.append(t.grad is not None))
        chain(x, w).backward()
        once = x.grad.numpy()
    assert calls == [True] * 4
    np.testing.assert_allclose(once, 2 * gradients(chain)[0])


def test_a_leaf_that_is_gone_gets_nothing():
    for _ in range(4):
        x, w = leaves()
        y, known = chain(x, w), weakref.ref(x)
        del x
        gc.collect()
        y.backward()
        assert known() is None
        assert w.grad is not None


def test_references_are_neither_lost_nor_kept():
    x, w = leaves()
    counts = []
    for _ in range(4):
        for _ in range(40):
            x.grad = w.grad = None
            model(x, w).backward()
        flow.vm.sync()
        gc.collect()
        parts = [x, w, x._node, w._node, x._meta, x.grad, w.grad, flow.Tensor]
        counts.append([getrefcount(part) for part in parts])
    assert counts[1] == counts[2] == counts[3]


def test_many_steps_are_native_and_fed_no_misses():
    x, w = leaves()
    for _ in range(4):
        x.grad = w.grad = None
        chain(x, w).backward()
    if not install.is_enabled():
        pytest.skip("calls are Python's here")
    install.settle()
    for _ in range(4):
        x.grad = w.grad = None
        chain(x, w).backward()
    before = flow.vm.stats()
    x.grad = w.grad = None
    chain(x, w).backward()
    after = flow.vm.stats()
    assert after["native_hits"] > before["native_hits"]


def issued_by(function):
    """The places of the instructions that a call of `function` issues: codes, and offsets."""
    flow.vm.sync()
    first = engine_now()
    function()
    return [(hot["codes"][k & RING.SLOT_MASK], hot["lasts"][k & RING.SLOT_MASK])
            for k in range(first, engine_now())]  # fmt: skip


def engine_now():
    return int(repr(hot["counter"])[6:-1])


def test_what_backward_issues_is_the_users_line_and_the_forward_calls():
    x, w = leaves()
    for _ in range(3):
        chain(x, w).backward()
    y = chain(x, w)
    seqs = {y._node.seq, y._node.edges[0].seq, y._node.edges[0].edges[0].seq}
    x.grad = w.grad = None
    places = [place for place in issued_by(lambda: y.backward()) if place[0] is not None]
    y = chain(x, w)
    x.grad = w.grad = None
    twin = [p for p in issued_by(lambda: flow.Tensor.backward.twin(y)) if p[0] is not None]
    assert len(places) == len(twin)
    for (backward, origin), (code, _) in zip(places, twin, strict=True):
        assert type(backward) is type(code) is Backward
        assert backward.code.co_name == "<lambda>"
        assert origin in seqs or apart(backward, origin)[2] < -1


def test_regions_end_with_backward_whatever_came():
    def broken(g):
        raise ZeroDivisionError

    def at_rest():
        return flow.is_grad_enabled() and not (hot["unrecorded"] or hot["pinned"])

    for turn in range(5):
        x, w = leaves()
        y = x * w
        y.register_hook(broken)
        assert at_rest()
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        assert at_rest()
        z = chain(x, w)
        z.backward()
        with pytest.raises(AutogradError, match="second time") as error:
            z.backward()
        assert at_rest()
        frames = traceback.extract_tb(error.value.__traceback__)
        assert [frame.name for frame in frames] == [
            "test_regions_end_with_backward_whatever_came"
        ], turn
        with flow.no_grad():
            chain(*leaves()) * 2
        assert at_rest()


def test_backward_in_backward_and_what_it_switches():
    calls = []

    def hook(g):
        a, b = leaves()
        assert not flow.is_grad_enabled()
        with flow.enable_grad():
            chain(a, b).backward()
        calls.append(float(a.grad.sum()))
        assert not flow.is_grad_enabled()

    for _ in range(4):
        x, w = leaves()
        y = x @ w
        y.register_hook(hook)
        y.relu().sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), gradients(chain)[0])
    assert len(set(calls)) == 1


def test_several_threads_go_back_at_once():
    expected, failed = gradients(model), []

    def run():
        for _ in range(30):
            arrays = gradients(model)
            if not all((a == b).all() for a, b in zip(arrays, expected, strict=True)):
                failed.append(arrays)
            if not flow.is_grad_enabled():
                failed.append("not recording")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_calls_of_backward_that_are_none():
    x = flow.ones(2, requires_grad=True)
    for wrong in ((), (1,), (None,), (x, x, x, x, x, x, x)):
        with pytest.raises((TypeError, AttributeError, AutogradError)):
            flow.Tensor.backward(*wrong)
    for tensor in (flow.ones(1), object.__new__(flow.Tensor), x, x * 2):
        with pytest.raises((AutogradError, AttributeError)):
            tensor.backward()
    leaf = flow.ones((), requires_grad=True)
    leaf.backward()
    assert leaf.grad.item() == 1
    half = (leaf * 2).to(flow.float64)
    half.backward()
    assert leaf.grad.item() == 3


def test_ones_that_a_hook_has_written_are_made_anew():
    for _ in range(3):
        x = flow.ones(3, requires_grad=True)
        y = (x * 2).sum()
        y.register_hook(lambda g: g.mul_(5))
        y.backward()
        z = flow.ones(3, requires_grad=True)
        (z * 2).sum().backward()
        assert z.grad.tolist() == [2, 2, 2]


def test_gradients_of_several_outputs_meet():
    def pieces(x, w):
        a, b = (x @ w).chunk(2, 1)
        c = flow.cat([a * 2, b, a], 1)
        return (c * c).sum() + flow.stack(w.unbind(), 1)[0].sum()

    results = [gradients(pieces, 2) for _ in range(3)]
    with_python = flow.Tensor.backward.twin
    tensors = leaves()
    for _ in range(2):
        with_python(pieces(*tensors))
    for each in results:
        for values, t in zip(each, tensors, strict=True):
            np.testing.assert_array_equal(values, t.grad.numpy())
