"""Files of every format that flowvm reads, changed as an attacker would.

A case is a kind of file and mutations of it, all plain data; a mutation is some changes at once.  A
changed file is read: either it is refused, by an ArgumentError or the like that says why, or it is
taken.  Anything else is a finding: any other exception, a crash, a hang, a shell command that ran.

Most mutations are only read, some thousands a minute: a saved graph up to where its Plan would be
compiled, a recorded run up to its columns.  One in WHOLE goes all the way: it is compiled, run and
shown, and that must end too, with a result of the right form or with one of flowvm's own errors.

Checksums are made anew after a change, so that they stop nothing.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import io
import itertools
import json
import random
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.compiler import jit
from flowvm.errors import ArgumentError, FlowError
from flowvm.nn.graph import plan_file as _loading
from flowvm.nn.graph.plan_file import checksum
from flowvm.ops.declare.registry import SAMPLES
from flowvm.profiler.run.run import Run
from tools import pickled

nn, F = flow.nn, flow.nn.functional
loading: Any = _loading  # whose compile_plan is another while graphs are only read
warnings.simplefilter("ignore")
Case = dict[str, Any]

EXTREMES: list[Any] = [
    0, -1, 1, 2, 3, 7, 64, 255, 4096, 65537, 1 << 31, -(1 << 31), (1 << 32) + 1, 1 << 40, 1 << 47,
    (1 << 63) - 1, -(1 << 63), 1 << 64, 1 << 200, 0.5, -1.5, 1e300, None, True, False, "", "x",
    "os:system", [], {}, [[]], {"type": "int"}, {"type": "os:system"}, {"tuple": []},
    {"namedtuple": "os:stat_result"}, {"namedtuple": "subprocess:Popen"}, {"number": 0},
    {"number": -1}, {"float": "nan"}, {"dtype": "float64"}, {"device": "cuda:0"}, {"size": [-1]},
    {"operator": ["recipe", "os:system", {"tuple": ["touch /tmp/flowvm-pwned"]}]},
    {"meta": [[1 << 30, 1 << 20], "float32", "cpu", [0, 0]]},
    {"meta": [[2], "float32", "cpu", [-1]]}, {"meta": [[64], "float64", "cpu", [1]]},
]  # fmt: skip
INJECTIONS = (
    "__import__('os').system('touch /tmp/flowvm-pwned')", "().__class__", "[x0 for x0 in x0]",
    "(lambda: x0)()", "x0.real", "exec(x0)", "open(x0)", "x0 if x0 else y", "9**9**9**9", "x0[0]",
    "exp", "exp(x0, x0, x0)", "exp(*x0)", "t9", "1 << 100000", "'a'", "nan", "x0 @ x0", "x0 := 1",
    "x0;x0", "x0 + 1e999", "(" * 200 + "x0" + ")" * 200, "-" * 5000 + "x0", "True", "x0 / 0",
    "x0 // 0", "pow(x0, x0)", "x0 ** 0.5", "not x0", "~x0",
)  # fmt: skip
TREES = ("set", "delete", "swap", "copy", "double", "deepen")
BYTES = ("cut", "put", "insert", "flip")
PWNED = Path("/tmp/flowvm-pwned")
MUTATIONS = 100  # of a case
BATCH = 600
PATIENCE = 170  # seconds for the mutations of a case, on a machine that does much else
WHOLE = 400  # of so many mutations one is used, not only read
SAME = (
    10  # cases behind each other that have the same file, which takes longer to make than to read
)
AMOUNTS: Counter[str] = Counter()


# --- cases ----------------------------------------------------------------------------------------


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    name = random.Random(seed // SAME).choices(list(KINDS), [k.weight for k in KINDS.values()])[0]
    return {"kind": name, **KINDS[name].mutations(rng, seed // SAME)}


def _mutations(rng: random.Random, change: Callable[[int], Iterator[list[Any]]]) -> list[Any]:
    """Return a case's mutations: each is [whether it goes all the way, change, ...]."""
    return [
        [rng.randrange(WHOLE) == 0, *change(1 + min(3, int(rng.expovariate(1.0))))]
        for _ in range(MUTATIONS)
    ]


def kind(case: Case) -> str:
    """Return the kind of a case."""
    name: str = case["kind"]
    return name


def parts(case: Case) -> list[Any]:
    """Return the parts that a case may leave out: half of its mutations, or a single one's
    changes.
    """
    mutations: list[Any] = case["mutations"]
    if len(mutations) > 1:
        half = len(mutations) // 2
        return [mutations[:half], mutations[half:]]
    return mutations[0][1:] if mutations else []


def without(case: Case, k: int) -> Case:
    """The case without its k-th part."""
    mutations = case["mutations"]
    if len(mutations) > 1:
        half = len(mutations) // 2
        return {**case, "mutations": mutations[half:] if k == 0 else mutations[:half]}
    changes = mutations[0]
    return {**case, "mutations": [changes[: k + 1] + changes[k + 2 :]]}


def check(case: Case) -> str:
    """Every mutation is refused or taken; whatever else comes out is raised."""
    with flow.vm.sequential():  # nobody to wait for
        return _checked(case)


def _checked(case: Case) -> str:
    kind = KINDS[case["kind"]]
    outcome = "nothing"
    for whole, *changes in case["mutations"]:
        AMOUNTS["mutations"] += 1
        try:
            outcome = kind.check(case, changes, whole)
        except BaseException as error:
            error.add_note(f"mutation: {json.dumps(changes)[:1000]}")
            raise
        finally:
            if PWNED.exists():
                PWNED.unlink()
                raise AssertionError(f"a file ran a shell command: {changes}")
        AMOUNTS[outcome] += 1
    return outcome if len(case["mutations"]) == 1 else "done"


# --- changes of trees and of bytes ----------------------------------------------------------------


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON tree."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for k, value in enumerate(tree):
            yield from places(value, (*path, k))


def at(tree: Any, path: Any) -> Any:
    """Return the value at a path of a tree."""
    for key in path:
        tree = tree[key]
    return tree


class Places:
    """The places of a tree that changes choose from."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.all = list(places(tree))
        # what kernels are told, which checks of forms say least of
        telling = [p for p in self.all if "attrs" in p or "meta" in p] or self.all
        self.pools = [(pool, self._leaves(pool) or pool) for pool in (self.all, telling)]

    def _leaves(self, pool: list[Any]) -> list[Any]:
        return [p for p in pool if not isinstance(at(self.tree, p), (dict, list))]

    def changes(self, rng: random.Random, count: int) -> Iterator[list[Any]]:
        """Changes: ["set", path, value], ["delete", path], ["swap", path, path], ..."""
        pool, leaves = self.pools[rng.random() < 0.3]
        for _ in range(count):
            path = list(rng.choice(leaves if rng.random() < 0.7 else pool))
            value = at(self.tree, path)
            match rng.randrange(8):
                case 0 | 1:
                    yield ["set", path, rng.choice(EXTREMES)]
                case 2 | 3 if type(value) is int:
                    near = value + rng.choice([-1, 1, 4, 8, 64, -64, 1 << 20, 1 << 36])
                    other = rng.choice([near, -value, value * 2, value * 1000, value // 2])
                    yield ["set", path, other]
                case 2 | 3 if isinstance(value, str):
                    yield ["set", path, _text_of(rng, value)]
                case 4:
                    yield ["delete", path]
                case 5:
                    yield ["swap", path, list(rng.choice(pool))]
                case 6:
                    yield ["copy", path, list(rng.choice(pool))]
                case _:
                    yield ["double", path] if rng.random() < 0.8 else ["deepen", path, 3000]


def _text_of(rng: random.Random, value: str) -> str:
    if ("x0" in value or "n0" in value) and rng.random() < 0.9:
        lines = value.split("\n")
        k = rng.randrange(len(lines))
        head, sign, _ = lines[k].partition("= ")
        lines[k] = f"{head}{sign}{rng.choice(INJECTIONS)}" if sign else rng.choice(INJECTIONS)
        return "\n".join(lines)
    cut = rng.randrange(len(value) + 1)
    return rng.choice([value[:cut], value + "\0", value[::-1], value * 2, value.upper(), "int64"])


def changed_tree(text: str, changes: list[Any]) -> Any:
    """Return the tree of a JSON text with the changes, as far as their targets still exist."""
    root = [json.loads(text)]
    for name, path, *rest in changes:
        try:
            holder, key = at(root, [0, *path][:-1]), [0, *path][-1]
            value = holder[key]
            if name == "set":
                holder[key] = copied(rest[0])  # it may be put where it lies already
            elif name == "delete":
                del holder[key]
            elif name == "swap":
                other, place = at(root, [0, *rest[0]][:-1]), [0, *rest[0]][-1]
                # copies: one may lie in the other
                holder[key], other[place] = copied(other[place]), copied(value)
            elif name == "copy":
                holder[key] = copied(at(root, [0, *rest[0]]))
            elif name == "double":
                twice = [value, copied(value)]
                holder[key] = twice[0] + twice[1] if isinstance(value, (list, str)) else twice
            elif name == "deepen":
                holder[key] = f"{DEEP}{rest[0]}"
        except (LookupError, TypeError, ValueError, RecursionError):
            continue
    return root[0] if root else None


def copied(tree: Any) -> Any:
    """Return a copy of a JSON value."""
    return json.loads(json.dumps(tree))


DEEP = "nested so deep that json cannot write it: "


def text_of(tree: Any) -> str:
    """The tree as JSON, NaN and Infinity too."""
    text = json.dumps(tree)
    return re.sub(f'"{DEEP}(\\d+)"', lambda match: "[" * int(match[1]) + "]" * int(match[1]), text)


def byte_changes(rng: random.Random, size: int, count: int) -> Iterator[list[Any]]:
    """Changes of a file's bytes."""
    for _ in range(count):
        where = rng.choice([rng.randrange(size), rng.randrange(min(size, 200))])
        match rng.randrange(4):
            case 0:
                yield ["cut", where]
            case 1:
                yield ["put", where, rng.randbytes(rng.choice([1, 8, 100])).hex()]
            case 2:
                yield ["insert", where, rng.randbytes(rng.choice([1, 8, 100])).hex()]
            case _:
                yield ["flip", where, 1 << rng.randrange(8)]


def changed_bytes(data: bytes, changes: list[Any]) -> bytes:
    """The bytes with the changes."""
    damaged = bytearray(data)
    for name, where, *rest in changes:
        if name == "cut":
            del damaged[where:]
        elif name == "put":
            damaged[where : where + len(rest[0]) // 2] = bytes.fromhex(rest[0])
        elif name == "insert":
            damaged[where:where] = bytes.fromhex(rest[0])
        elif where < len(damaged):
            damaged[where] ^= rest[0]
    return bytes(damaged)


# --- saved graphs ---------------------------------------------------------------------------------


class _Graph(nn.Graph):
    def __init__(self, function: Callable[..., Any], model: Any, step: bool) -> None:
        super().__init__()
        self.function, self.model = function, model
        if step:
            self.add_optimizer(flow.optim.AdamW(model.parameters(), lr=0.01))
        self.step = step

    def build(self, x: Any) -> Any:
        outputs = self.function(self.model, x)
        if self.step:
            outputs.backward()
        return outputs


def _elementwise(model: Any, x: Any) -> Any:
    y = (x * 2 + 1).tanh() * x.sigmoid() - (x > 0).to(flow.float32)
    return y, (y.int() % 3 == 1), x.half().exp()


def _layers(model: Any, x: Any) -> Any:
    y = F.gelu(model(x)).softmax(1)
    return {"y": y, "best": (y.argmax(1), 2.5), "rows": F.layer_norm(y, (8,))}


def _moves(model: Any, x: Any) -> Any:
    z = flow.cat([x[:, :3] * 2, flow.zeros(8, 2), x[:, 3:].contiguous()], 1)
    return (
        F.pad(z, (1, 2)), x.roll(3, 1), x.t().cumsum(0), x.sort(1), x.topk(2, 1),
        flow.tril(x, -1), x.sum((0,)), x.std(1), x.amax(1), F.embedding(flow.arange(3), x),
        x.index_select(1, flow.arange(3)), flow.gather(x, 1, x.argsort(1)), x.logcumsumexp(1),
        flow.searchsorted(flow.arange(4).float(), x), F.nll_loss(x, flow.arange(8)),
    )  # fmt: skip


def _rows(model: Any, x: Any) -> Any:
    y = x.repeat(64, 64)
    z = ((y * 0.5 + y.amax(1, keepdim=True)) - 1).softmax(1)
    return (z * 2 + y).sum(1), F.dropout(x, 0.4)


def _loss(model: Any, x: Any) -> Any:
    return F.cross_entropy(model(x), flow.arange(8) % 8) + model(x).pow(2).mean()


GRAPHS: dict[str, tuple[Callable[..., Any], bool]] = {
    "elementwise": (_elementwise, False),
    "layers": (_layers, False),
    "moves": (_moves, False),
    "rows": (_rows, False),
    "step": (_loss, True),
}


class _ReadOnly(BaseException):
    """A saved graph was read, and would be compiled now."""


def _read(graph: Any, state: Any, text: str) -> str:
    """Return "refused" if a saved graph with this text is refused before its Plan is compiled."""
    changed = {**state, "plans": text, "sha256": checksum(text, state["constants"])}
    compiled = loading.compile_plan
    loading.compile_plan = _stop
    try:
        graph.load_runtime_state_dict(changed)
    except ArgumentError:
        return "refused"
    except _ReadOnly:
        return "read"
    finally:
        loading.compile_plan = compiled
    return "taken"


def _stop(logical: Any) -> Any:
    logical.check()
    raise _ReadOnly


class GraphFiles:
    """Saved graphs: changes are of the JSON of one Plan, and of its key."""

    weight = 2

    def __init__(self, name: str) -> None:
        self.name = name

    def _new(self) -> _Graph:
        function, step = GRAPHS[self.name]
        flow.manual_seed(0)
        return _Graph(function, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), step)

    @functools.cached_property
    def _saved(self) -> tuple[dict[str, Any], Any, list[Any]]:
        graph = self._new()
        for _ in range(1 + graph.step):
            outputs = graph(self._x())
        kinds = [(t.shape, t.dtype) for t in _tensors(outputs)]
        return graph.runtime_state_dict(), graph.state_dict(), kinds

    @functools.cached_property
    def _places(self) -> Places:
        return Places(json.loads(self._saved[0]["plans"]))

    def _x(self) -> Any:
        return flow.linspace(-2, 2, 64).reshape(8, 8)

    def mutations(self, rng: random.Random, number: int) -> Case:
        """Changes of the JSON text's tree, most of them of its graph."""
        return {"mutations": _mutations(rng, lambda count: self._places.changes(rng, count))}

    def _fresh(self) -> _Graph:
        graph = self._new()
        if graph.step:
            graph(self._x())
            graph._plans.clear()
            graph.load_state_dict(self._saved[1])
        return graph

    @functools.cached_property
    def _reader(self) -> _Graph:
        return self._fresh()

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Read; if it is to go all the way, load and run."""
        state, _, kinds = self._saved
        text = text_of(changed_tree(state["plans"], changes))
        if not whole:
            outcome = _read(self._reader, state, text)
            assert outcome != "taken" or not self._reader.plans, "loaded, and not compiled"
            return outcome
        changed = {**state, "plans": text, "sha256": checksum(text, state["constants"])}
        graph = self._fresh()
        try:
            graph.load_runtime_state_dict(changed)
        except ArgumentError:
            assert not graph.plans, "a Plan of a file that was refused"
            return "refused"
        try:
            for _ in range(2):
                loaded = _tensors(graph(self._x()))
                for t in loaded:
                    t.numpy() if t.dtype is not flow.bfloat16 else t.float().numpy()
        except (FlowError, ArithmeticError, OverflowError):
            return "used, with an error"
        same = [(t.shape, t.dtype) for t in loaded] == kinds
        return "used" if same else "used, otherwise"


class OpFiles:
    """Saved graphs of one call each of every operator's samples, and of its gradients: changes are
    of attributes and metas.
    """

    weight = 60

    @functools.cached_property
    def _samples(self) -> list[tuple[Any, Any]]:
        rng = np.random.default_rng(0)
        return [(s, sample) for s in SAMPLES for sample in itertools.islice(s.generate(rng), 3)]

    def mutations(self, rng: random.Random, number: int) -> Case:
        """A sample's number, and changes of its Plan's nodes."""
        number %= len(self._samples)
        try:
            places = self._saved(number)[3]
        except (FlowError, TypeError):
            return {"sample": number, "mutations": []}
        return {
            "sample": number,
            "mutations": _mutations(rng, lambda count: places.changes(rng, count)),
        }

    @functools.lru_cache(maxsize=4)  # noqa: B019  there is one of these
    def _saved(self, number: int) -> tuple[Any, Any, Any, Places, str, str]:
        samples, sample = self._samples[number]
        is_array = [isinstance(a, np.ndarray) for a in sample.args]
        tensors = [flow.from_numpy(a.copy()) for a in sample.args if isinstance(a, np.ndarray)]

        def function(*xs: Any) -> Any:
            arrays = iter(xs)
            args = [next(arrays) if t else a for t, a in zip(is_array, sample.args, strict=True)]
            return samples.function(*args, **sample.kwargs)

        graph = flow.compile(_with_gradients(function) if samples.grad else function)
        graph(*tensors)
        state = graph.runtime_state_dict()
        plans = json.loads(state["plans"])
        nodes = plans[0]["graph"]["nodes"]
        plans[0]["graph"]["nodes"] = NODES
        return graph, state, tensors, Places(nodes), json.dumps(nodes), json.dumps(plans)

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Read; if it is to go all the way, load and run."""
        graph, state, tensors, _, nodes, around = self._saved(case["sample"])
        text = around.replace(f'"{NODES}"', text_of(changed_tree(nodes, changes)))
        graph._plans.clear()
        graph._replay = None
        if not whole:
            return _read(graph, state, text)
        try:
            graph.load_runtime_state_dict(
                {**state, "plans": text, "sha256": checksum(text, state["constants"])}
            )
        except ArgumentError:
            return "refused"
        try:
            for t in _tensors(graph(*tensors)):
                t.numpy()
        except (FlowError, ArithmeticError, OverflowError):
            return "used, with an error"
        return "used"


NODES = "the nodes stand here"


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and the gradients of all floats that it gives by all that it is given."""

    def both(*xs: Any) -> Any:
        with flow.enable_grad():
            leaves = [x.detach().requires_grad_(x.dtype.is_floating_point) for x in xs]
            outputs = function(*leaves)
            ends = [t.abs().pow(2).sum() for t in _tensors(outputs) if t.requires_grad]
            inputs = [x for x in leaves if x.requires_grad]
            gradients = flow.autograd.grad(ends, inputs, allow_unused=True) if ends else ()
        return outputs, [g for g in gradients if g is not None]

    return both


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, flow.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


# --- flow.save ------------------------------------------------------------------------------------


class TensorFiles:
    """Files of flow.save: changes of the header, of the structure in it, or of any byte."""

    weight = 20

    @functools.cached_property
    def _data(self) -> bytes:
        file = io.BytesIO()
        flow.save(
            {
                "model": {"w": flow.ones(3, 4), "b": flow.zeros(4).half(), "n": flow.arange(5)},
                "list": [1, 2.5, None, (flow.ones(2).bfloat16(), "x")], 3: flow.float32,
                "inf": float("inf"),
            },
            file,
        )  # fmt: skip
        return file.getvalue()

    @functools.cached_property
    def _apart(self) -> tuple[str, bytes, Places]:
        size = int.from_bytes(self._data[:8], "little")
        header = json.loads(self._data[8 : 8 + size])
        header["__metadata__"]["flowvm"] = json.loads(header["__metadata__"]["flowvm"])
        return json.dumps(header), self._data[8 + size :], Places(header)

    def mutations(self, rng: random.Random, number: int) -> Case:
        """See the class."""

        def change(count: int) -> Iterator[list[Any]]:
            if rng.random() < 0.3:
                return byte_changes(rng, len(self._data), count)
            return self._apart[2].changes(rng, count)

        return {"mutations": _mutations(rng, change)}

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Load, and look at the result."""
        if changes and changes[0][0] in BYTES:
            data = changed_bytes(self._data, changes)
        else:
            text, rest, _ = self._apart
            header = changed_tree(text, changes)
            if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
                inner = header["__metadata__"]
                if "flowvm" in inner:
                    inner["flowvm"] = text_of(inner["flowvm"])
            head = text_of(header).encode()
            data = len(head).to_bytes(8, "little") + head + rest
        try:
            loaded = flow.load(io.BytesIO(data))
        except FlowError:
            return "refused"
        for t in _tensors(loaded):
            if whole:
                t.float().sum().item()
            else:
                t.numpy() if t.dtype is not flow.bfloat16 else t.float()
        return "used"


# --- PyTorch's files, folders of shards -----------------------------------------------------------


class TorchFiles:
    """PyTorch's files, zips or pickles in a row: changes of opcodes, or of any byte."""

    weight = 20

    def __init__(self, form: Callable[[bytes], bytes]) -> None:
        self.form = form
        view = pickled.tensor((2,), (2,), 1)
        state = [pickled.text("w"), pickled.tensor() + pickled.put(0)]
        state += [pickled.text("tied"), pickled.get(0), pickled.text("view"), view]
        items = (pickled.row(*state[k : k + 2]) for k in (0, 2, 4))
        self.code = pickled.tokens(
            pickled.mapping(
                pickled.text("model"),
                pickled.call("collections", "OrderedDict", pickled.listed(*items)),
                pickled.text("step"),
                pickled.number(3),
                pickled.row(pickled.number(1), pickled.text("b")),
                pickled.call("builtins", "set", pickled.listed(pickled.number(7))),
            )
        )

    def mutations(self, rng: random.Random, number: int) -> Case:
        """See the class."""
        size = len(self.form(b"".join(self.code)))

        def change(count: int) -> Iterator[list[Any]]:
            if rng.random() < 0.3:
                return byte_changes(rng, size, count)
            return pickled.changes(rng, len(self.code), count)

        return {"mutations": _mutations(rng, change)}

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Load, go through the result, and write to it."""
        if changes and changes[0][0] in BYTES:
            data = changed_bytes(self.form(b"".join(self.code)), changes)
        else:
            data = self.form(pickled.changed(self.code, changes))
        try:
            loaded = flow.load(io.BytesIO(data))
        except ArgumentError:
            return "refused"
        if whole:
            for t in _tensors(loaded):
                t.float().sum().item()
        assert repr(loaded) is not None
        copy.deepcopy(loaded)
        return "used"


class ShardFiles:
    """Folders of global tensors: changes of the index."""

    weight = 5

    @functools.cached_property
    def _folder(self) -> Path:
        self._owner = tempfile.TemporaryDirectory()
        folder = Path(self._owner.name)
        values = {"a": flow.ones(4, 2), "b": flow.arange(3)}
        for k in range(2):
            flow.save(
                {"a": values["a"][2 * k : 2 * k + 2], "b": values["b"]}, folder / self._name(k)
            )
        return folder

    def _name(self, rank: int) -> str:
        return f"0-0000{rank}.safetensors"

    @functools.cached_property
    def _index(self) -> tuple[str, Places]:
        halves = [{"file": self._name(k), "bounds": [[2 * k, 2 * k + 2], [0, 2]]} for k in range(2)]
        tensors = {
            "a": {"shape": [4, 2], "dtype": "float32", "sbp": [0], "parts": halves},
            "b": {
                "shape": [3], "dtype": "int64",
                "parts": [{"file": self._name(0), "bounds": [[0, 3]]}],
            },
        }  # fmt: skip
        tree = {"version": 1, "tree": {"a": {"$tensor": "a"}, "b": [{"$tensor": "b"}, 3]}}
        index = {"format": "flowvm shards 1", "tree": tree, "tensors": tensors}
        return json.dumps(index), Places(index)

    def mutations(self, rng: random.Random, number: int) -> Case:
        """See the class."""
        return {"mutations": _mutations(rng, lambda count: self._index[1].changes(rng, count))}

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Load, and look at the result."""
        text = text_of(changed_tree(self._index[0], changes))
        (self._folder / "index.json").write_text(text)
        try:
            loaded = flow.load(self._folder)
        except FlowError:
            return "refused"
        for t in _tensors(loaded):
            t.float().sum().item()
        return "used"


# --- recorded runs --------------------------------------------------------------------------------


class RunFiles:
    """Profiles: changes of the header's tree, of the columns, or of the archive's bytes."""

    weight = 3

    @functools.cached_property
    def _data(self) -> bytes:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        with flow.profiler.profile() as profile:
            for _ in range(3):
                loss = F.cross_entropy(model(flow.ones(8, 8)), flow.arange(8) % 3)
                loss.backward()
            loss.item()
        profile.save(self._folder / "run")
        return (self._folder / "run").read_bytes()

    @functools.cached_property
    def _folder(self) -> Path:
        self._owner = tempfile.TemporaryDirectory()
        return Path(self._owner.name)

    @functools.cached_property
    def _columns(self) -> tuple[str, Places, dict[str, Any]]:
        with np.load(io.BytesIO(self._data)) as file:
            columns = {name: file[name] for name in file.files}
        header = str(columns.pop("header"))
        return header, Places(json.loads(header)), columns

    def mutations(self, rng: random.Random, number: int) -> Case:
        """See the class."""
        return {"mutations": _mutations(rng, lambda count: self._changes(rng, count))}

    def _changes(self, rng: random.Random, count: int) -> Iterator[list[Any]]:
        _, places, columns = self._columns
        for _ in range(count):
            match rng.randrange(4):
                case 0:
                    yield from places.changes(rng, 1)
                case 1:
                    yield from byte_changes(rng, len(self._data), 1)
                case _:
                    name = rng.choice(list(columns))
                    how = rng.choice(["value", "value", "value", "cut", "dtype", "object", "gone"])
                    value = rng.choice(
                        [-1, -2, 0, 1, 5, 1000, 1 << 15, 1 << 31, 1 << 62, -(1 << 62)]
                    )
                    yield ["column", name, how, rng.randrange(1 << 20), value]

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Load; if it is to go all the way, show everything."""
        path = self._folder / "run.flowtrace"
        path.write_bytes(self._changed(changes))
        try:
            run = Run.load(path)
        except ArgumentError:
            return "refused"
        if not whole:
            assert len(run) >= 0
            return "read"
        try:
            profile = flow.profiler.load(path)
            shown = [profile.summary(), profile.timeline(), profile.memory()]
            text = "".join(map(str, shown))
            profile.export(self._folder / "trace.json")
        except FlowError:
            return "used, with an error"
        assert text
        return "used"

    def _changed(self, changes: list[Any]) -> bytes:
        trees = [c for c in changes if c[0] in TREES]
        among = [c for c in changes if c[0] == "column"]
        data = self._data
        if trees or among:
            text, _, columns = self._columns
            columns = dict(columns)
            for change in among:
                _change_column(columns, *change[1:])
            file = io.BytesIO()
            header = text_of(changed_tree(text, trees)) if trees else text
            np.savez(file, header=np.array(header), **columns)
            data = file.getvalue()
        return changed_bytes(data, [c for c in changes if c[0] in BYTES])


def _change_column(columns: dict[str, Any], name: str, how: str, place: int, value: int) -> None:
    column = columns.get(name)
    if column is None or column.dtype.kind == "O":
        return
    if how == "gone":
        del columns[name]
    elif how == "value" and column.size:
        column = columns[name] = column.copy()
        kind = np.iinfo(column.dtype) if column.dtype.kind in "iu" else None
        number = max(kind.min, min(kind.max, value)) if kind else int(bool(value))
        column.flat[place % column.size] = number
    elif how == "cut":
        columns[name] = column[: place % (len(column) + 1)]
    elif how == "dtype":
        columns[name] = column.astype([np.float64, np.int64, np.uint8, "S3"][place % 4])
    elif how == "object":
        columns[name] = np.array([object] * len(column), dtype=object)


# --- entries of the cache -------------------------------------------------------------------------


def triple(x: int) -> int:
    """Return three times `x`: a function to compile."""
    return 3 * x


class CacheFiles:
    """Entries of the kernel cache: any byte, and the line of JSON with its checksum made anew."""

    weight = 4

    @functools.cached_property
    def _entry(self) -> tuple[Path, str, bytes]:
        self._owner = tempfile.TemporaryDirectory()
        folder = Path(self._owner.name)
        jit.set_cache_dir(folder)
        try:
            jit.native(triple, "int64(int64)", facts="campaign")
        finally:
            jit.set_cache_dir(None)
        (entry,) = folder.glob("*.o")
        return folder, entry.stem, entry.read_bytes()

    def mutations(self, rng: random.Random, number: int) -> Case:
        """See the class."""
        places = Places({"imports": ["memcpy", "exp"]})

        def change(count: int) -> Iterator[list[Any]]:
            if rng.random() < 0.5:
                return byte_changes(rng, 2000, count)
            return places.changes(rng, count)

        return {"mutations": _mutations(rng, change)}

    def check(self, case: Case, changes: list[Any], whole: bool) -> str:
        """Read the entry: it is missing, or unchanged."""
        folder, digest, good = self._entry
        if changes and changes[0][0] in BYTES:
            data = changed_bytes(good, changes)
        else:
            _, _, code = good[40:].partition(b"\n")
            head = text_of(changed_tree('{"imports": ["memcpy", "exp"]}', changes)).encode()
            body = head + b"\n" + code
            data = good[:8] + hashlib.sha256(body).digest() + body
        (folder / f"{digest}.o").write_bytes(data)
        jit.set_cache_dir(folder)
        try:
            address = jit._from_cache(digest, jit.cache_dir())
        finally:
            jit.set_cache_dir(None)
        if address is None:
            return "refused"
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
        assert function(14) == 42
        return "used"


KINDS: dict[str, Any] = {
    **{f"graph {name}": GraphFiles(name) for name in GRAPHS},
    "graph of an op": OpFiles(),
    "tensors": TensorFiles(),
    "torch": TorchFiles(pickled.zipped),
    "old torch": TorchFiles(pickled.legacy),
    "shards": ShardFiles(),
    "run": RunFiles(),
    "cache": CacheFiles(),
}
