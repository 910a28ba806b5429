"""Native calls: their results, the calls that they leave to the twin, and their safety."""

import copy
import functools
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import flowvm as flow
from flowvm.autograd import node_listeners
from flowvm.config import config
from flowvm.eager.interpreter import operators
from flowvm.eager.native import check, install
from flowvm.eager.native import objects as dying
from flowvm.eager.native.objects import native_class
from flowvm.eager.native.tables import Table, takes
from flowvm.eager.native.words import SITE
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentTypeError, AutogradError, ShapeError, VMError
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.registry import operator_of
from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import interrupt
from tools.bench import call as call_bench

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


def native(function):
    """A native call of the operator behind `function`."""
    return install.native_call(operator_of(function))


def named(name):
    """The operator of this name."""
    return next(op for op in list(operators) if op.name == name)


def writing():
    """A native call that adds its second operand to the first, in place."""
    return install.native_call(named("accumulate_"))


def warm(call, *args):
    """`call`, which is native from here on, and has seen such arguments."""
    call(*args)
    call(*args)
    return call


def counts(call):
    site = [call.words]
    numbered = call.references.references[0][1]
    if numbered is not None:
        site.append(numbered.words)
    return sum(w[SITE.HITS] for w in site), sum(w[SITE.MISSES] for w in site)


def hits(call, *args, **named):
    """Return a call's result, and True if it was native.

    Free storage ids, for which the twin cares, are provided.
    """
    if len(hot["free"]) < 4:
        hot["free"].append(hot["refill"]())
    before = counts(call)
    result = call(*args, **named)
    after = counts(call)
    assert sum(after) == sum(before) + 1
    return result, after[0] == before[0] + 1


def outcome(call, *args, **named):
    """The values that a call gives, or its error."""
    try:
        return str(call(*args, **named).numpy())
    except Exception as error:
        return type(error), str(error)


@pytest.fixture
def add():
    return warm(native(Tensor.__add__), flow.ones(8, 8), flow.ones(8, 8))


@pytest.fixture
def mul():
    return warm(native(Tensor.__mul__), flow.ones(8, 8), 2.0)


@pytest.fixture
def relu():
    return warm(native(Tensor.relu), flow.ones(8, 8))


@pytest.fixture
def matmul():
    return warm(native(Tensor.__matmul__), flow.ones(8, 8), flow.ones(8, 8))


def values(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- what they give -----------------------------------------------------------------------------


def test_native_calls_do_what_their_twins_do():
    assert install.tested() == ""


def test_the_check_sees_a_difference(monkeypatch):
    def wrong(op, within):
        twin = real(op, within)
        return lambda *args: twin(*reversed(args))

    real = check.call_function
    monkeypatch.setattr(check, "call_function", wrong)
    assert check.trouble(install._address()) != ""
    assert check.trouble_at_death(install._address()) != ""


def test_values_are_numpys(add, mul, relu, matmul):
    x, y = values(1, 8, 8), values(2, 8, 8)
    a, b = flow.tensor(x), flow.tensor(y)
    for call, args, expected in (
        (add, (a, b), x + y),
        (mul, (a, 2.5), x * np.float32(2.5)),
        (mul, (a, 3), x * 3),
        (relu, (a,), np.maximum(x, 0)),
        (matmul, (a, b), x.astype(np.float64) @ y),
    ):
        call(*args)
        result, native_call = hits(call, *args)
        assert native_call
        assert type(result) is Tensor
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_another_meta_is_another_entry(add):
    for shape in ((3,), (2, 5), (8, 8), ()):
        for dtype in (flow.float32, flow.int64):
            x = flow.ones(shape, dtype=dtype)
            hits(add, x, x)
            result, native_call = hits(add, x, x)
            assert native_call
            assert (result.shape, result.dtype) == (shape, dtype)
            np.testing.assert_array_equal(result.numpy(), np.full(shape, 2))


def test_entries_may_be_dropped_between_calls(add):
    x = flow.ones(4, 3)
    add(x, x)
    operator_of(Tensor.__add__).lru.forget()
    _, native_call = hits(add, x, x)
    assert not native_call
    result, native_call = hits(add, x, x)
    assert native_call
    np.testing.assert_array_equal(result.numpy(), np.full((4, 3), 2))


def test_views_and_parameters_are_operands(add):
    x = flow.arange(16).float().reshape(4, 4)
    for a, b in ((x[1], x[2]), (x.t(), x), (flow.nn.Parameter(x), x)):
        add(a, b)
        result, native_call = hits(add, a, b)
        assert native_call
        np.testing.assert_array_equal(result.numpy(), a.detach().numpy() + b.numpy())


@pytest.mark.parametrize("which", ["one", "both", "number", "output", "product"])
def test_gradients_are_the_twins(which):
    x, y = values(3, 4, 4), values(4, 4, 4)
    function, more = {
        "one": (Tensor.__add__, lambda: flow.tensor(y)),
        "both": (Tensor.__mul__, lambda: flow.tensor(y, requires_grad=True)),
        "number": (Tensor.__mul__, lambda: -1.5),
        "output": (Tensor.relu, None),
        "product": (Tensor.__matmul__, lambda: flow.tensor(y, requires_grad=True)),
    }[which]
    call, twin, gradients = native(function), operator_of(function).twin, []
    for variant in (twin, call, call):
        args = [flow.tensor(x, requires_grad=True)]
        args += [] if more is None else [more()]
        out = variant(*args)
        assert out.grad_fn.name() == twin(*args).grad_fn.name()
        out.backward(flow.tensor(values(5, 4, 4)))
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        gradients.append([leaf.grad.numpy() for leaf in leaves])
    for grads in gradients[1:]:
        for expected, actual in zip(gradients[0], grads, strict=True):
            np.testing.assert_array_equal(actual, expected)
    assert counts(call)[0] >= 1


def test_a_saved_tensor_that_is_changed_is_noticed(mul):
    x, y = flow.ones(8, 8, requires_grad=True), flow.ones(8, 8)
    mul(x, y)
    out, native_call = hits(mul, x, y)
    assert native_call
    y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.backward(flow.ones(8, 8))


def test_a_saved_output_is_no_second_owner(relu):
    x = flow.ones(8, 8, requires_grad=True)
    relu(x)
    out, native_call = hits(relu, x)
    assert native_call
    alias = out.grad_fn._saved[0]
    assert alias._storage is out._storage
    assert out._storage.id == out._ref == alias._ref
    del out
    gc.collect()
    np.testing.assert_array_equal(alias.numpy(), np.ones((8, 8)))


def test_no_grad_records_nothing(add):
    x = flow.ones(8, 8, requires_grad=True)
    add(x, x)
    with flow.no_grad():
        out, native_call = hits(add, x, x)
        assert native_call
        assert out._node is None
        with flow.enable_grad():
            assert hits(add, x, x)[0]._node is not None


def test_who_is_told_of_nodes_hears_of_all(add):
    x, nodes = flow.ones(8, 8, requires_grad=True), []
    add(x, x)
    node_listeners.tell(nodes.append, "test")
    try:
        out, native_call = hits(add, x, x)
    finally:
        node_listeners.forget("test")
    assert not native_call
    assert nodes == [out.grad_fn]
    assert hits(add, x, x)[1]


def test_whose_line_it_is(add):
    x = flow.ones(8, 8)
    add(x, x)
    trace = flow.vm.trace(lambda: add(x, x))
    (line,) = [row for row in str(trace).splitlines() if " add " in row]
    assert os.path.basename(__file__) in line


# --- what they leave to the twin -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((None, None), {}),
        (("t", None), {}),
        (("t", "x"), {}),
        (("t", []), {}),
        (("t", object()), {}),
        (("t", "t", "t"), {}),
        (("t",), {"y": 1}),
        (("t", "t"), {"y": 1}),
        (("t", "t"), {"z": 1}),
        (("t", 1 << 80), {}),
        (("t", 1j), {}),
    ],
)
def test_wrong_arguments_are_the_twins_to_refuse(mul, args, named):
    t = flow.ones(8, 8)
    args = [t if a == "t" else a for a in args]
    twin = operator_of(Tensor.__mul__).twin
    for _ in range(3):
        assert outcome(mul, *args, **named) == outcome(twin, *args, **named)


def test_keywords_are_the_twins(add):
    x = flow.ones(8, 8)
    result, native_call = hits(add, x, other=x)
    assert not native_call
    np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))


def test_a_subclass_is_the_twins(add):
    class Mine(Tensor):
        pass

    x = flow.ones(8, 8)
    mine = alias(x, x._meta, 0, Mine)
    result, native_call = hits(add, mine, x)
    assert not native_call
    np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))


@pytest.mark.parametrize("missing", ["all", "_meta", "_ref", "_node", "_storage"])
def test_half_made_tensors_are_the_twins(add, missing):
    x, half = flow.ones(8, 8), object.__new__(Tensor)
    keep = x + 1
    if missing != "all":
        half._meta, half._ref, half._node, half._storage = x._meta, keep._ref, None, keep.storage()
        delattr(half, missing)
    twin = operator_of(Tensor.__add__).twin
    for args in ((half, x), (x, half)):
        assert outcome(add, *args) == outcome(twin, *args)
    assert hits(add, x, x)[1]


@pytest.mark.parametrize("ref", [1 << 70, "text", 2.5, None])
def test_operand_words_that_are_none_are_the_twins(add, ref):
    x, odd = flow.ones(8, 8), object.__new__(Tensor)
    odd._meta, odd._node, odd._storage = x._meta, None, x.storage()
    odd._ref = ref
    with pytest.raises((flow.errors.FlowError, TypeError)):
        add(odd, x)
    np.testing.assert_array_equal(add(x, x).numpy(), np.full((8, 8), 2))
    del odd


def test_a_pending_meta_is_waited_for(add):
    values = flow.masked_select(flow.arange(6).float(), flow.arange(6) > 2)
    assert not hits(add, values, values)[1]
    result, native_call = hits(add, values, values)
    assert native_call
    np.testing.assert_array_equal(result.numpy(), [6, 8, 10])


class Odd:
    """A number that runs a function when it is asked for its value."""

    def __init__(self, does):
        self.does = does

    def __index__(self):
        return self.does()

    def __float__(self):
        return float(self.does())


def test_numbers_that_raise_or_issue_are_the_twins():
    mul_number = install.native_call(operator_of(Tensor.__mul__).numbered())
    x = flow.ones(8, 8)
    warm(mul_number, x, float, 2.0)

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mul_number(x, float, Odd(fails))
    result, native_call = hits(mul_number, x, float, Odd(lambda: int((x + x).sum().item())))
    assert not native_call
    np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 128))
    for number in (np.float32(3), np.int64(3), flow.tensor(3)):
        result, native_call = hits(mul_number, x, float, number)
        assert not native_call
        np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 3))
    result, native_call = hits(mul_number, x, float, True)
    assert native_call
    np.testing.assert_array_equal(result.numpy(), np.ones((8, 8)))


def test_attributes_that_cannot_be_keys():
    class Key:
        def __hash__(self):
            raise KeyboardInterrupt

    number = install.native_call(operator_of(Tensor.__mul__).numbered())
    x = flow.ones(8, 8)
    warm(number, x, float, 2.0)
    with pytest.raises(KeyboardInterrupt):
        number(x, Key(), 2.0)
    with pytest.raises((TypeError, AttributeError)):
        number(x, [], 2.0)
    assert hits(number, x, float, 2.0)[1]


def test_a_capture_and_autocast_are_the_twins(add, matmul):
    class Step(flow.nn.Graph):
        def build(self, x):
            return add(x, x)

    x = flow.ones(8, 8)
    step = Step()
    np.testing.assert_array_equal(step(x).numpy(), np.full((8, 8), 2))
    np.testing.assert_array_equal(step(x).numpy(), np.full((8, 8), 2))
    matmul(x, x)
    with flow.autocast("cpu", dtype=flow.bfloat16):
        result, native_call = hits(matmul, x, x)
        assert not native_call
        assert result.dtype is flow.bfloat16
        assert hits(add, x, x)[1]  # it is not converted
    assert hits(matmul, x, x)[1]


def test_another_stream_is_the_twins(add):
    x = flow.ones(8, 8)
    with flow.stream(flow.Stream("beside")):
        result, native_call = hits(add, x, x)
    assert not native_call
    np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))


def test_errors_have_the_users_frames_alone(add):
    with pytest.raises(ShapeError) as caught:
        add(flow.ones(3), flow.ones(4))
    tb, names = caught.value.__traceback__, []
    while tb is not None:
        names.append(tb.tb_frame.f_code.co_name)
        tb = tb.tb_next
    assert names == ["test_errors_have_the_users_frames_alone"]


# --- promises -----------------------------------------------------------------------------------


def test_references_are_neither_lost_nor_kept(add, mul, relu):
    x, y = flow.ones(8, 8), flow.ones(8, 8, requires_grad=True)
    number, filled = 2.5, 3
    watched = [x, y, x._meta, number, flow.Tensor, float, hot["counter"], y._node]

    def many():
        for _ in range(3000):
            add(x, x)
            add(x, y)
            mul(y, number)
            mul(x, filled)
            relu(y)
            mul(y, y)
        with pytest.raises(ArgumentTypeError):
            add(x, [])
        flow.vm.sync()

    many()
    gc.collect()
    before = [getrefcount(value) for value in watched]
    many()
    gc.collect()
    after = [getrefcount(value) for value in watched]
    for value, b, a in zip(watched, before, after, strict=True):
        assert abs(a - b) < 100, value  # classes are everybody's


def test_outputs_die_and_their_memory_comes_back(add):
    x = flow.ones(64, 64)
    add(x, x)
    flow.vm.sync()
    before = flow.vm.stats()["live_bytes"]
    outs = [add(x, x) for _ in range(500)]
    gone = [weakref.ref(out) for out in outs]
    del outs
    flow.vm.sync()
    assert not any(ref() for ref in gone)
    assert flow.vm.stats()["live_bytes"] <= before + 64 * 64 * 4


def test_what_dies_is_what_the_twin_lets_go():
    """`Tensor.__del__` runs as compiled code; the twin runs wrong calls of it."""
    call = dying.new_call(Tensor.__del__, None)
    site = Table(SITE, None, SHARED=install._shared().address, TWIN=call.twin)
    dying.activate(call, site.words, install._address(install.death), site)
    hot["refill"]()
    x = flow.ones(2)
    view, half = x[0], object.__new__(Tensor)
    dead = hot["dead"]
    dead_before = len(dead)
    for value in (view, half, x):  # views have made the storage the owner
        assert call(value) is None
    assert len(dead) == dead_before
    y = object.__new__(Tensor)
    y._storage, y._ref = None, hot["pop"]()
    assert call(y) is None
    assert dead.pop() == y._ref
    for wrong in ((), (5,), (x, x)):
        try:
            expected = Tensor.__del__(*wrong)
        except TypeError:
            with pytest.raises(TypeError):
                call(*wrong)
        else:
            assert call(*wrong) is expected is None


def test_free_ids_that_run_out_are_the_twins_to_find(add):
    x = flow.ones(8, 8)
    for _ in range(3):
        hot["free"].clear()
        before = counts(add)
        result = add(x, x)
        assert counts(add) == (before[0], before[1] + 1)
        assert hits(add, x, x)[1]
        np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))


def test_every_number_has_a_record(add, mul):
    x = flow.ones(8, 8)
    flow.vm.sync()
    issued = flow.vm.stats()["issued"]
    for _ in range(5000):
        x = add(mul(x, 0.5), x)
        x = mul(x, 0.5)
    flow.vm.sync()
    assert flow.vm.stats()["issued"] >= issued + 15000
    assert np.isfinite(x.numpy()).all()


def test_several_threads_issue(add, mul):
    failures, results = [], []

    def work(k):
        try:
            x = flow.full((8, 8), float(k))
            y = x
            for _ in range(2000):
                y = add(y, x)
                y = mul(y, 1.0)
            results.append((k, y.numpy()))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for k, array in results:
        np.testing.assert_array_equal(array, np.full((8, 8), 2001.0 * k))


def test_interrupts_leave_no_hole(add):
    """Ctrl-C comes during calls; instructions issued afterwards are done."""
    x = flow.ones(8, 8)
    add(x, x)

    def until_stopped(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)  # on a busy machine it may come at once
        while True:
            add(x, x)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(40):
            with pytest.raises(KeyboardInterrupt):
                until_stopped(0.001 + 0.00005 * k)
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(add(x, x).numpy(), np.full((8, 8), 2))
    flow.vm.sync()


def test_the_sequential_engine_runs_what_is_issued(add):
    x = flow.ones(8, 8)
    with flow.vm.sequential():
        result, native_call = hits(add, x, x)
        assert native_call
        np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))


def test_a_finalizer_may_issue_within_a_call(add):
    x, results = flow.ones(8, 8), []

    class Issues:
        def __init__(self):
            self.me = self

        def __del__(self):
            results.append(add(x, x))

    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(1)
        for _ in range(50):
            Issues()
            add(x, x)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(results) == 50
    np.testing.assert_array_equal(results[-1].numpy(), np.full((8, 8), 2))


# --- objects -------------------------------------------------------------------------------------


def test_it_is_a_function_and_a_method(add):
    class Holds(Tensor):
        plus = add

    x = flow.ones(8, 8)
    assert Holds.plus is add
    bound = Holds.__dict__["plus"].__get__(x)
    np.testing.assert_array_equal(bound(x).numpy(), np.full((8, 8), 2))
    assert list(map(str, inspect.signature(add).parameters)) == ["input", "other"]
    assert (add.__name__, add.__qualname__) == ("add", "add")
    assert add.__code__ is operator_of(Tensor.__add__).twin.__code__
    assert copy.deepcopy(add) is copy.copy(add) is add
    assert "add" in repr(add)
    assert not hasattr(add, "no_such_name")


def test_a_half_made_native_call_is_an_error():
    half = native_class()()
    with pytest.raises(AttributeError):
        half(flow.ones(1))
    with pytest.raises(AttributeError):
        half.__name__  # noqa: B018


def test_operators_made_at_run_time_are_collected():
    op = elementwise("made_here", "x + y * y")
    call = install.native_call(op.operator)
    x = flow.ones(4)
    warm(call, x, x)
    np.testing.assert_array_equal(call(x, x).numpy(), np.full(4, 2))
    gone = weakref.ref(call)
    del call
    gc.collect()
    assert gone() is None


def test_what_is_written_is_counted():
    """The operand shares its storage then, and a change of a saved value is noticed."""
    x, w, g = flow.ones(8, 8), flow.ones(8, 8, requires_grad=True), flow.ones(8, 8)
    accumulate = warm(writing(), flow.ones(8, 8), g)
    y = w * x
    assert x._storage is None
    for turn in range(3):
        written, was_native = hits(accumulate, x, g)
        assert was_native
        assert written is x
        assert x._storage.version == turn + 1
    assert g._storage is None
    view = x[2:]
    written, was_native = hits(accumulate, x, g)
    assert was_native
    assert x._storage is view._storage
    assert x._storage.version == 4
    np.testing.assert_array_equal(view.numpy(), np.full((6, 8), 5))
    with pytest.raises(AutogradError):
        y.sum().backward()


def test_references_are_neither_lost_nor_kept_by_what_writes():
    x, g = flow.ones(64, 64), flow.ones(64, 64)
    accumulate = warm(writing(), x, g)
    values = [x, g, x._storage, x._meta]
    before = [getrefcount(value) for value in values]
    for _ in range(2000):
        accumulate(x, g)
    assert [getrefcount(value) for value in values] == before
    flow.vm.sync()
    live = flow.vm.stats()["live_bytes"]
    for _ in range(200):
        accumulate(flow.ones(64, 64), g)
    flow.vm.sync()
    assert flow.vm.stats()["live_bytes"] < live + 100 * 64 * 64 * 4


@pytest.fixture
def add_():
    """A native call in front of `Tensor.add_`."""
    function = getattr(Tensor.add_, "twin", Tensor.add_)
    elementwise_add = operator_of(Tensor.__add__).origin.form[0]
    over = functools.partial(elementwise_add.going_over, "tt")
    front = dying.new_call(function, functools.partial(install._begin_front, over))
    return warm(front, flow.ones(8, 8), flow.ones(8, 8))


def test_changes_in_place_are_native(add_):
    for other in (3.0, 7, np.full((8, 8), 2.0, np.float32), np.arange(8.0), None):
        x = flow.ones(8, 8)
        y = flow.tensor(other) if isinstance(other, np.ndarray) else x if other is None else other
        add_(x, y)
        changed, was_native = hits(add_, x, y)
        assert was_native
        assert changed is x
        assert x._storage.version == 2
        expected = np.full((8, 8), 4.0) if other is None else 1.0 + 2 * other + np.zeros((8, 8))
        np.testing.assert_array_equal(x.numpy(), expected)


def test_views_of_what_nothing_is_recorded_of_are_changed_natively(add_):
    x, g = flow.zeros(4, 4), flow.ones(4, 4)
    rows, part = x[1:3], x.view(-1)
    for left, right in ((x, g), (rows, g[:2]), (part, flow.ones(16))):
        add_(left, right)
        _, was_native = hits(add_, left, right)
        assert was_native
    np.testing.assert_array_equal(x.numpy(), [[4.0] * 4, [6.0] * 4, [6.0] * 4, [4.0] * 4])
    assert {t.version for t in (x, rows, part)} == {6}
    x.requires_grad_()
    for left in (x, rows):
        with pytest.raises(AutogradError):
            add_(left, g[: len(left)])


def test_changes_in_place_that_are_more_than_that_are_the_functions(add_):
    x, g = flow.ones(8, 8), flow.ones(8, 8)
    w = flow.ones(8, 8, requires_grad=True)
    for _ in range(2):
        with pytest.raises(AutogradError):
            add_(w, g)
        y = w * 2
        out, was_native = hits(add_, y, g)
        assert not was_native
        out.sum().backward()
        np.testing.assert_array_equal(w.grad.numpy(), np.full((8, 8), 2))
        w.grad = None
        rows = x[1:]
        before = x.numpy().copy()
        _, was_native = hits(add_, rows, x[:-1])  # what is read is what is written
        assert not was_native
        np.testing.assert_array_equal(rows.numpy(), before[1:] + before[:-1])
    with flow.no_grad():
        add_(w, g)
        _, was_native = hits(add_, w, g)
        assert was_native
    np.testing.assert_array_equal(w.detach().numpy(), np.full((8, 8), 3))
    with pytest.raises(flow.errors.DTypeError):
        add_(flow.arange(3), flow.ones(3))
    with pytest.raises(TypeError):
        add_(x)
    out, was_native = hits(add_, x, g, alpha=2)
    assert not was_native


@pytest.mark.parametrize("optimizer", [flow.optim.SGD, flow.optim.Adam])
def test_a_training_step_is_what_the_twins_make_of_it(optimizer):
    actual, expected = (
        subprocess.run(
            [sys.executable, "-c", TRAINING, optimizer.__name__],
            env={**os.environ, "FLOWVM_CALLS": calls},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("|")
        for calls in ("native", "python")
    )
    assert actual[0] == expected[0]
    assert actual[1].strip() == "{}", "these calls of a step were not native"


TRAINING = """
import sys
import flowvm as flow
from flowvm import nn
flow.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
options = {"momentum": 0.9} if sys.argv[1] == "SGD" else {}
optimizer = getattr(flow.optim, sys.argv[1])(model.parameters(), lr=0.01, **options)
x, y = flow.randn(8, 16), flow.randn(8, 4)
def step():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    flow.vm.sync()
    return loss
for _ in range(3):
    step()
from flowvm.vm.callers.hot import hot
hot["free"].extend(hot["refill"]() for _ in range(40))
before = flow.vm.stats()
loss = step()
left = {n: c - before.get(n, 0) for n, c in flow.vm.stats().items() if "misses_" in n}
print(loss.item().hex(), [float(p.sum()).hex() for p in model.parameters()], "|",
      {n: c for n, c in left.items() if c})
"""


@pytest.mark.parametrize("value", [0.25, 7, True, -(1 << 40)])
def test_what_is_made_of_no_tensor(value):
    meta = flow.zeros(3, 2, dtype=flow.float64)._meta
    call = warm(install.native_call(named("fill")), meta, value)
    filled, was_native = hits(call, meta, value)
    assert was_native
    assert filled._meta is meta
    np.testing.assert_array_equal(filled.numpy(), np.full((3, 2), float(value)))


def test_operators_of_several_outputs_are_native():
    parts = named("frexp")
    assert takes(parts)
    x = flow.tensor(values(3, 4, 4))
    call = warm(install.native_call(parts), x)
    (mantissa, exponent), was_native = hits(call, x)
    assert was_native
    for part, expected in zip((mantissa, exponent), np.frexp(x.numpy()), strict=True):
        np.testing.assert_array_equal(part.numpy(), expected)


def test_operators_that_natives_do_not_take_are_the_twins_and_counted():
    op = named("true_positions")
    assert op.signature.unsized
    assert not takes(op)
    call, x = install.native_call(op), flow.ones(4, dtype=flow.bool)
    before = install.counts()["native_misses"]
    for turn in range(3):
        call(x)
        assert counts(call) == (0, turn)
    assert install.counts()["native_misses"] == before + 2
    assert install.counts()["native_misses_true_positions"] >= 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("version_info", SimpleNamespace(major=3, minor=99), "CPython 3.11, 3.12, 3.13, .* 3.99"),
        ("implementation", SimpleNamespace(name="pypy"), "this is pypy"),
    ],
)
def test_an_interpreter_that_was_not_tested_is_refused(monkeypatch, name, value, says):
    call = native(Tensor.__add__)
    install.why_not.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(sys, name, value)
        for _ in range(2):
            with pytest.raises(VMError, match=says):
                call(flow.ones(2), flow.ones(2))
    install.why_not.cache_clear()
    assert (call(flow.ones(2), flow.ones(2)).numpy() == 2).all()


def test_several_threads_may_make_the_first_call():
    call = native(Tensor.__add__)
    a = flow.ones(8, 8)
    threads = [threading.Thread(target=lambda: call(a, a)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = call.words
    call(a, a)
    assert call.words is words
    assert call.begin is None


def test_each_step_of_a_call_can_be_timed():
    rows = call_bench.step_rows(rounds=1)
    assert [name for name, _ in rows] == [*(name for name, _ in call_bench.STEPS), "together"]
    assert rows[-1][1] > 0


@pytest.fixture
def starting(monkeypatch):
    """Set up a program's start in this process; yield the callable of `add`, and helpers' jobs."""
    fresh, jobs = install.Behind(), []
    monkeypatch.setattr(install, "behind", fresh)
    monkeypatch.setattr(install.helpers, "later", lambda job, work: jobs.append((job, work)))
    monkeypatch.setitem(config.__dict__, "calls", "auto")
    monkeypatch.setattr(install, "is_enabled", lambda: True)
    install.why_not.cache_clear()
    yield install.callable_of(operator_of(Tensor.__add__)), jobs
    install.why_not.cache_clear()


def test_a_programs_first_calls_are_the_twins(starting):
    add, jobs = starting
    x = flow.ones(8, 8)
    install.behind.calls = 0  # it took some, if nobody had made tensors before
    for _ in range(install.FIRST - 1):
        add(x, x)
    assert add.begin is not None
    assert install.why_not() == ""  # there is a note
    add(x, x)
    assert add.begin is None
    result, native_call = hits(add, x, x)
    assert native_call
    np.testing.assert_array_equal(result.numpy(), np.full((8, 8), 2))
    assert jobs == []


def test_nobody_waits_for_what_is_not_prepared(starting, monkeypatch):
    add, jobs = starting
    x = flow.ones(8, 8)
    with monkeypatch.context() as patched:
        patched.setattr(install, "noted", lambda: None)
        for _ in range(install.FIRST + 5):
            add(x, x)
        ((job, work),) = jobs
        assert add.begin is not None
    module, name = job.split(":")
    assert getattr(sys.modules[module], name) is install.prepare
    work()
    add(x, x)
    assert hits(add, x, x)[1]


def test_twins_go_on_where_the_test_has_failed(starting, monkeypatch):
    add, jobs = starting
    monkeypatch.setattr(install, "noted", lambda: "a slot is elsewhere")
    x = flow.ones(8, 8)
    for _ in range(install.FIRST + 5):
        np.testing.assert_array_equal(add(x, x).numpy(), np.full((8, 8), 2))
    assert add.begin is not None
    assert jobs == []
    assert install.why_not() == "a slot is elsewhere"


def test_a_note_is_this_flowvms_or_none(monkeypatch):
    name = install._note_name()
    for data, says in (
        (None, None),
        (b"", None),
        (b"\xff\xfe", None),
        (b"calls-other.txt ", None),
        (name.encode(), ""),
        (f"{name} it differs".encode(), "it differs"),
    ):
        monkeypatch.setattr(install.helpers, "cached_bytes", lambda key, data=data: data)
        assert install.noted() == says


PROGRAM = """
import numpy as np, flowvm as flow
a = flow.ones(8, 8)
native = type(flow.Tensor.__add__).__name__ == "NativeCall"
for _ in range(40):
    out = ((a + a) * 2.0).relu() @ a
assert ("native_hits" in flow.vm.stats()) == native
assert not native or flow.vm.stats()["native_hits"] >= 90
w = flow.nn.Linear(8, 3)
loss = w(a).sum(); loss.backward()
print(native, float(out.sum()), w.weight.grad.shape == w.weight.shape)
"""


@pytest.mark.parametrize("calls", ["auto", "native", "python"])
def test_the_setting_chooses(calls):
    env = {**os.environ, "FLOWVM_CALLS": calls}
    env.pop("FLOWVM_DEBUG_CALLS", None)
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == [str(calls != "python"), "2048.0", "True"], out.stderr
