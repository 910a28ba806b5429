"""Traces: replayed calls give the Python function's result; some calls have none."""

import contextlib
import gc
import threading
from types import NoneType

import numpy as np
import pytest

import flowvm as flow
import flowvm.nn.functional as F
from flowvm import ops
from flowvm.autograd import engine as backward
from flowvm.eager.native import install, trace_cache
from flowvm.eager.native.objects import native_class
from flowvm.eager.native.words import LEARN, REFUSED, SITE
from flowvm.eager.tensor import Storage, Tensor, base_of
from flowvm.errors import AutogradError, FlowError
from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import hot

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


def steady(function):
    """`function` as a native call that follows traces, whatever the settings say."""
    known = trace_cache.TraceCache(function, trace_cache.FRONT)
    call = install.new_call(function, None)
    site = install.front_table(known.call, function, trace_cache.FRONT, known.lru.young, "test")
    install.activate(call, site.words, install._address(), site)
    return call


def plain(function):
    """The Python function behind a public one."""
    return function.twin if isinstance(function, native_class()) else function


def hits(call):
    return call.words[SITE.HITS]


def followed(call, *args, **named):
    """Return the result of the third call with such arguments, and True if it follows a trace."""
    if len(hot["free"]) < 8:
        hot["free"].extend(hot["refill"]() for _ in range(8))
    for _ in range(2):
        call(*args, **named)
    before = hits(call)
    return call(*args, **named), hits(call) == before + 1


def facts_of(x):
    """All that can be said of a result."""
    if isinstance(x, tuple):
        return type(x), [facts_of(v) for v in x]
    if not isinstance(x, Tensor):
        return x
    node = None if x._node is None or x._node.is_leaf else getattr(x._node, "node", x._node)
    facts = None
    if node is not None:
        parts = [node.metas, node.attrs, node.out_metas, node.versions, node.seq >= 0]
        facts = [type(x._node), node.name(), len(node.saved), [type(e) for e in node.edges], parts]
    return x.numpy().tolist(), x._meta, x.storage_offset(), facts, x._storage is None


def numbers(*shape, grad=False):
    values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    x = flow.tensor(values)
    return x.requires_grad_() if grad else x


CALLS = {
    "getitem": (ops.places.indexing.getitem, lambda x: [(x, 3), (x, -1), (x, slice(1, 4)),
        (x, slice(None, None, 2)), (x, (slice(None), 2)), (x, (..., None, slice(0, 2))),
        (x, None), (x, ())]),
    "view": (Tensor.view, lambda x: [(x, -1), (x, 6, 4), (x, (4, 6)), (x, [2, 12]),
        (x, flow.ones(3, 8).shape)]),
    "unbind": (flow.unbind, lambda x: [(x,), (x, 1), (x, -1)]),
    "split": (flow.split, lambda x: [(x, 2), (x, 4), (x, [1, 5]), (x, (2, 2), 1), (x, 6)]),
    "chunk": (flow.chunk, lambda x: [(x, 2), (x, 3, 1)]),
    "reshape": (flow.reshape, lambda x: [(x, (-1,)), (x, (3, 8)), (x, [8, 3])]),
    "t": (flow.t, lambda x: [(x,)]),
    "transpose": (flow.transpose, lambda x: [(x, 0, 1), (x, -1, 0)]),
    "permute": (Tensor.permute, lambda x: [(x, 1, 0), (x, (1, 0))]),
    "unsqueeze": (flow.unsqueeze, lambda x: [(x, 0), (x, -1)]),
    "squeeze": (flow.squeeze, lambda x: [(x,), (x, 0)]),
    "flatten": (flow.flatten, lambda x: [(x,), (x, 0, 1), (x, 1)]),
    "expand": (Tensor.expand, lambda x: [(x, 2, 6, 4), (x, (3, -1, -1))]),
    "narrow": (flow.narrow, lambda x: [(x, 0, 1, 2), (x, 1, -2, 2)]),
    "select": (flow.select, lambda x: [(x, 1, 2)]),
    "sum": (flow.sum, lambda x: [(x,), (x, 1), (x, 0, True), (x, (0, 1)), (x, [1])]),
    "mean": (flow.mean, lambda x: [(x,), (x, 1), (x, (0, 1), True)]),
    "max": (flow.max, lambda x: [(x, 1)]),
    "sort": (flow.sort, lambda x: [(x,), (x, 0), (x, 1, True)]),
    "topk": (flow.topk, lambda x: [(x, 2), (x, 3, 1, False)]),
    "softmax": (flow.softmax, lambda x: [(x, 1), (x, 0)]),
    "argmax": (flow.argmax, lambda x: [(x, 1)]),
    "relu": (F.relu, lambda x: [(x,)]),
    "gelu": (F.gelu, lambda x: [(x,), (x, "tanh")]),
    "layer_norm": (F.layer_norm, lambda x: [(x, (4,)), (x, (4,), None, None, 1e-3)]),
    "linear": (F.linear, lambda x: [(x, flow.ones(5, 4), flow.ones(5)), (x, flow.ones(5, 4))]),
    "mse_loss": (F.mse_loss, lambda x: [(x, flow.ones(6, 4))]),
    "cross_entropy": (F.cross_entropy, lambda x: [(x, flow.tensor([0, 1, 2, 3, 0, 1]))]),
    "add": (flow.add, lambda x: [(x, flow.ones(6, 4)), (x, 2)]),
    "add with alpha": (lambda x, y: flow.add(x, y, alpha=0.3), lambda x: [(x, flow.ones(4))]),
    "sub with alpha": (lambda x, y: x.sub(y, alpha=3), lambda x: [(x, flow.ones(6, 4))]),
    "number - x": (Tensor.__rsub__, lambda x: [(x, 1), (x, 2.5), (x, 300)]),
    "number / x": (Tensor.__rtruediv__, lambda x: [(x, 1), (x, 2.5)]),
    "number * x": (Tensor.__rmul__, lambda x: [(x, 3), (x, 0.5)]),
    "clamp": (flow.clamp, lambda x: [(x, -0.5, 0.5), (x, None, 0.25), (x, 0)]),
    "where": (lambda x, c, y: flow.where(c, x, y), lambda x: [
        (x, x.detach() > 0, 1.0), (x, x.detach() > 0, flow.ones(4))]),
    "lerp": (lambda x, y, z: flow.lerp(x, y, z), lambda x: [(x, flow.ones(4), 0.25)]),
    "round": (flow.round, lambda x: [(x,)]),
    "gather": (flow.gather, lambda x: [(x, 1, flow.tensor([[0, 0, 3], [2, 1, 2]]))]),
    "pad": (F.pad, lambda x: [(x, (1, 2)), (x, (0, 1, 2, 0))]),
    "zeros_like": (flow.zeros_like, lambda x: [(x,)]),
    "addcmul": (flow.addcmul, lambda x: [(x, flow.ones(4), flow.ones(6, 1))]),
}  # fmt: skip
ALWAYS = {"argmax", "zeros_like"}  # nothing is recorded of them
MADE_APART = {"sort", "topk"}  # where something is: by Nodes that no step stands for, or several


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("name", CALLS)
def test_what_follows_a_trace_is_what_the_function_makes(name, grad):
    function, cases = CALLS[name]
    function = plain(function)
    call = steady(lambda *args, **named: function(*args, **named))
    for args in cases(numbers(6, 4, grad=grad)):
        result, was_followed = followed(call, *args)
        expected = function(*args)
        assert facts_of(result) == facts_of(expected)
        assert was_followed or (grad and name in MADE_APART), args


@pytest.mark.parametrize("name", CALLS)
def test_gradients_that_follow_traces_are_the_functions(name, monkeypatch):
    function, cases = CALLS[name]
    if name in ALWAYS:
        return

    def gradient(args):
        x = args[0].detach().clone().requires_grad_()
        out = plain(function)(x, *args[1:])
        out = out[0] if isinstance(out, tuple) else out
        weights = numbers(*out.shape)
        (out * weights).sum().backward()
        return x.grad.numpy(), x.grad._meta

    for args in cases(numbers(6, 4)):
        results = [gradient(args) for _ in range(4)]
        with monkeypatch.context() as m:
            m.setattr(backward, "_gradients", lambda node, g: node.operator.grad(node, g))
            expected, meta = gradient(args)
        for values, kind in results:
            np.testing.assert_array_equal(values, expected)
            assert kind is meta


CHANGES = {
    "add_": lambda x, y: x.add_(y, alpha=0.3), "sub_": lambda x, y: x.sub_(y, alpha=2),
    "lerp_": lambda x, y: x.lerp_(y, 0.25), "clamp_": lambda x, y: x.clamp_(-0.5, 0.5),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changes_that_follow_a_trace_are_the_functions(name):
    change = CHANGES[name]
    call = steady(change)
    for _ in range(2):
        result, was_followed = followed(call, numbers(5, 4), numbers(5, 4))
        assert was_followed
        expected = numbers(5, 4)
        for _ in range(3):  # as `followed` calls it
            change(expected, numbers(5, 4))
        assert facts_of(result) == facts_of(expected)
        assert result.version == expected.version == 3
    for _ in range(4):  # rows that lie on each other, of the same metas
        memory, twin = numbers(6, 4), numbers(6, 4)
        rows = memory[1:]
        call(rows, memory[:-1])
        change(twin[1:], twin[:-1].clone())
        assert memory.tolist() == twin.tolist()
        assert rows.version == 1
    leaf = numbers(5, 4, grad=True)
    with pytest.raises(AutogradError):
        call(leaf, numbers(5, 4))
    recorded = leaf * 1
    call(recorded, numbers(5, 4))
    assert recorded.requires_grad


def test_a_trace_may_change_the_memory_that_it_makes():
    def of_new(x, rows):
        new = flow.zeros_like(x)
        new[1:3].copy_(rows)
        return new * 2

    def of_given(x, rows):
        x[1:3].copy_(rows)
        return x * 2

    x, rows = numbers(6, 4), flow.ones(2, 4)
    call = steady(of_new)
    result, was_followed = followed(call, x, rows)
    assert was_followed
    assert facts_of(result) == facts_of(of_new(x, rows))
    assert result.tolist() == [[2.0 * (i in (1, 2))] * 4 for i in range(6)]
    assert x.version == rows.version == 0
    assert not followed(steady(of_given), x, rows)[1]


def test_gradients_of_parts_follow_traces():
    x = numbers(6, 4, grad=True)
    traces = trace_cache.traces_of(backward._gradients)
    for _ in range(3):
        (x[1:3, ::2].sum() + x[2].sum() + flow.gather(x, 1, flow.tensor([[3]])).sum()).backward()
    known = {key[1].name: value for key, value in traces.lru.young.items()}
    for name in ("getitem", "gather"):
        assert known[name][0] > max(LEARN, REFUSED), name


def test_keys_in_python_are_the_native_ones():
    call = steady(lambda x, *rest, **named: x.sum())
    x = numbers(3, 3)
    lists = [
        (),
        (1,),
        (True,),
        (False,),
        (1.0,),
        (0.0,),
        (None,),
        ("a",),
        (flow.float32,),
        (int,),
        (slice(1, 2),),
        ((1, slice(None), None),),
        ([1, 2],),
        ((1, 2),),
        (((1, 2), (3, None)),),
        ([(1, 2), 3],),
        (x.shape,),
        (...,),
    ]
    for rest in lists:
        assert followed(call, x, *rest)[1], rest
    for named in ({"dim": 1}, {"dim": 1, "keepdim": True}, {"keepdim": True, "dim": 1}):
        assert followed(call, x, **named)[1], named
    keys = [trace_cache.dict_key_of((x, *rest), (), []) for rest in lists]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1.0), ((1, 2), [1, 2])])
def test_equal_arguments_of_other_classes_are_others(one, other):
    call = steady(lambda x, value=None: x.sum() if type(value) is type(one) else x.mean())
    x = numbers(4, 5)
    assert followed(call, x, one)[0].item() == x.sum().item()
    assert followed(call, x, other)[0].item() == x.mean().item()


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        np.int64(1),
        np.float32(1),
        object(),
        {},
        (1.5,),
        (((1,),),),
        slice(1.5),
        slice(np.int64(1)),
        [flow.float32],
        b"",
        1j,
    ],
)
def test_what_is_no_plain_argument_is_the_functions(value):
    call = steady(lambda x, value=None: x.sum())
    assert not followed(call, numbers(3), value)[1]


class Counted:
    """An int by its __index__ alone, which issues ops."""

    calls = 0

    def __index__(self):
        Counted.calls += 1
        flow.ones(2).sum().item()
        return 1


class Raising:
    def __index__(self):
        raise RuntimeError("no")


def test_indices_that_issue_or_raise():
    x = numbers(4, 4)
    for _ in range(4):
        before = Counted.calls
        np.testing.assert_array_equal(x[Counted()].numpy(), x.numpy()[1])
        np.testing.assert_array_equal(x[Counted() : 3].numpy(), x.numpy()[1:3])
        assert Counted.calls > before
        with pytest.raises(RuntimeError):
            x[Raising()]
        with pytest.raises(RuntimeError):
            x[Raising() :]


@pytest.mark.parametrize("make", [
    lambda x: x[9], lambda x: x.view(7), lambda x: x.transpose(0, 5), lambda x: x.sum(4),
    lambda x: x.view(-1, -1), lambda x: Tensor.t(3), lambda x: Tensor.view(), lambda x: x.t(1, 2),
    lambda x: x.sum(dims=1), lambda x: Tensor.sum(x, 1, dim=1), lambda x: x[1, 2, 3],
])  # fmt: skip
def test_errors_are_the_functions_each_time(make):
    x, results = numbers(3, 4), []
    for _ in range(4):
        with pytest.raises((FlowError, TypeError)) as error:
            make(x)
        results.append((error.type, str(error.value)))
    assert len(set(results)) == 1


def test_subclasses_and_half_made_tensors_are_the_functions():
    class Kind(Tensor):
        pass

    call = steady(plain(flow.t))
    x = numbers(3, 4)
    sub = flow.eager.tensor.alias(x, x._meta, 0, Kind)
    assert not followed(call, sub)[1]
    for missing in ("_meta", "_ref", "_node", "_storage"):
        half = object.__new__(Tensor)
        for name in {"_meta", "_ref", "_node", "_storage"} - {missing}:
            setattr(half, name, getattr(x.storage() and x.detach(), name))
        before = hits(call)
        with contextlib.suppress(AttributeError):
            call(half)
        assert hits(call) == before
        if missing == "_storage":
            half._storage = x._storage
        del half


def test_a_value_that_is_read_is_no_trace():
    call = steady(lambda x, at=None: x.sum() if at is None else x.select(0, at))
    x, at = numbers(4), flow.tensor(1)
    assert not followed(call, x, at)[1]
    at.fill_(2)
    assert call(x, at).item() == x[2].item()


def test_random_numbers_are_drawn_each_time():
    call = steady(lambda x: F.dropout(x, 0.5))
    x = flow.ones(64)
    result, was_followed = followed(call, x)
    assert not was_followed
    assert result.tolist() != call(x).tolist()


def test_what_changes_a_tensor_and_goes_on_is_no_trace():
    call = steady(lambda x, how=None: x.add_(1) * 2)
    x = flow.zeros(3)
    assert not followed(call, x)[1]
    assert x.tolist() == [3, 3, 3]


def test_a_change_is_the_last_of_a_trace():
    call = steady(lambda x, y: x.add_(y * 2))
    x, y = flow.zeros(3), flow.ones(3)
    for turn in range(1, 6):
        assert call(x, y) is x
        assert x.tolist() == [2.0 * turn] * 3
    assert x.version == 5
    assert followed(call, x, y)[1]
    w = flow.ones(3, requires_grad=True) * 1  # what is recorded is Python's
    call(w, y).sum().backward()
    leaf = flow.ones(3, requires_grad=True)
    with flow.no_grad():
        view = leaf[:]
        assert call(view, y).tolist() == [3, 3, 3]
    with pytest.raises(AutogradError):
        call(view, y)


def test_tensors_from_elsewhere_are_no_trace():
    held = flow.ones(3)
    call = steady(lambda x, how=None: x + held)
    held_before = call(flow.ones(3), 1).tolist()
    assert not followed(call, flow.ones(3), 1)[1]
    held = flow.zeros(3)
    assert call(flow.ones(3), 1).tolist() != held_before


def test_nodes_made_by_hand_are_no_trace():
    def by_hand(x, how=None):
        out = x.detach() * 2
        if x._node is not None:
            out._node = x._node
        return out

    assert not followed(steady(by_hand), numbers(3, grad=True), 1)[1]


def test_a_tensor_given_twice():
    call = steady(lambda x, y=None: x.sum() if y is None else (x * y).sum())
    x, y = numbers(3), flow.ones(3)
    assert followed(call, x, y)[0].item() == pytest.approx(x.sum().item())
    assert call(x, x).item() == pytest.approx(float((x.numpy() ** 2).sum()))
    assert followed(call, x, x)[0].item() == pytest.approx(float((x.numpy() ** 2).sum()))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("join", [flow.cat, flow.stack])
def test_tensors_in_lists(join, grad):
    call = steady(plain(join))
    x, y = numbers(4, 3, grad=grad), flow.ones(4, 3)
    for inputs in ([x, y], (y, x, y), [x, x], (y,), [x, y, x]):
        for dim in (0, 1, -1):
            out, was_followed = followed(call, inputs, dim)
            assert was_followed
            assert facts_of(out) == facts_of(plain(join)(inputs, dim))
            assert call(inputs, dim=dim).tolist() == out.tolist()
    if grad:
        (call([x, y, x], 1) * 2).sum().backward()
        assert x.grad.tolist() == np.full((4, 3), 4).tolist()
    keys = [
        trace_cache.dict_key_of((inputs,), (), []) for inputs in ([x, y], (x, y), [x, x], [x], x)
    ]
    assert len(set(keys)) == len(keys)


def test_lists_that_are_not_of_tensors_alone_are_the_functions():
    call, x = steady(lambda *args: x.sum()), numbers(3)
    for inputs in ([x, 1], (x, None), [1, x], [[x]], [x] * 40):
        for _ in range(4):
            call(inputs)
        assert hits(call) == 0
    half = object.__new__(Tensor)
    with contextlib.suppress(AttributeError):
        call([x, half])
    assert hits(call) == 0


def test_a_list_that_is_emptied_meanwhile():
    """A finalizer empties the list of a call that follows a trace."""
    call = steady(plain(flow.cat))
    inputs = [flow.ones(2, 2), flow.ones(2, 2)]
    followed(call, inputs)

    class Dying:
        def __del__(self):
            inputs.clear()

    for _ in range(3):
        inputs[:] = [flow.ones(2, 2), flow.ones(2, 2)]
        dying = Dying()
        dying.itself = dying
        del dying
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            with contextlib.suppress(FlowError, IndexError):
                call(inputs)
        finally:
            gc.set_threshold(*threshold)


@pytest.mark.parametrize("grad", [False, True])
def test_pieces_and_what_they_are_views_of(grad):
    call = steady(plain(flow.unbind))
    for of_view in (False, True):
        for _ in range(4):
            x = numbers(4, 3, grad=grad)
            x = (x * 1)[1:] if of_view else x * 1
            pieces, expected = call(x), plain(flow.unbind)(x)
            for piece, like in zip(pieces, expected, strict=True):
                assert base_of(piece) is base_of(like)
                assert piece.version == 0
            with flow.no_grad():
                assert base_of(call(x)[0]) is base_of(x)
            pieces[0].mul_(2) if not grad else None
            assert x[0].tolist() == pieces[0].tolist()
    assert hits(call) > 4


def test_results_that_go_into_out():
    a, b = numbers(3, 3), numbers(3, 3) + 1
    for _ in range(5):
        out = flow.zeros(3, 3)
        view = flow.zeros(4, 3)[1:]
        assert flow.add(a, b, out=out) is out
        np.testing.assert_array_equal(out.numpy(), (a + b).numpy())
        assert out.version == 1
        flow.matmul(a, b, out=view)
        np.testing.assert_array_equal(view.numpy(), (a @ b).numpy())
        same = a.clone()
        flow.mul(same, b, out=same)
        np.testing.assert_array_equal(same.numpy(), (a * b).numpy())
        flow.sub(b, same, out=same.t())  # other places of the same memory
        np.testing.assert_array_equal(same.numpy().T, (b - a * b).numpy())
        values, places = flow.zeros(3), flow.zeros(3, dtype=flow.int64)
        flow.max(a, 1, out=(values, places))
        np.testing.assert_array_equal(values.numpy(), a.numpy().max(1))
        np.testing.assert_array_equal(places.numpy(), a.numpy().argmax(1))
        wide = flow.zeros(3, 3, dtype=flow.float64)
        flow.add(a, 1.5, out=wide)
        np.testing.assert_allclose(wide.numpy(), a.numpy() + 1.5, rtol=1e-6)
        with pytest.raises(AutogradError, match="out="):
            flow.add(a, b, out=flow.zeros(3, 3, requires_grad=True))
        both = flow.zeros(6, 3)
        flow.cat([a, b], out=both)
        np.testing.assert_array_equal(both.numpy(), flow.cat([a, b]).numpy())
        with pytest.raises(FlowError, match="shares memory"):
            flow.cat([a, b], out=a)
        with pytest.raises(FlowError, match="shares memory"):
            flow.cat([both[:3], b], out=both)
        with pytest.warns(UserWarning, match="resized"):
            assert flow.matmul(a, b, out=flow.ones(2)).shape == (3, 3)


def test_no_grad_and_inference_are_other_traces():
    call = steady(plain(flow.sum))
    x = numbers(4, 4, grad=True)
    with_grad, _ = followed(call, x, 1)
    with flow.no_grad():
        without, was_followed = followed(call, x, 1)
    assert with_grad.requires_grad
    assert not without.requires_grad
    assert was_followed
    assert call(x, 1).requires_grad


def test_autocast_a_capture_and_listeners_to_nodes_are_the_functions():
    call = steady(plain(F.linear))
    x, w = numbers(4, 4), numbers(4, 4)
    followed(call, x, w)
    before = hits(call)
    with flow.autocast("cpu", dtype=flow.bfloat16):
        assert call(x, w).dtype is flow.bfloat16
    assert hits(call) == before
    assert flow.compile(lambda x: call(x, w))(x).tolist() == call(x, w).tolist()


def test_a_choice_of_kernels_is_no_traces():
    q = numbers(1, 2, 4, 8)
    attend = F.scaled_dot_product_attention
    followed_by = [attend(q, q, q) for _ in range(4)][-1].tolist()
    with flow.nn.attention.sdpa_kernel(flow.nn.attention.SDPBackend.MATH):
        traced = str(flow.vm.trace(attend, q, q, q))
    assert "softmax" in traced
    np.testing.assert_allclose(attend(q, q, q).tolist(), followed_by, rtol=1e-6)


def test_another_default_dtype_is_another_trace():
    call = steady(lambda x: x / 2)
    x = flow.tensor([1, 2])
    assert followed(call, x)[0].dtype is flow.float32
    flow.set_default_dtype(flow.float64)
    try:
        assert call(x).dtype is flow.float64
    finally:
        flow.set_default_dtype(flow.float32)


# --- views --------------------------------------------------------------------------------------


def test_views_know_their_base_and_bases_their_views():
    x = numbers(4, 4) * 1
    rows = [x[1] for _ in range(40)]
    rows = rows[-3:]
    view = rows[0].view(2, 2)
    assert all(base_of(v) is x for v in (*rows, view))
    alive = [v() for v in x._kin if v() is not None]
    assert {id(v) for v in alive} == {id(v) for v in (*rows, view)}


@pytest.mark.parametrize("leaf", [False, True])
def test_changes_through_views_are_recorded(leaf):
    """The third view of a kind is native; a write through it reaches its base's graph."""
    results = []
    for _ in range(4):
        w = numbers(4, 4, grad=True)
        x = w * 2
        v = x[1]
        v.mul_(3)
        (x * x).sum().backward()
        results.append(w.grad.tolist())
    assert all(g == results[0] for g in results)
    expected = 8 * numbers(4, 4).numpy()
    expected[1] *= 9
    np.testing.assert_allclose(results[0], expected, rtol=1e-6)


def test_a_view_shares_memory_and_version():
    for _ in range(4):
        x = flow.zeros(4, 4)
        v = x[2]
        v.add_(1)
        assert x.sum().item() == 4
        assert x.version == v.version == 1
        assert v.storage() is x.storage()


def test_many_views_are_forgotten():
    x = flow.zeros(8, 8)
    for _ in range(5000):
        x[3]
    views = [x[3] for _ in range(100)]
    for _ in range(1000):
        x[3]
    assert len(x._kin) <= 256
    del views


def test_storages_die_natively_as_their_twins_let_go():
    dying = install.native_death(Storage)
    storage, empty = object.__new__(Storage), object.__new__(Storage)
    storage.id = hot["pop"]() if hot["free"] else hot["refill"]()
    dead, number = hot["dead"], storage.id
    for call in (dying, dying.twin):
        before = dead.count(number)
        call(storage)
        call(empty)
        assert dead.count(number) == before + 1
        dead.remove(number)
    hot["free"].append(number)
    del storage.id


def test_references_are_neither_lost_nor_kept():
    x, w = numbers(8, 8), numbers(8, 8, grad=True)
    calls = [
        (steady(plain(ops.places.indexing.getitem)), (x, (slice(1, 3), None))),
        (steady(plain(flow.transpose)), (w, 0, 1)),
        (steady(plain(flow.sum)), (w, 1)),
        (steady(plain(flow.sort)), (x, 1)),
        (steady(plain(F.layer_norm)), (w, (8,), None, None, 1e-3)),
    ]
    for call, args in calls:
        assert followed(call, *args)[1]
        parts = [*args, x._meta, w._meta, w._node, call, Tensor, Storage, tuple, slice]
        parts = [part for part in parts if type(part) not in (int, NoneType)]
        counts = []
        for _ in range(4):
            for _ in range(64):
                call(*args)
            flow.vm.sync()
            gc.collect()
            counts.append(
                [getrefcount(part) for part in parts if type(part) not in (int, NoneType)]
            )
        assert counts[1] == counts[2] == counts[3], call.twin.__name__


def test_several_threads_follow_and_learn():
    x, failed = numbers(16, 16), []
    call = steady(lambda x, n=1: x.sum(1)[:n])

    def run():
        for k in range(300):
            n = 1 + k % 7
            if call(x, n).shape != (n,):
                failed.append(n)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    np.testing.assert_allclose(call(x, 3).numpy(), x.numpy().sum(1)[:3], rtol=1e-5)


def test_traces_are_kept_within_bounds_and_forgotten():
    call = steady(plain(flow.narrow))
    x = flow.ones(4000)
    assert followed(call, x, 0, 1, 2)[1]
    before = flow.vm.stats()["traces_kept"]
    for k in range(50):
        call(x, 0, k, 1)
    assert flow.vm.stats()["traces_kept"] >= before + 49
    for forget in flow.vm.engine.engine.engine.entries.on_full:
        forget()
    assert followed(call, x, 0, 1, 2)[1]


def test_gradients_of_others_are_no_traces():
    """The gradient of a user's op may do anything."""
    calls = []

    def grad(c, g):
        calls.append(g)
        return (g * 3,)

    triple = flow.elementwise(f"triple_{id(calls)}", "x * 3", grad=grad)
    for turn in range(4):
        x = flow.ones(2, requires_grad=True)
        triple(x).sum().backward()
        assert x.grad.tolist() == [3, 3]
        assert len(calls) == turn + 1
