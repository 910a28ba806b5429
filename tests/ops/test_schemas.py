"""Every overload of PyTorch's schemas whose name flowvm has: its calls are taken.

A call is made with arguments of the schema's types on the device "meta", by position, by keyword,
with what has no default, and mixed.  PyTorch itself is asked first: a call that it refuses says
nothing.  What it takes, flowvm takes: it may find shapes or dtypes wrong, as PyTorch may, but not
the arguments' names, number and kinds.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import DTypeError

torch = pytest.importorskip("torch")

SPACES = ("", "special_", "linalg_", "fft_")
# schemas that are no functions of their own in Python, or whose call would change this process
APART = {
    "device.with_index", "einsum.sublist", "from_file", "manual_seed", "save", "seed", "set_",
    "set_grad_enabled", "split.str", "stft",
}  # fmt: skip
WORDS = {
    "UPLO": "L", "approximate": "none", "driver": "gels", "indexing": "ij",
    "interpolation": "linear", "mode": "reduced", "nonlinearity": "tanh", "norm": "ortho",
    "ord": "fro", "pad_mode": "reflect", "padding": "same", "reduce": "sum",
    "rounding_mode": "floor", "side": "left",
}  # fmt: skip
NUMBERS = {"high", "low", "start"}  # tensors that stand for an int


class NoValueError(Exception):
    """No value of this type is known here."""


def value(lib: Any, argument: Any) -> Any:
    """A value of an argument's type."""
    name, kind = argument.name, str(argument.real_type)
    kind = kind.removeprefix("Optional[").removesuffix("]") if "Optional[" in kind[:9] else kind
    if kind == "Tensor":
        if name in NUMBERS:
            return lib.tensor(1)
        dtype = {"index": lib.int64, "indices": lib.int64, "condition": lib.bool, "mask": lib.bool}
        return lib.ones((2, 2), device="meta", dtype=dtype.get(name, lib.float32))
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        dtype = lib.int64 if name == "indices" else lib.float32
        return [lib.ones((2, 2), device="meta", dtype=dtype) for _ in range(2)]
    if kind in ("List[int]", "List[SymInt]"):
        count = argument.N or 2
        return list(range(count)) if "dim" in name else [2] * count
    simple = {
        "int": 1, "SymInt": 1, "float": 1.0, "number": 1, "Scalar": 1, "bool": False,
        "str": WORDS.get(name, "none"), "ScalarType": lib.float32, "Device": lib.device("meta"),
        "Layout": lib.strided, "MemoryFormat": lib.contiguous_format, "Generator": None,
        "List[float]": [1.0, 1.0], "List[bool]": [True, True], "List[number]": [1.0, 1.0],
    }  # fmt: skip
    if kind not in simple:
        raise NoValueError(kind)
    return simple[kind]


def places(name: str) -> Iterator[tuple[str, Any, Any]]:
    """PyTorch's callables of a schema's name and flowvm's, if both are there."""
    for space in SPACES:
        if name.startswith(space):
            inner = space.rstrip("_")
            theirs = getattr(torch, inner) if inner else torch
            ours = getattr(flow, inner) if inner else flow
            yield f"{inner or 'torch'}.{name[len(space) :]}", theirs, ours
    yield f"functional.{name}", torch.nn.functional, flow.nn.functional
    yield f"Tensor.{name}", torch.Tensor, flow.Tensor


def forms(arguments: list[Any]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield the forms of a call: the arguments by position, and those by keyword."""
    placed = [a for a in arguments if not a.kwarg_only]
    needed = [a for a in placed if not a.has_default_value()]
    yield "positions", placed, []
    yield "keywords", [], list(arguments)
    yield "defaults", needed, [a for a in arguments if a.kwarg_only and not a.has_default_value()]
    yield "mixed", placed[:1], [a for a in arguments if a not in placed[:1]]


def call(lib: Any, function: Any, bound: bool, placed: list[Any], named: list[Any]) -> None:
    args = [value(lib, a) for a in placed]
    kwargs = {"input" if a.name == "self" else a.name: value(lib, a) for a in named}
    if bound:  # as a method is called
        me = args.pop(0) if placed and placed[0].name == "self" else kwargs.pop("input")
        args.insert(0, me)
    function(*args, **kwargs)


def refused(lib: Any, *how: Any) -> str:
    """Return the reason why a call is refused for its arguments' names, number or kinds; "" if it
    is taken.
    """
    try:
        call(lib, *how)
    except NoValueError:
        raise
    except DTypeError:
        return ""
    except TypeError as error:
        return str(error).partition("\n")[0] or "TypeError"
    except Exception:  # of shapes, values, devices: the arguments were taken
        return ""
    return ""


def schemas() -> list[Any]:
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")]
    return [s for s in schemas if not s.name.startswith("aten::__")]


def cases() -> Iterator[tuple[str, Any, Any, bool, list[Any], list[Any]]]:
    for schema in schemas():
        name = schema.name.removeprefix("aten::")
        if name in APART or f"{name}.{schema.overload_name}" in APART:
            continue
        arguments = list(schema.arguments)
        for place, theirs, ours in places(name):
            last = place.rpartition(".")[2]
            bound = theirs is torch.Tensor
            if bound and not any(a.name == "self" for a in arguments):
                continue
            theirs, ours = getattr(theirs, last, None), getattr(ours, last, None)
            if not callable(theirs) or not callable(ours):
                continue
            if inspect.isfunction(theirs):  # its signature is Python's, and no schema: see below
                continue
            for form, placed, named in forms(arguments):
                label = f"{place}({schema.overload_name or 'default'}, {form})"
                yield label, theirs, ours, bound, placed, named


def outcomes() -> dict[str, str]:
    """Map each call that PyTorch takes to flowvm's error, "" if flowvm takes it, too."""
    outcomes_of = {}
    for label, theirs, ours, bound, placed, named in cases():
        try:
            if not refused(torch, theirs, bound, placed, named):
                outcomes_of[label] = refused(flow, ours, bound, placed, named)
        except NoValueError:
            continue
    return outcomes_of


NO_VALUES = "a sparse tensor is needed"


@pytest.mark.filterwarnings("ignore")
def test_calls_that_pytorch_takes_are_taken() -> None:
    results = outcomes()
    assert len(results) > 7000
    wrong = {label: why for label, why in results.items() if why and NO_VALUES not in why}
    assert not wrong, "\n".join(f"{label}: {why}" for label, why in wrong.items())


CALLS = """
    x.add(other=y) x.sub(other=y, alpha=2) x.mul(other=2.0) x.lt(other=y) x.maximum(other=y)
    x.atan2(other=y) lib.mul(input=x, other=y) lib.maximum(x1=x, x2=y) lib.exp(input=x)
    lib.less(x, other=y, out=lib.empty(2,3,dtype=lib.bool)) lib.lerp(input=x, end=y, weight=0.25)
    x.reshape(shape=(3,2)) x.permute(dims=(1,0)) x.expand(size=(2,2,3)) x.repeat(repeats=(2,1))
    x.tile(dims=(2,)) lib.tile(input=x, dims=(2,)) lib.broadcast_to(x, size=(2,2,3))
    x.swapaxes(axis0=0, axis1=1) x.clone().swapaxes_(axis0=0, axis1=1) x.sum_to_size(size=(1,3))
    x.split(split_size=1)[1] x.tensor_split(sections=2)[1] x.tensor_split(indices=(1,),dim=1)[1]
    x.hsplit(sections=3)[2] x.vsplit(indices=(1,))[0] x.clone().clamp_min_(min=0.5)
    x.clone().lerp_(end=y, weight=0.5) x.clone().uniform_(**{"from":2,"to":2}) x.copy_(other=y)
    lib._foreach_lerp([x],[y],weight=0.5)[0] lib._foreach_mul([x],scalar=3)[0]
    lib._foreach_addcmul([x],tensor1=[y],tensor2=[y],scalars=[2.0])[0]
    x.clone().add_(2,y) lib.sub(x,2,y) x.clone().addcmul_(2,y,y) lib.addcdiv(x,2,y,y)
    lib.addmm(2,m,3,x,x.t()) m.addmm(2,3,x,x.t()) m.clone().addmm_(2,x,x.t())
    lib.linalg.norm(input=x) lib.linalg.inv(A=m) lib.cholesky_solve(input=m,input2=m)
    lib.batch_norm(x,y[0],y[1],None,None,True,0.1,1e-5,False)
    lib.embedding(x,lib.tensor([1,0])) lib.nn.functional.softplus(x,out=lib.empty(2,3))
    lib.embedding_bag(x,lib.tensor([1,0,1]),lib.tensor([0,1]),mode=2)[3]
    lib.nn.functional.elu_(-x,2.0,3.0,0.5) lib.special.hermite_polynomial_h(x=x,n=2)
"""


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of orders that it had once
@pytest.mark.parametrize("text", re.split(r"\s(?=x\.|m\.|lib\.)", " ".join(CALLS.split())))
def test_calls_by_keyword_compute_what_pytorch_computes(text: str) -> None:
    def result(lib: Any) -> Any:
        x = lib.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])
        y = lib.tensor([[2.0, 1.0, 4.0], [1.0, 3.0, 2.0]])
        m = lib.tensor([[2.0, 1.0], [0.0, 4.0]])
        return eval(text, {"lib": lib, "x": x, "y": y, "m": m})

    np.testing.assert_allclose(result(flow).numpy(), result(torch).numpy(), rtol=2e-6, atol=1e-7)


# --- functions and classes that PyTorch writes in Python -----------------------------------------

MODULES = (
    "", "amp", "autograd", "autograd.functional", "cuda", "cuda.amp", "distributions", "fft",
    "func", "fx", "hub", "linalg", "masked", "nn", "nn.attention", "nn.functional", "nn.init",
    "nn.utils", "nn.utils.parametrizations", "nn.utils.parametrize", "nn.utils.rnn", "optim",
    "optim.lr_scheduler", "optim.swa_utils", "random", "signal.windows", "special", "testing",
    "utils.checkpoint", "utils.data", "Tensor", "nn.Module", "optim.Optimizer",
)  # fmt: skip
# parameters that are not taken, and why
NOT_TAKEN = {
    "compile": "options of a compiler that is not here",
    "autograd.backward": "grad_variables was deprecated before PyTorch 1.0",
    "autograd.gradcheck": "checks of PyTorch's other ways to differentiate",
    "autograd.gradgradcheck": "the same",
    "enable_grad": "what PyTorch's own decorator passes on",
    "autograd.enable_grad": "the same",
    "solve": "PyTorch's raises whatever it is called with",
    "cuda.Event": "events of other processes are not supported",
    "cuda.StreamContext": "a class of PyTorch's own",
}


def place_of(root: Any, dotted: str) -> Any:
    member = root
    for part in filter(None, dotted.split(".")):
        if not hasattr(member, part):
            importlib.import_module(f"{member.__name__}.{part}")
        member = getattr(member, part)
    return member


def parameters(value: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(value).parameters)
    except (ValueError, TypeError):
        return {}


def untaken(theirs: Any, ours: Any) -> list[str]:
    """PyTorch's parameters that ours lacks."""
    own = parameters(ours)
    if not own or any(p.kind is p.VAR_KEYWORD for p in own.values()):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        name
        for name, p in parameters(theirs).items()
        if p.kind in named and name not in own and name[0] != "_" and name not in ("self", "cls")
    ]


@pytest.mark.parametrize("module", MODULES)
def test_parameters_of_python_functions_are_taken(module: str) -> None:
    theirs, ours = place_of(torch, module), place_of(flow, module)
    compared, wrong = 0, {}
    for name in dir(theirs):
        label = f"{module}.{name}".strip(".")
        value = getattr(theirs, name, None)
        if name[0] == "_" or label in NOT_TAKEN or not callable(value) or not hasattr(ours, name):
            continue
        if inspect.isclass(value) and not value.__module__.startswith("torch"):
            continue
        compared += 1
        own = getattr(ours, name)
        lacking = [k for k in untaken(value, own) if refuses(own, k)]
        if lacking:
            wrong[label] = lacking
    assert compared
    assert not wrong


def refuses(function: Any, keyword: str) -> bool:
    """Return True if a function does not know a keyword: decorators may know what it does not."""
    try:
        function(**{keyword: None})
    except TypeError as error:
        return "unexpected keyword" in str(error)
    except Exception:  # it went on
        return False
    return False


if __name__ == "__main__":
    import sys
    import warnings

    warnings.simplefilter("ignore")
    all_told = outcomes()
    for label, why in all_told.items():
        if why and "-v" in sys.argv:
            print(label, why)
    right = sum(not why for why in all_told.values())
    print(f"{right} of {len(all_told)} calls are taken")
