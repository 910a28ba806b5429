"""Every object that may stand for an int argument: the right result or an error, at once.

Every public function with samples is called with its sample's integers, one replaced at a time.
The replacements are tensors of one element, NumPy's integers, objects with an `__index__` that
computes or raises, and objects that are no integers.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import FlowError, VMError
from flowvm.ops.declare.composite import whole
from flowvm.ops.declare.registry import SAMPLES
from flowvm.vm.callers.hot import hot


class Stands:
    """For an int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Computes(Stands):
    def __index__(self):
        return int((flow.zeros(3).long() + self.value).max().item())


class OwnError(Exception):
    pass


class Raises(Stands):
    def __index__(self):
        raise OwnError


class Lies(Stands):
    def __index__(self):
        return "x"


def pending(value):
    big = flow.ones(200, 200)
    return (big @ big).sum().long() * 0 + value


SAME = {
    "0-d": flow.tensor, "1-d": lambda v: flow.tensor([v]), "pending": pending, "int64": np.int64,
    "stands": Stands, "computes": Computes,
}  # fmt: skip
OTHER = {
    "float tensor": lambda v: flow.tensor(float(v)), "two": lambda v: flow.tensor([v, v]),
    "raises": Raises, "lies": Lies, "huge": lambda v: 10**30, "half": lambda v: v + 0.5,
}  # fmt: skip
# a tensor has another meaning there: it is compared, searched for, or lists places
TENSORS_MEAN_OTHERS = {
    "searchsorted", "bucketize", "isin", "clamp", "max", "min", "tensor_split",
}  # fmt: skip


def places(value):
    """(path, the int there) of every int in an argument."""
    if type(value) is int:
        yield (), value
    elif type(value) in (tuple, list):
        for k, inner in enumerate(value):
            for path, number in places(inner):
                yield (k, *path), number


def put(value, path, new):
    if not path:
        return new
    parts = list(value)
    parts[path[0]] = put(parts[path[0]], path[1:], new)
    return type(value)(parts)


def arrays(result):
    if isinstance(result, (tuple, list)):
        return [a for r in result for a in arrays(r)]
    return [result.numpy() if isinstance(result, flow.Tensor) else np.asarray(result)]


def calls(samples):
    """Yield (replaced argument, its int, the call with another value there) of an op's samples."""
    names = list(inspect.signature(samples.function).parameters)
    visited = set()
    for sample in samples.generate(np.random.default_rng(0)):
        options = {**dict(enumerate(sample.args)), **sample.kwargs}
        for where, value in options.items():
            for path, number in places(value):
                name = names[where] if isinstance(where, int) and where < len(names) else where
                if (name, path) in visited:
                    continue
                visited.add((name, path))

                def call(new, inputs=options, where=where, value=value, path=path):
                    flow.manual_seed(1)
                    args = {
                        k: flow.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v
                        for k, v in inputs.items()
                    }
                    args[where] = put(value, path, new)
                    rest = [v for k, v in args.items() if isinstance(k, int)]
                    named = {k: v for k, v in args.items() if not isinstance(k, int)}
                    return arrays(samples.function(*rest, **named))

                yield f"{name}{list(path) or ''}", number, call


WITH_INTS = [s for s in SAMPLES if next(calls(s), None) is not None]


@pytest.mark.parametrize("samples", WITH_INTS, ids=lambda s: s.name)
@pytest.mark.product(3)
def test_what_may_stand_for_an_int(samples):
    for place, number, call in calls(samples):
        try:
            expected = call(number)
        except Exception:  # of the sample: tried elsewhere
            continue
        for kind, make in {**SAME, **OTHER}.items():
            if kind[-2:] == "-d" and samples.name in TENSORS_MEAN_OTHERS:
                continue
            if kind == "pending" and samples.name in TENSORS_MEAN_OTHERS:
                continue
            try:
                results = call(make(number))
            except (FlowError, TypeError, OwnError):
                continue
            if kind in SAME:
                same = len(results) == len(expected) and all(
                    np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                    for a, b in zip(results, expected, strict=True)
                )
                assert same, f"{place} = {kind}: {results}, not {expected}"
    assert flow.ones(2).sum().item() == 2, "the VM goes on"


def test_most_ops_take_what_stands_for_an_int():
    """An error is allowed above; these calls are the ones that PyTorch takes."""
    x, one = flow.arange(12).reshape(3, 4), flow.tensor(1)
    calls_ = [
        lambda n: x.narrow(1, n, 2),
        lambda n: x.narrow(n, 0, 2),
        lambda n: x.select(0, n),
        lambda n: x.sum(n),
        lambda n: x.roll(n, 0),
        lambda n: x.chunk(n),
        lambda n: x.unfold(1, n, n),
        lambda n: x.split(n),
        lambda n: x.topk(n),
        lambda n: x.diagonal(n),
        lambda n: x.unsqueeze(n),
        lambda n: x.float().softmax(n),
        lambda n: x.transpose(0, n),
        lambda n: x[n:],
        lambda n: flow.cat([x, x], n),
        lambda n: x.reshape(n, -1),
        lambda n: x.expand(n, 3, 4),
        lambda n: flow.zeros(n, 2),
        lambda n: x.tril(n),
        lambda n: x.flip(n),
        lambda n: flow.nn.functional.pad(x, (n, n)),
        lambda n: x.index_select(n, flow.tensor([0])),
    ]  # fmt: skip
    for k, call in enumerate(calls_):
        expected = arrays(call(1))
        for stands in (one, flow.tensor([1]), np.int64(1), np.int8(1), Stands(1), Computes(1)):
            results = arrays(call(stands))
            same = [np.array_equal(a, b) for a, b in zip(results, expected, strict=True)]
            assert all(same), (k, stands)


def test_a_tensor_is_read_anew_and_is_no_key_of_a_cache():
    n = flow.tensor(1)
    x = flow.arange(4)
    assert x.roll(n, 0).tolist() == [3, 0, 1, 2]
    n.add_(1)
    assert x.roll(n, 0).tolist() == [2, 3, 0, 1]


def test_whole_says_what_is_wrong():
    with pytest.raises(TypeError, match="f: a size is an int, got float"):
        whole("f", "a size", 1.0)
    with pytest.raises(ValueError, match="at most 64 bits"):
        whole("f", "a size", 1 << 64)
    assert type(whole("f", "a size", np.int8(3))) is int


def test_nothing_but_an_int_comes_into_an_operand():
    from flowvm.eager.tensor import alias

    x = flow.ones(3)
    with pytest.raises(TypeError, match="a view's offset is an int, got Tensor"):
        alias(x, x._meta, flow.tensor(4))


def test_a_number_that_fits_no_word_is_an_error_and_leaves_no_hole():
    x = flow.arange(3)
    with pytest.raises(FlowError, match="does not fit"):
        x * 10**30
    assert (x * 2).tolist() == [0, 2, 4]


DEBUG = """
import gc
import flowvm as flow
from flowvm.vm.callers import publish_check
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine

x = flow.ones(3) * 2
assert x.tolist() == [2.0] * 3 and not publish_check.broken

class Index:
    def __index__(self):
        {what}
        return before

y = flow.ones(2)
y._ref, before = Index(), y._ref
try:
    z = y * 2
except Exception as error:
    print(type(error).__name__, error)
else:
    print("nothing was said")
y._ref = before
print(publish_check.broken)
print((y * 2).tolist())
"""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("flow.ones(3)", "something was issued"),
        ("x.item() if x.numel() == 1 else x.tolist()", "something was waited for"),
        ("engine.waits.wait_idle()", "something was waited for"),
        ("gc.collect()", "a garbage collection"),
    ],
)
def test_a_debug_build_asserts_that_nothing_runs_inside_a_record(what, message):
    process = subprocess.run(
        [sys.executable, "-c", DEBUG.format(what=what)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "FLOWVM_DEBUG_CALLS": "1"},
    )
    assert process.returncode == 0, process.stderr
    assert message in process.stdout, process.stdout
    assert process.stdout.endswith("[2.0, 2.0]\n"), process.stdout
    if message.startswith("something"):
        assert "VMError" in process.stdout, process.stdout


def test_without_the_switch_nothing_is_noted():
    assert "begun" not in hot
    assert VMError not in hot["struct_errors"]
