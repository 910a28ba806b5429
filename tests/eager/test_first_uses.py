"""First uses by two threads at once: an object made at its first use is made once.

Each is driven with all of the other thread's use at every boundary between two bytecodes of this
thread's (`tests.guards.boundaries.meet`).  Calls are made by Python functions, in which there are
such.
"""

import copy
import io
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.autograd import engine as backward
from flowvm.eager.autocast import _Kept
from flowvm.eager.tensor import Storage, base_of, new_tensor
from flowvm.nn.module_calls import Paths
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from tests.guards.boundaries import meet

VALUES = [7.0, 8.0]


@pytest.fixture(autouse=True)
def _python():
    """A thread on a stream of its own: native calls leave everything to Python's."""
    with flow.stream(flow.Stream("first uses")):
        assert hot["departed"]
        yield


def fresh():
    return flow.tensor(VALUES)


def used_again():
    """Memory that nobody owns becomes somebody else's."""
    return [flow.full((2,), -1.0) for _ in range(4)]


# --- storages -------------------------------------------------------------------------------------

SHARING = {
    "storage": lambda x: x.storage(),
    "detach": lambda x: x.detach(),
    "view": lambda x: x.view(2, 1),
    "slice": lambda x: x[1:],
    "transpose": lambda x: x.t(),
    "data": lambda x: x.data,
    "untyped": lambda x: x.untyped_storage(),
    "parameter": lambda x: nn.Parameter(x),
    "numpy": lambda x: x.numpy(),
    "memory": lambda x: np.asarray(memoryview(x.__array__())),
    "pointer": lambda x: x.data_ptr(),
    "copy": lambda x: copy.copy(x),
    "in place": lambda x: x.add_(0),
    "saved": lambda x: flow.save(x, io.BytesIO()),
}


@pytest.mark.parametrize("name", SHARING)
def test_one_storage(name):
    use = SHARING[name]

    def start():
        x = fresh()

        def run():
            return use(x)

        def check(a, b):
            storage = x.storage()
            for one in (a, b):
                if isinstance(one, Exception):
                    return repr(one)
                if isinstance(one, Storage) and one is not storage:
                    return "two storages"
                if isinstance(one, flow.Tensor) and one._storage is not storage:
                    return "a tensor on another storage"
            del a, b, one
            others = used_again()
            return "" if x.tolist() == VALUES and others else f"now {x.tolist()}"

        return run, lambda: x.detach(), check

    assert meet(start, most=None if name in ("storage", "detach", "data") else 60) > 10


def test_storage_of_a_subclass_with_attributes_of_its_own():
    names = []

    class Noted(flow.Tensor):
        def __setattr__(self, name, value):
            names.append(name)
            super().__setattr__(name, value)

    x = new_tensor(engine.storages.new(), fresh()._meta, None, Noted)
    del names[:]
    assert x.storage() is x.storage()
    assert x.extra() is x.extra()
    assert names == []


def test_facts():
    def start():
        x = fresh()

        def run():
            facts = x.extra()
            facts["first"] = 1
            return facts

        def other():
            x.extra()["second"] = 2

        return run, other, lambda a, b: "" if x.extra() is a and len(a) == 2 else "two dicts"

    assert meet(start) > 5


# --- views and gradients --------------------------------------------------------------------------


def test_views_that_their_base_knows():
    def start():
        base = fresh().requires_grad_() * 1.0

        def run():
            return base.view(2, 1)

        def check(a, b):
            if base_of(a) is not base or base_of(b) is not base:
                return "another base"
            base.mul_(3.0)
            names = a.grad_fn.name(), b.grad_fn.name()
            return "" if names == ("AsStridedBackward",) * 2 else f"not rebased: {names}"

        return run, lambda: base[:1], check

    assert meet(start, most=80) > 20


def test_views_while_those_that_are_gone_are_forgotten():
    def start():
        base = fresh().requires_grad_() * 1.0
        held = [base.view(2, 1) for _ in range(40)]
        del held[::2]
        keep = [v() for v in base._kin]

        def run():
            return [base.view(1, 2) for _ in range(32 - len(base._kin) % 32 + 1)]

        def check(a, b):
            base.mul_(3.0)
            views = [*a, *b, *held]
            lost = sum(v.grad_fn.name() != "AsStridedBackward" for v in views)
            return f"{lost} of {len(views)} views are lost" if lost and keep else ""

        return run, lambda: [base[:1] for _ in range(3)], check

    assert meet(start, most=60, seed=1) > 20


def test_leaves():
    def start():
        x = fresh()
        calls = []

        def run():
            x.requires_grad_().register_hook(calls.append)

        def check(a, b):
            (x * 2.0).sum().backward()
            return "" if len(calls) == 2 else f"{len(calls)} hooks of 2"

        return run, run, check

    assert meet(start) > 5


WAYS = {
    "store": lambda x, g: backward._store(x._node, g),
    "add": lambda x, g: backward.add_to_grad(x, g, False),
    "record": lambda x, g: backward.add_to_grad(x, g, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [None, 1.0])
def test_gradients_of_a_shared_leaf(way, before, seed):
    def start():
        x = fresh().requires_grad_()
        if before is not None:
            x.grad = flow.full((2,), before)

        def run():
            with flow.no_grad():
                WAYS[way](x, flow.full((2,), 2.0))

        def other():
            with flow.no_grad():
                WAYS["add" if way == "store" else way](x, flow.full((2,), 5.0))

        def check(a, b):
            expected = [7.0 + (before or 0.0)] * 2
            return "" if x.grad.tolist() == expected else f"{x.grad.tolist()}, {a}, {b}"

        return run, other, check

    assert meet(start, most=40, seed=seed) > 10


def test_backward_of_two_threads():
    def start():
        x = fresh().requires_grad_()
        x.register_post_accumulate_grad_hook(lambda x: None)
        mine, theirs = (x * 2.0).sum(), (x * 5.0).sum()

        def run():
            mine.backward()

        def check(a, b):
            return "" if x.grad.tolist() == [7.0, 7.0] else f"{x.grad.tolist()}, {a}, {b}"

        return run, lambda: theirs.backward(), check

    assert meet(start, most=150) > 50


def test_hooks_of_a_node():
    def start():
        y, calls = fresh().requires_grad_() * 2.0, []

        def run():
            y.register_hook(lambda g: calls.append(1))

        def check(a, b):
            y.sum().backward()
            return "" if calls == [1, 1] and y.retains_grad else f"{calls}, {y.retains_grad}"

        def other():
            y.register_hook(lambda g: calls.append(1))
            y.retain_grad()

        return run, other, check

    assert meet(start) > 10


def test_shapes_that_are_waited_for():
    def start():
        x = flow.tensor([0.0, 2.0, 3.0])
        indices = flow.nonzero(x)

        def run():
            return indices.shape

        def check(a, b):
            right = a == b == (2, 1) and indices._meta is flow.nonzero(x)._meta
            return "" if right else f"{a}, {b}"

        return run, lambda: indices.t().shape[::-1], check

    assert meet(start, most=60) > 5


# --- what is printed, copied and pickled ----------------------------------------------------------


@pytest.mark.parametrize("use", [repr, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_looking_at_one_tensor(use):
    def start():
        x = fresh().requires_grad_()

        def run():
            return use(x)

        def check(a, b):
            if isinstance(a, Exception) or isinstance(b, Exception):
                return f"{a!r}, {b!r}"
            same = a.tolist() == b.tolist() if isinstance(a, flow.Tensor) else a == b
            others = used_again()
            return "" if same and x.tolist() == VALUES and others else f"{a}, {b}, {x}"

        return run, run, check

    assert meet(start, most=60) > 20


# --- operators, modules, graphs -------------------------------------------------------------------


def test_variants_of_an_operator():
    operator = flow.elementwise("first_use", "x * y + 1", types="promote", doc="x y + 1.")

    def start():
        operator.variants.clear()
        operator.overs.clear()

        def run():
            return operator._variant("ts"), operator.going_over("tt")

        return run, run, lambda a, b: "" if a == b else "two operators"

    assert meet(start, most=60) > 20


def test_hooks_of_a_module():
    def start():
        module, calls = nn.Identity(), []

        def run():
            module.register_forward_hook(lambda *args: calls.append(1))

        def check(a, b):
            module(fresh())
            return "" if calls == [1, 1] else f"{len(calls)} hooks of 2"

        return run, run, check

    assert meet(start) > 5


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(3), nn.LazyBatchNorm1d])
def test_first_call_of_a_lazy_module(make):
    x = flow.ones(4, 2)

    def start():
        module = make()

        def run():
            return module(x)

        def check(a, b):
            if isinstance(a, Exception) or isinstance(b, Exception):
                return f"{a!r}, {b!r}"
            return "" if flow.allclose(a, b, atol=1e-6) else "it was initialized twice"

        return run, run, check

    assert meet(start, most=25, seed=2) > 20


def test_names_of_modules():
    def start():
        paths, mine, theirs = Paths(), nn.Linear(2, 2), nn.Linear(2, 2)

        def run():
            return paths.add(mine, None)

        def check(a, b):
            right = {a, b} == {"Linear", "Linear(2)"} and len(set(paths.numbers.values())) == 2
            return "" if right and paths.known else f"{a}, {b}"

        def other():
            return paths.add(theirs, None)

        return run, other, check

    assert meet(start, most=40) > 20


def test_state_of_an_optimizer():
    def start():
        p = nn.Parameter(fresh())
        optimizer = flow.optim.Adam([p])
        p.grad = flow.ones(2)

        def run():
            return [entry for _, _, entry in optimizer._with_state([p], {"amsgrad": False})]

        def check(a, b):
            one = len(a) == len(b) == 1 and a[0] is b[0] is optimizer.state[p]
            return "" if one else "two states"

        return run, run, check

    assert meet(start, most=60) > 10


def test_entry_of_a_launch():
    graph = flow.compile(lambda x: x * 2.0 + 1.0)
    with flow.no_grad():
        graph(fresh())
    (plan,) = graph.plans
    make = plan.launching.own["make_entry"]

    def start():
        make.__self__.number[0] = -1

        def run():
            return make()

        return run, run, lambda a, b: "" if a is b else "two entries"

    assert meet(start, most=60) > 20


def test_first_call_of_a_graph():
    def start():
        graph = flow.compile(lambda x: x * 2.0 + 1.0)

        def run():
            return graph(fresh())

        def check(a, b):
            if isinstance(a, Exception) or isinstance(b, Exception):
                return f"{a!r}, {b!r}"
            right = a.tolist() == b.tolist() == [15.0, 17.0]
            return "" if right and len(graph.plans) == 1 else f"{a}, {b}, {len(graph.plans)} plans"

        return run, run, check

    assert meet(start, most=12, seed=3) > 10


def test_graphs_of_a_method():
    class Model:
        @flow.compile
        def forward(self, x):
            return x * 2.0

    def start():
        model = Model()

        def run():
            return model.forward

        return run, run, lambda a, b: "" if a is b is model.forward else "two graphs"

    assert meet(start) > 5


def test_numbers_of_one_generator():
    def start():
        generator = flow.Generator().manual_seed(3)

        def run():
            return flow.rand(2, generator=generator).tolist()

        def check(a, b):
            again = flow.Generator().manual_seed(3)
            expected = [flow.rand(2, generator=again).tolist() for _ in range(2)]
            return "" if sorted([a, b]) == sorted(expected) else f"{a}, {b}"

        return run, run, check

    assert meet(start, most=60) > 10


def test_what_autocast_keeps():
    """Conversions of one capture are invisible to other captures and to eager code."""
    casts, capture = _Kept(), object()
    captured = casts.of(capture)
    eager = casts.of(None)
    captured["weight"] = "without a value"
    assert casts.of(None) is eager == {}
    assert casts.of(capture) == {}
