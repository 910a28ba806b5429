"""Gradients of leaves that the graph's optimizers do not step: in `.grad`, as eager code has them.

Each program runs eagerly and as a graph over the same data; after every call the `.grad` of every
leaf is compared, None or its values, and so is the identity of `.grad` where eager code keeps it.
"""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import CaptureError

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
FREE = flow.tensor([1.0, 2.0, -1.0], requires_grad=True)


class Program:
    """A model, a free leaf in a global and one in a closure, and the effect of one call on them."""

    def __init__(self, step):
        flow.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.closed = flow.full((3,), 0.5).requires_grad_()
        FREE.grad = None
        closed = self.closed
        self.call = lambda x: step(self.model, closed, x)

    def leaves(self):
        return [*self.model.parameters(), self.closed, FREE]


def loss_of(model, closed, x):
    return (model(x * FREE + closed) ** 2).mean()


def plain(model, closed, x):
    loss = loss_of(model, closed, x)
    loss.backward()
    return loss


def twice(model, closed, x):
    loss_of(model, closed, x).backward()
    loss = loss_of(model, closed, x + 1)
    loss.backward()
    return loss


def clipped(model, closed, x):
    loss = loss_of(model, closed, x)
    loss.backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), 0.1)
    return loss


def zeroed_first(model, closed, x):
    model.zero_grad()
    return plain(model, closed, x)


def zeroed_to_zeros(model, closed, x):
    model.zero_grad(set_to_none=False)
    return plain(model, closed, x)


def zeroed_last(model, closed, x):
    loss = plain(model, closed, x)
    model.zero_grad()
    return loss


def some_frozen(model, closed, x):
    return plain(model, closed.detach(), x)


def only_inputs(model, closed, x):
    loss = loss_of(model, closed, x)
    loss.backward(inputs=[FREE, model[0].weight])
    return loss


def by_grad(model, closed, x):
    loss = loss_of(model, closed, x)
    (g,) = flow.autograd.grad(loss, [FREE], create_graph=True)
    (g * g).sum().backward()
    return loss


STEPS = [
    plain, twice, clipped, zeroed_first, zeroed_to_zeros, zeroed_last, some_frozen, only_inputs,
    by_grad,
]  # fmt: skip


def none_before(leaves, call):
    for leaf in leaves:
        leaf.grad = None


def left_alone(leaves, call):
    pass


def every_second_call(leaves, call):
    if call % 2 == 0:
        none_before(leaves, call)


def zeros_before(leaves, call):
    for leaf in leaves:
        leaf.grad = flow.zeros_like(leaf)


BETWEEN = [none_before, left_alone, every_second_call, zeros_before]


def history_of(step, between, captured, wants_input_grad):
    """Loss, every leaf's .grad and the input's after each of five calls."""
    program = Program(step)
    call = flow.compile(program.call) if captured else program.call
    rng = np.random.default_rng(0)
    results = []
    for number in range(5):
        x = flow.tensor(rng.standard_normal((2, 3), np.float32), requires_grad=wants_input_grad)
        between(program.leaves(), number)
        held = [leaf.grad for leaf in program.leaves()]
        loss = call(x)
        grads = [leaf.grad for leaf in program.leaves()]
        identities = [a is b for a, b in zip(held, grads, strict=True)]
        values = [None if g is None else g.numpy().copy() for g in [*grads, x.grad]]
        results.append((loss.item(), values, identities))
    return results


@pytest.mark.parametrize("wants_input_grad", [False, True])
@pytest.mark.parametrize("between", BETWEEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_grads_end_where_eager_code_leaves_them(step, between, wants_input_grad):
    eager = history_of(step, between, False, wants_input_grad)
    graph = history_of(step, between, True, wants_input_grad)
    for call, (theirs, ours) in enumerate(zip(eager, graph, strict=True)):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, err_msg=f"call {call}")
        assert ours[2] == theirs[2], f"call {call}: which .grad is the tensor of before"
        for place, (a, b) in enumerate(zip(ours[1], theirs[1], strict=True)):
            where = f"call {call}, leaf {place}"
            assert (a is None) == (b is None), where
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=where)


def test_a_graph_and_an_optimizer_outside_it_train_as_eager_code_does():
    def trained(captured):
        flow.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = flow.optim.Adam(model.parameters(), lr=0.1)

        def step(x):
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        call = flow.compile(step) if captured else step
        for k in range(4):
            optimizer.zero_grad()
            call(flow.full((2, 3), float(k + 1)))
            optimizer.step()
        return model.weight.detach().numpy(), call

    weight, graph = trained(True)
    np.testing.assert_allclose(weight, trained(False)[0], rtol=1e-5)
    assert len(graph.plans) == 1


def test_memory_that_others_see_as_the_grad_is_written_in_place():
    w = flow.ones(3, requires_grad=True)
    w.grad = flow.zeros(3)
    flat = w.grad.view(3)

    @flow.compile
    def step(x):
        (w * x).sum().backward()

    for k in range(3):
        step(flow.full((3,), float(k)))
    assert flat.tolist() == [3, 3, 3]


def test_gradients_of_the_graphs_own_parameters_are_seen_nowhere():
    model, other = nn.Linear(2, 2), flow.ones(2, requires_grad=True)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x):
            loss = (self.model(x) * other).sum()
            loss.backward()
            return loss

    train, mark = Train(), flow.full((2, 2), 7.0)
    model.weight.grad = mark
    for _ in range(3):
        other.grad = None
        train(flow.ones(1, 2))
        assert model.weight.grad is mark
        assert mark.tolist() == [[7, 7], [7, 7]]
        assert model.bias.grad is None
        assert other.grad is not None
        assert other.grad.isfinite().all().item()


def test_a_gradient_does_not_stop_at_an_input_that_was_computed_outside():
    w = flow.ones(2, requires_grad=True)

    @flow.compile
    def step(x):
        x.sum().backward()

    with pytest.raises(CaptureError, match=r"input 0, which was computed outside.*detach\(\)"):
        step(w * 2)
    x = (w * 2).detach().requires_grad_()
    step(x)
    assert x.grad.tolist() == [1, 1]


def test_an_error_in_build_leaves_every_grad_as_it_was():
    w = flow.ones(2, requires_grad=True)
    before = w.grad = flow.full((2,), 3.0)

    @flow.compile
    def step(x):
        (w * x).sum().backward()
        raise KeyError("half way")

    with pytest.raises(KeyError):
        step(flow.ones(2))
    assert w.grad is before
    assert before.tolist() == [3, 3]


def test_what_a_capture_issues_is_counted_as_no_failure():
    x, before = flow.ones(3), flow.vm.stats()
    flow.vm.sync()
    graph = flow.compile(lambda x: (x * 2).exp().sum())
    graph(x).item()
    after = flow.vm.stats()
    assert (after["failed"], after["poisoned"]) == (before["failed"], before["poisoned"])
    known = len(flow.vm.errors())
    with pytest.raises(CaptureError):
        flow.compile(lambda x: float((x * 2).sum()))(x)
    assert len(flow.vm.errors()) == known + 1
