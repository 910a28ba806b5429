"""Printed tensors: values as PyTorch prints them, and something true in every other state."""

import contextlib
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import empty, get_printoptions, ones, printoptions, set_printoptions, tensor
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO
from flowvm.vm.watch.pending import issued


@pytest.fixture(autouse=True)
def _default_options() -> Iterator[None]:
    yield
    set_printoptions(profile="default", sci_mode=None, sync=True)


@pytest.fixture
def hold() -> Iterator[Callable[[Tensor], threading.Event]]:
    """Keeps a tensor unwritten until the event is set."""
    gates = []

    def hold(t: Tensor) -> threading.Event:
        gate = threading.Event()
        engine.callbacks.issue(lambda address: gate.wait(200) and None, [t._ref], [OPERAND.MUT])
        gates.append(gate)
        return gate

    yield hold
    for gate in gates:
        gate.set()
    engine.waits.wait_idle()


@pytest.fixture
def failed() -> Iterator[Tensor]:
    def fail(address: int) -> None:
        raise ValueError("no\n  way")

    t = ones(3)
    engine.callbacks.issue(fail, [t._ref], [OPERAND.MUT])
    engine.waits.wait_idle()
    yield t
    for failure in engine.failures.all():
        failure.seen = True


def shown(data: Any, kind: str = "float32", **options: Any) -> str:
    with printoptions(**options):
        return repr(adopt_array(np.array(data, kind)))


VALUES = [
    (3.0, "float32", "tensor(3.)"),
    (0.5, "float64", "tensor(0.5000, dtype=float64)"),
    (7, "int64", "tensor(7)"),
    (True, "bool", "tensor(True)"),
    (float("nan"), "float32", "tensor(nan)"),
    ([1.0, 2.5], "float32", "tensor([1.0000, 2.5000])"),
    ([1.0, -2.0], "float32", "tensor([ 1., -2.])"),
    ([1.0, float("nan"), float("-inf")], "float32", "tensor([1., nan, -inf])"),
    ([True, False], "bool", "tensor([ True, False])"),
    ([1, -20], "int16", "tensor([  1, -20], dtype=int16)"),
    ([1e-5, 1.0], "float32", "tensor([1.0000e-05, 1.0000e+00])"),
    ([0.1, 0.2], "float16", "tensor([0.1000, 0.2000], dtype=float16)"),
    ([[1, 2], [3, 40]], "int64", "tensor([[ 1,  2],\n        [ 3, 40]])"),
    ([[[1], [2]]], "int64", "tensor([[[1],\n         [2]]])"),
    ([], "float32", "tensor([], shape=(0,))"),
    ([[], []], "int64", "tensor([], shape=(2, 0), dtype=int64)"),
]


@pytest.mark.parametrize(("data", "kind", "text"), VALUES, ids=[v[2][:30] for v in VALUES])
def test_values(data: Any, kind: str, text: str) -> None:
    assert shown(data, kind) == text


def test_zeros_have_no_exponent() -> None:
    assert shown([0.0, 0.0], "float32", sci_mode=True) == "tensor([0., 0.])"
    assert shown([0.0, 2.0], "float32", sci_mode=True) == "tensor([0.0000e+00, 2.0000e+00])"


def test_long_tensors_show_their_edges_and_their_shape() -> None:
    assert shown(range(2000), "int64") == (
        "tensor([   0,    1,    2,  ..., 1997, 1998, 1999], shape=(2000,))"
    )
    text = shown(np.arange(24).reshape(4, 6), "int64", threshold=10, edgeitems=1)
    assert text == "tensor([[ 0,  ...,  5],\n        ...,\n        [18,  ..., 23]], shape=(4, 6))"
    assert shown(range(9), "int64", threshold=5, edgeitems=0) == "tensor([...], shape=(9,))"
    with printoptions(linewidth=30):
        lines = repr(tensor(list(range(40)))).splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 30


PEERS = {
    "normal": lambda x: x.astype("f4"),
    "whole": lambda x: np.round(x * 10).astype("f4"),
    "large": lambda x: (x * 1e9).astype("f4"),
    "tiny": lambda x: (x * 1e-6).astype("f4"),
    "large and whole": lambda x: np.round(x * 1e5).astype("f4"),
    "not finite": lambda x: np.where(x > 1, np.nan, np.where(x < -1, np.inf, x)).astype("f4"),
    "int64": lambda x: np.round(x * 1000).astype("i8"),
    "bool": lambda x: x > 0,
    "float16": lambda x: x.astype("f2"),
    "float64": lambda x: x,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"profile": "short"},
    {"sci_mode": True},
    {"sci_mode": False},
    {"edgeitems": 1, "threshold": 5, "linewidth": 40, "precision": 2},
    {"edgeitems": 0, "threshold": 5},
]
SHAPES = [(), (1,), (7,), (40,), (1001,), (2, 3), (30, 30), (40, 40), (2, 3, 4), (12, 11, 10)]


@pytest.mark.parametrize("kind", PEERS)
def test_values_print_as_in_torch(kind: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    for shape in SHAPES:
        x = np.asarray(PEERS[kind](np.asarray(rng.normal(size=shape))))
        for options in OPTIONS:
            torch.set_printoptions(**{"profile": "default", "sci_mode": None, **options})
            theirs, ours = repr(torch.tensor(x)), shown(x, x.dtype.str, **options)
            assert bare(ours) == bare(theirs), (shape, options)
    torch.set_printoptions(profile="default", sci_mode=None)


def bare(text: str) -> str:
    """Return a repr without the facts behind the values, where the two are meant to differ."""
    return re.sub(r",\s*((?:shape|size)=\(.*?\)|dtype=[\w.]+)", "", text)


def test_gradient_and_dtype_are_shown_where_they_say_something() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    assert repr(x) == str(x) == "tensor([1., 2.], requires_grad=True)"
    assert re.fullmatch(r"tensor\(\[2., 4.\], grad_fn=<Mul\w*>\)", repr(x * 2))
    before = flow.get_default_dtype()
    flow.set_default_dtype(flow.float64)
    try:
        assert repr(x.detach()) == "tensor([1., 2.], dtype=float32)"
    finally:
        flow.set_default_dtype(before)
    with printoptions(linewidth=30):
        assert repr(x) == "tensor([1., 2.],\n       requires_grad=True)"


def test_views_print_their_own_elements() -> None:
    base = np.arange(12.0).reshape(3, 4)
    assert repr(adopt_array(base.T)) == repr(adopt_array(np.ascontiguousarray(base.T)))
    assert repr(adopt_array(base[1:, ::2])) == repr(adopt_array(base[1:, ::2].copy()))


def test_only_what_is_printed_is_copied() -> None:
    t = adopt_array(np.zeros((4000, 4000), np.float32))
    repr(t)
    tracemalloc.start()
    repr(t)
    t._repr_html_()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# --- tensors without values -----------------------------------------------------------------------


def test_a_pending_tensor_says_what_it_waits_for(
    hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = ones(2, 3)
    gate = hold(t)
    later = t + 1
    before = issued()
    monkeypatch.setattr(flow.interop.printing, "PATIENCE", 0.01)
    pattern = r"tensor\(<pending: #\d+ {}>, shape=\(2, 3\)\)"
    assert re.fullmatch(pattern.format("callback"), repr(t))  # gives up waiting by itself
    with printoptions(sync=False):
        assert re.fullmatch(pattern.format("add"), repr(later))
        assert "pending" in later._repr_html_()
    assert issued() == before  # looking issues nothing
    gate.set()
    monkeypatch.undo()
    assert repr(later) == "tensor([[2., 2., 2.],\n        [2., 2., 2.]])"


def test_print_waits_for_the_value(hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow.interop.printing, "PATIENCE", 0.01)
    t = ones(2)
    gate = hold(t)
    later = t + 1
    texts: list[str] = []
    printer = threading.Thread(target=lambda: texts.append(str(later)))
    printer.start()
    printer.join(0.1)
    assert not texts
    assert "pending" in repr(later)
    with printoptions(sync=False):
        assert "pending" in str(later)
    gate.set()
    printer.join(20)
    assert texts == ["tensor([2., 2.])"]


def test_a_pending_tensor_of_unknown_shape(hold: Any) -> None:
    t = ones(3)
    meta = t._meta
    del t._meta  # as a mut2 op leaves it
    t._pending = lambda: meta
    gate = hold(t)
    with printoptions(sync=False):
        assert re.fullmatch(r"tensor\(<pending: #\d+ callback>, shape=unknown\)", repr(t))
    gate.set()
    assert repr(t) == "tensor([1., 1., 1.])"


def test_a_failed_tensor_shows_its_error_and_leaves_it_unseen(failed: Tensor) -> None:
    text = "tensor(<failed: ValueError: no way; see flow.vm.last_error()>, shape=(3,))"
    assert repr(failed) == text
    later = failed + 1
    engine.waits.wait_idle()
    assert repr(later) == text
    assert "&lt;failed" in failed._repr_html_()
    assert not engine.failures.all()[-1].seen
    with pytest.raises(ValueError, match="way"):
        failed.tolist()


def test_tensors_that_are_not_whole() -> None:
    half = object.__new__(Tensor)
    assert repr(half) == "tensor(<not made yet>)"
    broken = ones(2)
    broken._node = object()
    assert repr(broken).startswith("tensor(<cannot be shown: MissingNameError")
    freed = ones(2)
    engine.waits.wait_for([freed._ref])
    at = STO.AT + (freed._ref & OPERAND.STORAGE_MASK) * STO.WORDS + STO.POINTER
    pointer, engine.words[at] = engine.words[at], 0
    assert repr(freed) == "tensor(<freed>, shape=(2,))"
    engine.words[at] = pointer


def test_no_property_waits(hold: Any) -> None:
    t = ones(2)
    gate = hold(t)
    names = [n for n, p in vars(Tensor).items() if isinstance(p, property)]
    before = issued()
    finished = threading.Event()

    def read() -> None:
        for name in names:
            with contextlib.suppress(FlowError):  # some are for matrices only, or the like
                getattr(t, name, None)
        finished.set()

    threading.Thread(target=read, daemon=True).start()
    assert finished.wait(200), names
    assert issued() == before
    gate.set()


# --- options --------------------------------------------------------------------------------------


def test_options_are_set_checked_and_restored() -> None:
    default = get_printoptions()
    set_printoptions(precision=2, edgeitems=1)
    assert (get_printoptions()["precision"], get_printoptions()["edgeitems"]) == (2, 1)
    set_printoptions(**default)
    assert get_printoptions() == default
    with pytest.raises(KeyError), printoptions(sci_mode=True) as inside:
        inside["no such option"]
    assert inside["sci_mode"]
    assert get_printoptions() == default
    set_printoptions(profile="full")
    assert "..." not in repr(tensor(list(range(2000))))
    with pytest.raises(ArgumentError, match="profile"):
        set_printoptions(profile="long")
    with pytest.raises(ArgumentError, match="precision"):
        set_printoptions(precision=-1)


# --- numbers, format, names -----------------------------------------------------------------------


def test_format() -> None:
    assert f"{tensor(0.12345):.3f}" == "0.123"
    assert f"{tensor(3)}" == "3"
    assert f"{tensor([1])}" == "tensor([1])"
    with pytest.raises(ArgumentTypeError, match=r"shape \(2,\)"):
        f"{ones(2):.3f}"


def test_numbers() -> None:
    assert (float(tensor([2.5])), int(tensor(2.5)), bool(tensor(0.0))) == (2.5, 2, False)
    assert [10, 20, 30][tensor(1)] == 20
    assert list(range(tensor([3]))) == [0, 1, 2]
    for wrong in (tensor(1.0), tensor([1, 2])):
        with pytest.raises(TypeError, match="only integer tensors of a single element"):
            [10, 20, 30][wrong]
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value"):
        bool(ones(2))
    with pytest.raises(ValueError, match="Boolean value of Tensor with no values"):
        bool(empty(0))


def test_a_misspelt_attribute_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="did you mean 'requires_grad'"):
        getattr(ones(2), "require_grad")  # noqa: B009
    with pytest.raises(AttributeError, match="no attribute '_shape'"):
        getattr(ones(2), "_shape")  # noqa: B009
    assert not hasattr(ones(2), "qqqq")


@pytest.mark.parametrize("name", ["flow.relux", "flow.ones(2).reshap"])
def test_python_adds_no_suggestion_of_its_own(name: str) -> None:
    program = f"import flowvm as flow\n{name}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.search(r"; did you mean '(relu|reshape)'\?$", process.stderr.strip())
    assert process.stderr.lower().count("did you mean") == 1


def test_completion_offers_public_names() -> None:
    names = dir(ones(2))
    assert {"shape", "item", "requires_grad_"} <= set(names)
    assert not [n for n in names if n.startswith("_")]


def test_html_is_a_table_with_escaped_text() -> None:
    html = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)._repr_html_()
    assert html.count("<tr>") == 2
    assert html.count("<td>") == 4
    assert "shape=(2, 2), dtype=float32, requires_grad=True" in html
    wide = adopt_array(np.zeros((2000, 2000)))._repr_html_()
    assert wide.count("<tr>") == 7
    assert "…" in wide
    assert "&lt;Mul" in (tensor([1.0], requires_grad=True) * 2)._repr_html_()
    assert tensor(1.0)._repr_html_() == "<pre>tensor(1.)</pre>"
