"""First uses of shared objects by several threads, for the campaign of threads.

A kind makes an object that nobody has used, is used by all threads at once, and says what must hold
afterwards whichever thread was first.
"""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
from flowvm import nn
from flowvm.eager.tensor import base_of

INTERVAL_S = 1e-6  # after which CPython lets another thread run
_sizes = itertools.count(3)  # shapes that no call has seen


class Kind(NamedTuple):
    """One kind of first use.

    make     gives a fresh object; `use(object, who)` is what thread `who` does with it
    check    (object, the threads' answers in their order): what is wrong, or ""
    objects  how many a case has
    """

    make: Callable[[], Any]
    use: Callable[[Any, int], Any]
    check: Callable[[Any, list[Any]], str]
    objects: int = 100


@contextmanager
def often() -> Iterator[None]:
    """Threads change as often as CPython can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(name: str, threads: int, wait_s: float = 60.0) -> None:
    """Let `threads` threads use fresh objects of a kind at once; AssertionError names the fault."""
    kind = KINDS[name]
    objects = [kind.make() for _ in range(kind.objects)]
    answers: list[list[Any]] = [[None] * threads for _ in objects]
    begin = threading.Barrier(threads)

    def work(who: int) -> None:
        begin.wait(wait_s)
        for one, place in zip(objects, answers, strict=True):
            try:
                place[who] = kind.use(one, who)
            except Exception as error:
                place[who] = error

    workers = [threading.Thread(target=work, args=(who,), daemon=True) for who in range(threads)]
    with often():
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(wait_s)
    assert not any(w.is_alive() for w in workers), f"{name}: a thread hangs"
    for one, result in zip(objects, answers, strict=True):
        for error in result:
            if isinstance(error, Exception):
                raise AssertionError(f"{name}: {error!r}") from error
        assert not (problem := kind.check(one, result)), f"{name}: {problem}"
    _check_memory(name, objects, answers)


def _check_memory(name: str, objects: list[Any], answers: list[list[Any]]) -> None:
    """Check that the threads' objects go, their memory is reused, and shared values stay."""
    shared = [(x, x.detach().tolist()) for x in objects if isinstance(x, flow.Tensor)]
    for result in answers:
        result.clear()
    gc.collect()
    others = [flow.full((2,), -1.0) for _ in shared]
    for x, values in shared:
        now = x.detach().tolist()
        assert now == values or values != values, f"{name}: {now}, not {values}"
    assert all(other.tolist() == [-1.0, -1.0] for other in others), f"{name}: memory of two"


# --- tensors --------------------------------------------------------------------------------------


def _tensor() -> Any:
    return flow.tensor([2.0, 3.0])


def _leaf() -> Any:
    return _tensor().requires_grad_()


def _inner() -> Any:
    return _leaf() * 1.0


def _fine(x: Any, results: list[Any]) -> str:
    return "" if x.detach().tolist() == [2.0, 3.0] else f"now {x.tolist()}"


def _same_storage(x: Any, results: list[Any]) -> str:
    own = x.storage()
    return "" if all(y.storage() is own for y in results) else "two storages"


_VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.detach(),
    lambda x: x.view(2, 1),
    lambda x: x[1:],
    lambda x: x.data,
    lambda x: x.unsqueeze(0),
    lambda x: x.expand(2, 2),
    lambda x: x.chunk(2)[1],
)


def _known_views(x: Any, results: list[Any]) -> str:
    if any(base_of(y) is not x for y in results):
        return "another base"
    x.mul_(2.0)
    lost = sum(y.grad_fn.name() != "AsStridedBackward" for y in results)
    x.mul_(0.5)
    return f"{lost} views are not told of a change" if lost else ""


def _look(x: Any, who: int) -> Any:
    return (
        lambda: x.numpy().tolist(),
        lambda: x.tolist(),
        lambda: np.asarray(x).tolist(),
        lambda: copy.deepcopy(x).tolist(),
        lambda: pickle.loads(pickle.dumps(x)).tolist(),
        lambda: repr(x) and x.tolist(),
        lambda: np.from_dlpack(x.detach()).tolist(),
        lambda: [x.data_ptr() * 0 + v for v in x.tolist()],
    )[who % 8]()


def _saved(x: Any, who: int) -> Any:
    file = io.BytesIO()
    flow.save({"x": x}, file)
    file.seek(0)
    return flow.load(file)["x"].tolist()


def _equal(x: Any, results: list[Any]) -> str:
    return "" if all(y == [2.0, 3.0] for y in results) else f"{results}"


def _hooked(x: Any, who: int) -> Any:
    gradients: list[Any] = []
    x.requires_grad_()
    x.register_hook(gradients.append)
    return gradients


def _all_hooks(x: Any, results: list[Any]) -> str:
    (x * 2.0).sum().backward()
    return (
        ""
        if all(len(gradients) == 1 for gradients in results)
        else f"{[len(s) for s in results]} calls of hooks"
    )


def _back(x: Any, who: int) -> None:
    (x * float(who + 1)).sum().backward()


def _back_through_python(x: Any, who: int) -> None:
    y = x * float(who + 1)
    y.register_hook(lambda g: None)
    y.sum().backward()


def _sums(x: Any, results: list[Any]) -> str:
    expected = [float(sum(range(1, len(results) + 1)))] * 2
    return "" if x.grad.tolist() == expected else f"a gradient is {x.grad.tolist()}, not {expected}"


def _retained(x: Any, who: int) -> Any:
    gradients: list[Any] = []
    x.retain_grad()
    x.register_hook(gradients.append)
    return gradients


def _changed(x: Any, who: int) -> None:
    x.add_(1.0)


def _counted(x: Any, results: list[Any]) -> str:
    right = x.tolist() == [2.0 + len(results), 3.0 + len(results)] and x.version == len(results)
    x.sub_(float(len(results)))
    return "" if right else f"{x.tolist()} at version {x.version} after {len(results)} changes"


def _sized() -> Any:
    return flow.nonzero(flow.tensor([0.0, 1.0, 2.0]))


def _sizes_agree(x: Any, results: list[Any]) -> str:
    return "" if all(shape == (2, 1) for shape in results) else f"{results}"


# --- operators, generators, streams ---------------------------------------------------------------


def _new_shape(size: int, who: int) -> Any:
    x = flow.ones(size, 3)
    return float((x * 2.0 + x.t().t()).relu().sum(1)[: size - 1].sum().item())


def _of_new_shape(size: int, results: list[Any]) -> str:
    return "" if all(y == 9.0 * (size - 1) for y in results) else f"{results} of {size} rows"


def _draw(generator: Any, who: int) -> Any:
    return flow.rand(2, generator=generator).tolist()


def _draws_differ(generator: Any, results: list[Any]) -> str:
    again = flow.Generator().manual_seed(5)
    expected = sorted(flow.rand(2, generator=again).tolist() for _ in results)
    return "" if sorted(results) == expected else "threads drew the same numbers, or left some out"


def _own_stream(x: Any, who: int) -> Any:
    with flow.stream(flow.Stream(f"first {who}")):
        return (x + 1.0).tolist()


def _added(x: Any, results: list[Any]) -> str:
    return "" if all(y == [3.0, 4.0] for y in results) else f"{results}"


def _new_operator() -> Any:
    name = f"first_{next(_sizes)}"
    return flow.elementwise(name, "x * y + 1", types="promote", doc="x y + 1.")


def _operate(op: Any, who: int) -> Any:
    x = flow.tensor([2.0])
    calls = (lambda: op(x, x), lambda: op(x, 2.0), lambda: op(2.0, x), lambda: op.into(x, x, 2.0))
    return calls[who % 4]().item()


def _statistics(x: Any, who: int) -> Any:
    flow.vm.stats()
    flow.compile(lambda t: t * 2.0)
    return (x + x).tolist()


# --- modules, graphs, optimizers ------------------------------------------------------------------


def _model() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


def _call_with_hook(model: Any, who: int) -> Any:
    threads: list[Any] = []
    model[who % 3].register_forward_hook(
        lambda module, args, out: threads.append(threading.get_ident())
    )
    model(flow.ones(1, 2))
    return threads, threading.get_ident()


def _own_hook_ran(model: Any, results: list[Any]) -> str:
    return "" if all(ident in threads for threads, ident in results) else "a hook was lost"


def _lazy() -> Any:
    return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d(affine=False).eval())


def _call(model: Any, who: int) -> Any:
    return model(flow.ones(2, 3)).detach().tolist()


def _alike(model: Any, results: list[Any]) -> str:
    again = _call(model, 0)
    return "" if all(y == again for y in results) else f"{results}, then {again}"


def _graph() -> Any:
    return flow.compile(lambda x: (x * 2.0 + 1.0).sum())


def _call_graph(graph: Any, who: int) -> Any:
    return [graph(flow.ones(2)).item() for _ in range(3)]


def _one_plan(graph: Any, results: list[Any]) -> str:
    right = all(y == [6.0] * 3 for y in results) and len(graph.plans) == 1
    return "" if right else f"{results}, {len(graph.plans)} plans"


def _cut_graph() -> Any:
    return flow.compile(lambda x: x * float(flow.nonzero(x).shape[0]))


def _call_cut_graph(graph: Any, who: int) -> Any:
    x = flow.tensor([3.0, float(who % 2)])
    return [graph(x).tolist() == [3.0 + 3.0 * (who % 2), 2.0 * (who % 2)] for _ in range(3)]


class _Method:
    @flow.compile
    def double(self, x: Any) -> Any:
        return x * 2.0


def _step(entry: Any, who: int) -> Any:
    parameter, optimizer = entry
    (group,) = optimizer.param_groups
    return next(state for _, _, state in optimizer._with_state([parameter], group))


def _parameter() -> Any:
    parameter = nn.Parameter(_tensor())
    parameter.grad = flow.ones(2)
    return parameter, flow.optim.Adam([parameter])


def _one_state(entry: Any, results: list[Any]) -> str:
    parameter, optimizer = entry
    return "" if all(y is optimizer.state[parameter] for y in results) else "two states"


KINDS: dict[str, Kind] = {
    "views": Kind(_tensor, lambda x, who: _VIEWS[who % len(_VIEWS)](x), _same_storage, 400),
    "detach": Kind(_tensor, lambda x, who: x.detach(), _same_storage, 400),
    "known views": Kind(_inner, lambda x, who: _VIEWS[1 + who % 2](x), _known_views),
    "facts": Kind(_tensor, lambda x, who: x.extra(), lambda x, results: _is_one(results), 400),
    "looks": Kind(_tensor, _look, _equal),
    "saves": Kind(_tensor, _saved, _equal, 10),
    "changes": Kind(_tensor, _changed, _counted, 200),
    "hooks": Kind(_tensor, _hooked, _all_hooks),
    "gradients": Kind(_leaf, _back, _sums),
    "gradients by hooks": Kind(_leaf, _back_through_python, _sums),
    "retained": Kind(_inner, _retained, lambda x, results: _all_hooks(x, results)),
    "sizes": Kind(_sized, lambda x, who: x.shape, _sizes_agree),
    "shapes": Kind(lambda: next(_sizes), _new_shape, _of_new_shape, 30),
    "draws": Kind(lambda: flow.Generator().manual_seed(5), _draw, _draws_differ, 30),
    "streams": Kind(_tensor, _own_stream, _added, 5),
    "operators": Kind(
        _new_operator,
        _operate,
        lambda op, results: "" if set(results) == {5.0} else f"{results}",
        3,
    ),
    "statistics": Kind(_tensor, _statistics, _fine, 20),
    "hooks of modules": Kind(_model, _call_with_hook, _own_hook_ran, 30),
    "lazy modules": Kind(_lazy, _call, _alike, 10),
    "graphs": Kind(_graph, _call_graph, _one_plan, 3),
    "cut graphs": Kind(
        _cut_graph,
        _call_cut_graph,
        lambda g, results: "" if all(map(all, results)) else f"{results}",
        2,
    ),
    "graphs of methods": Kind(
        _Method, lambda m, who: m.double, lambda m, results: _is_one(results)
    ),
    "states": Kind(_parameter, _step, _one_state),
}


def _is_one(results: list[Any]) -> str:
    return "" if all(y is results[0] for y in results) else "two were made"
