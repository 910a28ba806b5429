"""Memory that NumPy has, too: calls that access it are done when they return, no others are."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING
from flowvm.vm.watch.pending import issued


@pytest.fixture(scope="module")
def heavy() -> flow.Tensor:
    return flow.ones(600, 600)


def keep_busy(heavy: flow.Tensor) -> flow.Tensor:
    """Issue some milliseconds of work, so that the next instructions wait."""
    return heavy @ heavy @ heavy


def at_rest() -> bool:
    """Return True if only releases of memory and waits are in flight."""
    kinds = set()
    for seq in range(engine.words[CTL.HEAD], issued()):
        record = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
        number = engine.words[record + RING.ENTRY] & ENT.MASK
        kinds.add(engine.words[ENT.AT + number * ENT.WORDS + ENT.KIND])
    return kinds <= {KIND.RELEASE, KIND.TOUCH}


def into_graph(x: flow.Tensor) -> object:
    return flow.compile(lambda t: t * 2 + 1)(x)


def stepped(x: flow.Tensor) -> object:
    w = nn.Parameter(x)
    (w * w).sum().backward()
    optimizer = flow.optim.SGD([w], lr=0.1)
    optimizer.step()
    return w


def backward(x: flow.Tensor) -> object:
    w = flow.ones(64, requires_grad=True)
    loss = (w * x).sum()
    loss.backward()
    return loss


TOUCHES = {
    "reads": lambda x: x + 1,
    "a number": lambda x: x * 2.0,
    "course": lambda x: x.sum(),
    "in place": lambda x: x.add_(1),
    "in place, a number": lambda x: x.mul_(2.0),
    "a view": lambda x: x[3:].add_(1),
    "a view is read": lambda x: x.view(8, 8).t() @ flow.ones(8, 8),
    "out": lambda x: flow.add(flow.ones(64), 1, out=x),
    "copy": lambda x: x.copy_(flow.ones(64)),
    "an item": lambda x: x.__setitem__(3, 2.0),
    "found size": lambda x: x.masked_select(flow.ones(64) > 0),
    "foreach": lambda x: flow._foreach_add_([flow.ones(64), x], 1.0),
    "many": lambda x: flow.cat([x] * 30),
    "random": lambda x: x.normal_(),
    "cast": lambda x: x.to(flow.float64),
    "sort": lambda x: x.sort(),
    "graph": into_graph,
    "optimizer": stepped,
    "backward": backward,
}


@pytest.mark.parametrize("kind", TOUCHES)
@pytest.mark.parametrize("lent", ["numpy", "from_numpy", "view"])
def test_calls_that_touch_lent_memory_are_done_when_they_return(kind, lent, heavy):
    for _ in range(4):  # by the Python function, while a course is learned, natively
        array = np.arange(64, dtype=np.float32)
        x = flow.from_numpy(array) if lent == "from_numpy" else flow.tensor(array)
        if lent != "from_numpy":
            array = x.numpy() if lent == "numpy" else x[5:].numpy()
        busy = keep_busy(heavy)
        result = TOUCHES[kind](x)
        # nothing that was issued by this call is in flight; what came before in the stream is done
        assert at_rest(), kind
        del result, busy
    del array


def test_calls_that_touch_other_memory_do_not_wait(heavy):
    x = flow.zeros(3)
    array = x.numpy()
    started = threading.Event()
    y = flow.zeros(1)
    engine.callbacks.issue(lambda *_: started.wait(60), [y._ref], [1])
    z = y + 1  # waits for the callback, and nobody for it
    assert not at_rest()
    array[0] = 5
    assert (x + 1).tolist() == [6, 1, 1]  # nor does this wait for that
    assert not at_rest()
    started.set()
    assert z.tolist() == [1]


def test_the_array_waits_for_who_reads_the_tensor(heavy):
    x = flow.ones(600, 600)
    for _ in range(3):
        busy = keep_busy(heavy)
        y = x @ x
        x.numpy()[...] = 7
        assert y[0, 0].item() == 600
        x.numpy()[...] = 1
        del busy


def test_a_loan_ends_with_the_last_array_on_it():
    x = flow.zeros(4)
    array = x.numpy()[1:]
    again = np.asarray(x)
    assert engine.lending.holds(x._ref)
    del array
    x + 1
    assert engine.lending.holds(x._ref)
    del again
    x + 1
    assert not engine.lending.holds(x._ref)
    words = engine.lending.words
    assert words[0] == words[1:].sum()
    assert not words[x._ref & OPERAND.STORAGE_MASK]


@pytest.mark.parametrize("view", [False, True])
def test_an_array_that_nobody_else_has_is_not_waited_for(view):
    array = np.zeros((4, 4))
    x = flow.from_numpy(array[1:].T if view else array)
    x + 1
    assert engine.lending.holds(x._ref)
    del array
    x + 1
    assert not engine.lending.holds(x._ref)
    array = x.numpy()
    array[0, 0] = 3
    assert (x + 1)[0, 0].item() == 4


def test_memory_outlives_the_tensor_and_storages_are_given_back():
    gc.collect()
    flow.vm.sync()
    before = engine.lending.words[0]
    array = flow.full((1000,), 3.0).numpy()
    mine = np.full(1000, 4.0)
    for k in range(3000):  # ids come round
        x = flow.from_numpy(mine)
        x[k % 1000] = k
        flow.zeros(1000).numpy()[...] = k
    assert (array == 3).all()
    assert mine[999] == 2999
    del x
    gc.collect()
    flow.vm.sync()
    for _ in range(40):
        flow.zeros(1).add_(1)
    flow.vm.sync()
    assert engine.lending.words[0] == before + 1


def test_what_cannot_be_promised_is_read_only():
    w = flow.ones(3, requires_grad=True)
    for array in (w.numpy(), np.asarray(w), (w * 2).numpy(), w.__array__(copy=False)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    w.numpy(force=True)[0] = 5
    assert w.tolist() == [5, 1, 1]
    w.detach().numpy()[1] = 6
    assert w.tolist() == [5, 6, 1]
    with pytest.raises(TypeError, match="bfloat16"):
        flow.ones(2, dtype=flow.bfloat16).numpy()


def test_buffers_are_shared_whatever_the_dtype():
    data = bytearray(8)
    x = flow.frombuffer(data, dtype=flow.bfloat16)
    x.fill_(1.0)
    assert data == b"\x80\x3f" * 4
    data[0:2] = b"\x00\x40"
    assert x.tolist() == [2, 1, 1, 1]
    with pytest.warns(UserWarning, match="read-only"):
        flow.frombuffer(bytes(8), dtype=flow.int32)


def program(library, rng, steps: int) -> list[object]:
    """A random program on shared memory, in either library: all that it sees."""
    arrays = [rng.integers(0, 9, 12).astype(np.float32) for _ in range(2)]
    tensors = [library.from_numpy(a) for a in arrays]
    tensors.append(library.tensor(arrays[0]))
    arrays.append(tensors[-1].numpy())
    results: list[object] = []
    for _ in range(steps):
        k, j, what = (int(v) for v in rng.integers(0, (len(tensors), len(tensors), 9)))
        t, a = tensors[k], arrays[k]
        if what == 0:
            results.append(t + tensors[j])
        elif what == 1:
            t.add_(1)
        elif what == 2:
            a[int(rng.integers(12))] = float(rng.integers(9))
        elif what == 3:
            t[3:9].mul_(0.5)
        elif what == 4:
            results.append(t.view(3, 4).t() @ tensors[j].view(3, 4))
        elif what == 5:
            a[...] = arrays[j][::-1] + 0
        elif what == 6:
            results.append(a.copy())
        elif what == 7:
            t.copy_(tensors[j].flip(0))
        else:
            results.append((t * tensors[j]).sum())
    return [np.asarray(r).copy() for r in results] + [np.asarray(t).copy() for t in tensors]


def test_programs_see_what_they_see_in_torch(seed):
    torch = pytest.importorskip("torch")
    for k in range(15):
        ours = program(flow, np.random.default_rng(seed + k), 60)
        theirs = program(torch, np.random.default_rng(seed + k), 60)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5)


def test_threads_and_loans(rng):
    """Each of some threads writes its own array and reads by the tensor, all of one storage.  Half
    of them borrow by the Python function, which native calls do not wait for.
    """
    x = flow.zeros(4, 100)
    faults: list[str] = []
    python = getattr(flow.Tensor.numpy, "twin", flow.Tensor.numpy)

    def work(k: int) -> None:
        for n in range(200):
            row = python(x[k], force=True) if k % 2 else x[k].numpy()
            row[...] = n
            y = x[k] + 1
            row[...] = -1
            if y.tolist() != [n + 1] * 100:
                faults.append(f"thread {k}, {n}: {y}")
            del row

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    x + 1
    assert not engine.lending.holds(x._ref)
