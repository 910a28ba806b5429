"""Random programs that read Python values in random ways, while others change them between calls.

A program is source text: some *places*, each a way to keep a number and to read it (an attribute, a
slot, a property, a closure, a default, an item, a partial's keyword, the environment, ...), and a
function of a tensor that reads some of them in expressions, branches, loops and functions inside,
and writes to some.  It is made twice, once to run eagerly and once as a graph (`flow.compile`, an
nn.Graph, a Module).  Both are changed alike and called alike; then every result is the same number,
and so is what is left in every place.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import flowvm as flow
from tools.campaign._steps import left_out, ranges

AMOUNTS: Counter[str] = Counter()
BATCH = 60

# name -> (what makes it, how it is read, how it is set to v); `N` stands for the place's number
PLACES: dict[str, tuple[str, str, str]] = {
    "attribute": ("o_N = Plain(k=2)", "o_N.k", "o_N.k = v"),
    "nested": ("o_N = Plain(a=Plain(k=2))", "o_N.a.k", "o_N.a.k = v"),
    "replaced": ("o_N = Plain(a=Plain(k=2))", "o_N.a.k", "o_N.a = Plain(k=v)"),
    "of the class": ("class C_N: k = 2\no_N = C_N()", "o_N.k", "C_N.k = v"),
    "of a base": ("class B_N: k = 2\nclass C_N(B_N): pass\no_N = C_N()", "o_N.k", "B_N.k = v"),
    "over the class": ("class C_N: k = 2\no_N = C_N()", "o_N.k", "o_N.k = v"),
    "of a class by its name": ("class C_N: k = 2", "C_N.k", "C_N.k = v"),
    "class": (
        "class C_N:\n  def f(self): return 2\no_N = C_N()",
        "o_N.f()",
        "o_N.__class__ = type('D', (), {'f': lambda self: v})",
    ),
    "slot": ("class C_N: __slots__ = ('k',)\no_N = C_N()\no_N.k = 2", "o_N.k", "o_N.k = v"),
    "getattr": ("o_N = Plain()", "getattr(o_N, 'k', 2)", "o_N.k = v"),
    "property": (
        "class C_N:\n  own = 2\n  @property\n  def k(self): return self.own\no_N = C_N()",
        "o_N.k",
        "o_N.own = v",
    ),
    "property itself": (
        "class C_N:\n  k = property(lambda self: 2)\no_N = C_N()",
        "o_N.k",
        "C_N.k = property(lambda self: v)",
    ),
    "__getattr__": (
        "class C_N:\n  def __getattr__(self, n): return T_N[n]\nT_N = {'k': 2}\no_N = C_N()",
        "o_N.k",
        "T_N['k'] = v",
    ),
    "static method": (
        "class C_N:\n  f = staticmethod(lambda: 2)\no_N = C_N()",
        "o_N.f()",
        "C_N.f = staticmethod(lambda: v)",
    ),
    "method of the instance": (
        "class C_N:\n  def f(self): return 2\no_N = C_N()",
        "o_N.f()",
        "o_N.f = lambda: v",
    ),
    "__call__": (
        "class C_N:\n  def __call__(self): return 2\no_N = C_N()",
        "o_N()",
        "C_N.__call__ = lambda self: v",
    ),
    "__code__": (
        "def f_N(): return 2",
        "f_N()",
        "f_N.__code__ = eval('lambda: ' + repr(v)).__code__",
    ),
    "default": ("def f_N(k=2): return k", "f_N()", "f_N.__defaults__ = (v,)"),
    "default that changes": ("def f_N(k=[2]): return k[0]", "f_N()", "f_N.__defaults__[0][0] = v"),
    "keyword default": ("def f_N(*, k=2): return k", "f_N()", "f_N.__kwdefaults__['k'] = v"),
    "function": ("f_N = lambda: 2", "f_N()", "global f_N\nf_N = lambda: v"),
    "partial": (
        "p_N = functools.partial(lambda k: k, k=2)",
        "p_N()",
        "p_N.keywords['k'] = v",
    ),
    "global": ("k_N = 2", "k_N", "global k_N\nk_N = v"),
    "closure": (
        "def make_N():\n  k = 2\n  def get(): return k\n  def put(v):\n    nonlocal k\n    k = v\n"
        "  return get, put\nget_N, put_N = make_N()",
        "get_N()",
        "put_N(v)",
    ),
    "module": ("m_N = types.ModuleType('m')\nm_N.k = 2", "m_N.k", "m_N.k = v"),
    "environment": (
        "E_N = f'FLOWVM_CAMPAIGN_{tag}_N'\nos.environ[E_N] = '2'",
        "int(os.environ[E_N])",
        "os.environ[E_N] = str(v)",
    ),
    "getenv": (
        "E_N = f'FLOWVM_CAMPAIGN_{tag}_N'\nos.environ.pop(E_N, None)",
        "int(os.getenv(E_N, '2'))",
        "os.environ[E_N] = str(v)",
    ),
    "context": ("V_N = contextvars.ContextVar('V', default=2)", "V_N.get()", "V_N.set(v)"),
    "dict": ("d_N = {'k': 2}", "d_N['k']", "d_N['k'] = v"),
    "dict.get": ("d_N = {}", "d_N.get('k', 2)", "d_N['k'] = v"),
    "dict values": ("d_N = {'a': 1, 'k': 1}", "sum(d_N.values())", "d_N['k'] = v - 1"),
    "dict in a dict": ("d_N = {'a': {'k': 2}}", "d_N['a']['k']", "d_N['a']['k'] = v"),
    "list": ("l_N = [0, 2]", "l_N[1]", "l_N[1] = v"),
    "sum of a list": ("l_N = [1, 1]", "sum(l_N)", "l_N[0] = v - 1"),
    "length": ("l_N = [0, 0]", "len(l_N)", "l_N[:] = [0] * abs(v)"),
    "loop": (
        "l_N = [Plain(k=1), Plain(k=1)]",
        "sum([o.k for o in l_N])",
        "l_N[1].k = v - 1",
    ),
    "set": ("s_N = {2}", "max(s_N)", "s_N.clear(); s_N.add(v)"),
    "deque": ("q_N = collections.deque([2])", "q_N[-1]", "q_N.append(v)"),
    "NumPy": ("a_N = np.array([2, 3])", "int(a_N[0])", "a_N[0] = v"),
    "NumPy sum": ("a_N = np.array([1, 1])", "int(a_N.sum())", "a_N[1] = v - 1"),
    "getter": ("o_N = Plain(k=2)\ng_N = operator.attrgetter('k')", "g_N(o_N)", "o_N.k = v"),
    "namespace": ("o_N = types.SimpleNamespace(k=2)", "o_N.k", "o_N.k = v"),
    "thread": ("o_N = threading.local()\no_N.k = 2", "o_N.k", "o_N.k = v"),
    "Module": ("M_N = Net()\nM_N.k = 2", "M_N.k", "M_N.k = v"),
    "Module past its setattr": ("M_N = Net()\nM_N.k = 2", "M_N.k", "M_N.__dict__['k'] = v"),
    "class of a Module": ("class N_N(nn.Module): k = 2\nM_N = N_N()", "M_N.k", "N_N.k = v"),
}  # fmt: skip
# ways to use what was read: `R` stands for it
USES = (
    "y = y + R",
    "y = y * R",
    "if R > 3: y = y - 1",
    "y = y + (5 if R == 2 else 1)",
    "for _ in range(min(abs(R), 4)): y = y + 1",
    "y = (lambda z: z + R)(y)",
    "y = y + sum([R for _ in range(2)])",
    "y = helper(y, R)",
    "y = y + max(0, R)",
    "try:\n    y = y + R\n  finally:\n    y = y + 1",
    "with region(R) as r: y = y + r",
    "y = y + flow.tensor([R, 1, 2])",
)
WAYS = ("compile", "Graph", "Module")
HEAD = """
import collections, contextlib, contextvars, functools, operator, os, threading, types
import numpy as np
import flowvm as flow
from flowvm import nn
class Plain:
  def __init__(self, **named): self.__dict__.update(named)
class Net(nn.Module): pass
def helper(y, r): return y + r if r % 2 else y - r
@contextlib.contextmanager
def region(r): yield r + 1
"""


def case(seed: int) -> dict[str, Any]:
    """See `tools.campaign.__main__`."""
    rng = random.Random(seed)
    places = [rng.choice(list(PLACES)) for _ in range(rng.randrange(1, 7))]
    steps = []
    for _ in range(rng.randrange(1, 9)):
        at = rng.randrange(len(places))
        if rng.random() < 0.08:
            steps.append(["write", at, rng.randrange(-4, 9)])
        elif rng.random() < 0.08:
            steps.append(["count", at, 0])
        else:
            steps.append(["use", at, rng.randrange(len(USES))])
    calls = []
    for _ in range(rng.randrange(3, 10)):
        changes = [
            [rng.randrange(len(places)), rng.randrange(-4, 9)]
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]
        calls.append(changes)
    return {"seed": seed, "places": places, "steps": steps, "calls": calls, "way": rng.choice(WAYS)}


def kind(case: Any) -> str:
    """See `tools.campaign.__main__`."""
    return str(case["way"])


def parts(case: Any) -> list[Any]:
    """Runs of steps and of calls."""
    return [("steps", *r) for r in ranges(len(case["steps"]))] + [
        ("calls", *r) for r in ranges(len(case["calls"]))
    ]


def without(case: Any, k: int) -> Any:
    """The case without one of them."""
    what, first, last = parts(case)[k]
    return {**case, what: left_out(case[what], first, last)}


def source(case: Any, tag: str) -> str:
    """The program's text; `tag` tells its twin's environment from its own."""
    lines = [HEAD, f"tag = {tag!r}"]
    for n, name in enumerate(case["places"]):
        definition, read, put = (text.replace("_N", f"_{n}") for text in PLACES[name])
        body = "\n".join(f"  {line}" for line in put.splitlines())
        lines += [definition, f"def change_{n}(v):\n{body}", f"def state_{n}(): return {read}"]
    lines.append("def function(x):\n  y = x + 0")
    for what, at, which in case["steps"]:
        read = PLACES[case["places"][at]][1].replace("_N", f"_{at}")
        if what == "write":
            lines.append(f"  change_{at}({which})")
        elif what == "count":
            lines.append(f"  change_{at}({read} + 1)")
        else:
            lines.append("  " + USES[which].replace("R", f"({read})"))
    return "\n".join([*lines, "  return y", ""])


class Twin:
    """A program, run eagerly or as a graph."""

    def __init__(self, case: Any, tag: str) -> None:
        self.names: dict[str, Any] = {"__name__": f"program_{tag}"}
        text = source(case, tag)
        exec(compile(text, f"/program/{tag}.py", "exec"), self.names)
        self.function = self.names["function"]

    def change(self, at: int, value: int) -> None:
        """Set the value in a place."""
        self.names[f"change_{at}"](value)

    def state(self, count: int) -> list[Any]:
        """The values in all places."""
        return [self.names[f"state_{n}"]() for n in range(count)]


def graph_of(function: Any, way: str) -> Any:
    """A function as a graph of some kind."""
    if way == "compile":
        return flow.compile(function)
    if way == "Module":

        class Calling(flow.nn.Module):
            def forward(self, x: Any) -> Any:
                return function(x)

        return flow.compile(Calling())

    class Around(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return function(x)

    return Around()


def check(case: Any) -> str:
    """Compare the twins, eager and replayed, call by call."""
    warnings.simplefilter("ignore", flow.errors.RecaptureWarning)
    warnings.simplefilter("error", flow.errors.CaptureWarning)
    count = len(case["places"])
    eager, replayed = Twin(case, f"{case['seed']}e"), Twin(case, f"{case['seed']}r")
    graph = graph_of(replayed.function, case["way"])
    for number, changes in enumerate(case["calls"]):
        for at, value in changes:
            eager.change(at, value)
            replayed.change(at, value)
        x = flow.tensor([1, 2, 3]) + number
        expected, actual = eager.function(x).tolist(), graph(x).tolist()
        assert actual == expected, f"call {number}: {actual}, not {expected}"
        assert replayed.state(count) == eager.state(count), f"call {number} left another state"
    AMOUNTS["calls"] += len(case["calls"])
    AMOUNTS["captures"] += len(graph.plans)
    AMOUNTS["changes"] += sum(map(len, case["calls"]))
    return "right"
