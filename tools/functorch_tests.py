"""Runs functorch's own tests, `test_vmap.py` and `test_eager_transforms.py`, with flowvm for torch.

    python -m tools.functorch_tests FOLDER                      FOLDER: PyTorch's test/functorch
    python -m tools.functorch_tests FOLDER test_vmap.py --show  these files
    python -m tools.functorch_tests FOLDER --results r.json --table    the shares of a run before
    python -m tools.functorch_tests --operators                 vmap over PyTorch's samples

Forks that name the files `test_vmap_xpu.py` serve as well.  The tests are read and not changed.
What PyTorch's tests are made of (TestCase, parametrize, tests by device) stands here.  Parts inside
of PyTorch are `InnerPart`s: a test that uses one is counted apart, "without", as is what `NEEDS`
names: `functionalize`, dynamo, nested tensors.  "more" are tests that want an error where there is
a result here: `MORE` says which.  Tests that PyTorch makes from its table of operators need PyTorch
itself: `--operators` maps each op over its samples in that table, and compares with a loop.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.abc
import importlib.util
import inspect
import itertools
import json
import random
import re
import sys
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from flowvm import func
from flowvm.compat import torch as compat
from tools import unit_cases

FILES = ("test_vmap", "test_eager_transforms")
# classes of tests, and patterns of methods, of what is not here -> what that is
NEEDS = {
    "test_deprecation_": "warnings of the old package functorch",
    "test_conj_bit": "conjugates that wait",
    "test_tensor_print_": "PyTorch's way to print tensors inside of transforms",
    "TestFunctionalize": "functionalize",
    "TestHigherOrderOperatorInteraction": "PyTorch's higher order operators",
    "TestCompileTransforms": "dynamo",
    "TestVmapNestedTensor": "nested tensors",
    "TestVmapOperatorsOpInfo": "PyTorch's table of operators: --operators",
}
# patterns of methods that want an error where there is a result here -> which result
MORE = {
    "test_(bernoulli|random|multinomial).*_randomness_same": "one draw for operands that differ",
    "test_(bernoulli_in_place|random_unary_inplace).*_batched_input_none": "example by example",
    "test_(copy_|fill_and_zero_inplace|inplace_on_captures)": "example by example",
    "test_(data_dependent_control_flow|item)_throws": "example by example",
    "test_unsupported_(op_err_msg|random)": "example by example",
    "test_chunk_jacrev_chunksize_one": "example by example",
    "test_jacfwd_with_random": "the function runs once",
    "test_is_contiguous": "contiguity in a memory format is an example's",
    "test_data_attribute": "`.data` of all examples",
    "test_(fails_with_autograd_function|autograd_function_no_setup_context)": "forward with ctx",
    "test_no_vmap_staticmethod_and": "forward's ops are mapped",
    "test_function_returns_input_inner": "an input that is returned is saved, too",
    "test_autograd_functional_": "autograd.functional inside of a transform",
    "test_(requires|retain)_grad_inside_transform": "requires_grad_, retain_grad inside",
    "saved_tensor_hooks": "hooks of saved tensors inside",
}


# --- what tests are made of -----------------------------------------------------------------------


_loading: list[str] = []  # files whose classes are being made


class InnerPart:
    """A part inside of PyTorch: it may be imported and decorate, and its use ends the test."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> InnerPart:
        if name.startswith("__"):
            raise AttributeError(name)
        return InnerPart(f"{self._name}.{name}")

    def _stop(self, *args: Any, **kwargs: Any) -> Any:
        raise unit_cases.InnerPartError(self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self if _loading else self._stop()

    __enter__ = __exit__ = __iter__ = __bool__ = __setattr__ = __eq__ = _stop
    __hash__ = None  # type: ignore[assignment]

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (InnerClass,)


class InnerClass:
    """A base class inside of PyTorch: objects have inner parts as attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> InnerPart:
        return InnerPart(f"{type(self).__name__}.{name}")


def _same(x: Any, y: Any, rtol: float | None, atol: float | None, dtypes: bool) -> None:
    if isinstance(x, flow.Tensor) or isinstance(y, flow.Tensor):
        both = isinstance(x, flow.Tensor) and isinstance(y, flow.Tensor)
        x, y = (v if isinstance(v, flow.Tensor) else flow.tensor(v) for v in (x, y))
        if (rtol is None) != (atol is None):
            rtol, atol = rtol or 0.0, atol or 0.0
        flow.testing.assert_close(
            x, y, rtol=rtol, atol=atol, equal_nan=True, check_dtype=dtypes and both
        )
    elif isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        assert len(x) == len(y), f"{len(x)} and {len(y)} items"
        for a, b in zip(x, y, strict=True):
            _same(a, b, rtol, atol, dtypes)
    elif isinstance(x, dict) and isinstance(y, dict):
        assert x.keys() == y.keys(), f"keys {sorted(map(str, x))} and {sorted(map(str, y))}"
        for key in x:
            _same(x[key], y[key], rtol, atol, dtypes)
    elif isinstance(x, float) and isinstance(y, (int, float)):
        near = np.isclose(x, y, rtol or 1e-7, atol or 1e-7, equal_nan=True)
        assert near, f"{x} is not {y}"
    else:
        assert x == y, f"{x!r} is not {y!r}"


class TestCase(unittest.TestCase):
    """Python's TestCase that compares tensors as PyTorch's does."""

    def setUp(self) -> None:
        flow.manual_seed(0)
        np.random.seed(0)
        random.seed(0)

    def assertEqual(  # type: ignore[override]  # noqa: N802
        self, x: Any, y: Any, msg: Any = None, *, atol: Any = None, rtol: Any = None,
        exact_dtype: bool = True, **rest: Any,
    ) -> None:  # fmt: skip
        try:
            _same(x, y, rtol, atol, exact_dtype)
        except AssertionError as error:
            prefix = f"{msg}: " if isinstance(msg, str) else ""
            raise AssertionError(f"{prefix}{error}") from None

    def assertNotEqual(self, x: Any, y: Any, msg: Any = None, **rest: Any) -> None:  # type: ignore[override]  # noqa: N802
        try:
            _same(x, y, rest.get("rtol"), rest.get("atol"), True)
        except AssertionError:
            return
        raise AssertionError(f"{x} is {y}")

    def assertExpectedInline(self, actual: str, expected: str, skip: int = 0) -> None:  # noqa: N802
        if actual.split() != expected.split():  # counted as an error with other words
            raise AssertionError(f'"{actual}" does not match "{expected}"')


class subtest:  # noqa: N801
    """One case of `parametrize`: its values, its name, decorators."""

    def __init__(self, values: Any, name: str = "", decorators: Sequence[Any] = ()) -> None:
        self.values, self.name, self.decorators = values, name, decorators


def parametrize(names: str, values: Any, name_fn: Any = None) -> Callable[[Any], Any]:
    """Decorate a test that runs once for each of the values."""
    keys = [n.strip() for n in names.split(",")]

    def decorator(test: Any) -> Any:
        rows = []
        for at, value in enumerate(values):
            case = value if isinstance(value, subtest) else subtest(value)
            items = case.values if len(keys) > 1 else [case.values]
            kwargs = dict(zip(keys, items, strict=True))
            named = [f"{k}_{getattr(v, '__name__', v)}" for k, v in kwargs.items()]
            name = case.name or (name_fn(*items) if name_fn else "_".join(named))
            rows.append((re.sub(r"\W+", "_", str(name)) or str(at), kwargs, case.decorators))
        test.__dict__["_cases"] = [rows, *test.__dict__.get("_cases", [])]
        return test

    return decorator


def _instances(cls: Any, name: str, test: Any, device: str | None) -> Iterator[tuple[str, Any]]:
    """The methods that one test with cases is: names and functions."""
    tables = list(test.__dict__.get("_cases", []))
    if "_dtypes" in test.__dict__:
        tables.append([(d.name, {"dtype": d}, ()) for d in test._dtypes])
    takes = inspect.signature(test).parameters
    for number, row in enumerate(itertools.product(*tables)):
        kwargs = {k: v for _, arguments, _ in row for k, v in arguments.items()}
        if device and "device" in takes:
            kwargs["device"] = device
        full = "_".join([name, *(part for part, _, _ in row), *([device] if device else [])])

        def method(self: Any, _test: Any = test, _kwargs: Any = kwargs) -> Any:
            return _test(self, **_kwargs)

        method.__dict__.update(test.__dict__)
        for _, _, decorators in row:
            for decorator in decorators:
                method = decorator(method)
        yield (full if len(full) < 200 else f"{full[:180]}_{number}"), method


def instantiate_parametrized_tests(cls: Any) -> Any:
    """Give a class the methods that its tests with cases are."""
    for name, test in list(cls.__dict__.items()):
        if name.startswith("test") and "_cases" in getattr(test, "__dict__", {}):
            delattr(cls, name)
            for full, method in _instances(cls, name, test, None):
                setattr(cls, full, method)
    return cls


def instantiate_device_type_tests(cls: Any, scope: dict[str, Any], **rest: Any) -> None:
    """Put the tests of a class for the CPU into a module, in the place of the class."""
    space: dict[str, Any] = {"device_type": "cpu"}
    tests = {
        n for n in dir(cls) if n.startswith("test") and callable(inspect.getattr_static(cls, n))
    }
    for name in sorted(tests):
        test = inspect.getattr_static(cls, name)
        if isinstance(test, InnerPart):
            space[name] = functools.partialmethod(_stopped, str(test._name))
            continue
        space[name] = None
        for full, method in _instances(cls, name, test, "cpu"):
            space[full] = method
    test_class = type(f"{cls.__name__}CPU", (cls,), space)
    test_class.__module__ = cls.__module__
    scope[test_class.__name__] = test_class
    scope.pop(cls.__name__, None)


def _stopped(self: Any, reason: str) -> None:
    raise unit_cases.InnerPartError(reason)


def _with_dtypes(*kinds: Any) -> Callable[[Any], Any]:
    def decorator(test: Any) -> Any:
        test.__dict__["_dtypes"] = kinds[0] if isinstance(kinds[0], (list, tuple)) else kinds
        return test

    return decorator


def _unchanged(*args: Any, **kwargs: Any) -> Any:
    """Decorate nothing: used bare, with arguments, or as a value."""
    if len(args) == 1 and not kwargs and (inspect.isfunction(args[0]) or inspect.isclass(args[0])):
        return args[0]
    return lambda test: test


def _only_on(kinds: Any) -> Callable[[Any], Any]:
    fits = "cpu" in (kinds if isinstance(kinds, (list, tuple)) else [kinds])
    return unittest.skipUnless(fits, f"for {kinds}")


def _ops(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    def decorator(test: Any) -> Any:
        return lambda self: _stopped(self, "PyTorch's table of operators: --operators")

    return decorator


class _Seeded:
    """Keep the random numbers that follow."""

    def __enter__(self) -> None:
        self.state = flow.get_rng_state()

    def __exit__(self, *error: object) -> None:
        flow.set_rng_state(self.state)


def _floats(include_half: bool = True, include_bfloat16: bool = True) -> list[Any]:
    wide = [flow.float32, flow.float64]
    return [*wide, *([flow.bfloat16] * include_bfloat16), *([flow.float16] * include_half)]


def _per_model(models: Any) -> tuple[Any, Any, Any]:
    """`combine_state_for_ensemble`, as its replacement in `torch.func` is used."""
    params, buffers = func.stack_module_state(models)
    model = copy.deepcopy(models[0])
    names = list(params), list(buffers)

    def functional(p: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(names[0], p, strict=True)), dict(zip(names[1], b, strict=True))
        return func.functional_call(model, arguments, args, kwargs)

    return functional, tuple(params.values()), tuple(buffers.values())


def _chunk_vmap(f: Any, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error",
                chunks: int = 2) -> Any:  # fmt: skip
    def call(*args: Any, **kwargs: Any) -> Any:
        pairs = zip(func.trees.leaves(args), func.trees.spread(in_dims, args), strict=True)
        size = max(x.shape[d] for x, d in pairs if d is not None)
        each = -(-size // chunks)
        return func.vmap(f, in_dims, out_dims, randomness, chunk_size=each)(*args, **kwargs)

    return call


_TRANSFORMS = {name: getattr(func, name) for name in func.__all__ if name != "forward_ad"}
_SKIPPED = dict.fromkeys(
    ("skipIfTorchDynamo", "markDynamoStrictTest", "unMarkDynamoStrictTest",
     "xfailIfTorchDynamo", "skipOps", "toleranceOverride", "opsToleranceOverride",
     "tf32_on_and_off", "with_tf32_off", "onlyCPU", "xfail", "skip", "decorate", "tol", "tol1",
     "xfailIf", "allow_in_graph", "expectedFailureIf"), _unchanged,
)  # fmt: skip
_FALSE = dict.fromkeys(
    ("TEST_CUDA", "TEST_XPU", "IS_WINDOWS", "IS_FBCODE", "TEST_WITH_TORCHDYNAMO", "SM70OrLater",
     "TEST_CUDA_MEM_LEAK_CHECK", "PLATFORM_SUPPORTS_FLASH_ATTENTION",
     "PLATFORM_SUPPORTS_MEM_EFF_ATTENTION", "PLATFORM_SUPPORTS_CUDNN_ATTENTION"), False,
)  # fmt: skip
_HELPERS = {
    **_SKIPPED, **_FALSE, "TestCase": TestCase, "parametrize": parametrize, "subtest": subtest,
    "instantiate_parametrized_tests": instantiate_parametrized_tests,
    "instantiate_device_type_tests": instantiate_device_type_tests, "TEST_CUDNN_VERSION": 0,
    "dtypes": _with_dtypes, "onlyOn": _only_on, "ops": _ops, "run_tests": unittest.main,
    "get_all_fp_dtypes": _floats, "op_db": [], "additional_op_db": [], "custom_op_db": [],
    "autograd_function_db": [], "freeze_rng_state": _Seeded,
}  # fmt: skip
_MODULES: dict[str, dict[str, Any]] = {
    "functorch": _TRANSFORMS | {"combine_state_for_ensemble": _per_model},
    "functorch.experimental": {"chunk_vmap": _chunk_vmap},
    "functorch_additional_op_db": _HELPERS,
    "common_utils": _HELPERS,
    "torch._dynamo": _HELPERS,
    "torch._C": {
        "_debug_only_are_vmap_fallback_warnings_enabled": lambda: False,
        "_debug_only_display_vmap_fallback_warnings": lambda shown: None,
    },
}


class _Module(types.ModuleType):
    """A module of helpers, of which other names are inner parts."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InnerPart(f"{self.__name__}.{name}")


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the helpers of PyTorch's tests, and its inner parts."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        inner = fullname.startswith(
            ("torch.testing._internal", "torch._functorch", "torch._C", "torch._ops",
             "torch._higher_order_ops")
        )  # fmt: skip
        if fullname not in _MODULES and not inner:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        helpers = _HELPERS if name.startswith("torch.testing._internal") else {}
        module.__dict__.update(_MODULES.get(name, helpers))


def _load(place: Path) -> types.ModuleType:
    """Run a file of tests with flowvm for PyTorch; what `NEEDS` names ends with that reason."""
    module = types.ModuleType(place.stem)
    sys.modules[place.stem] = module
    module.__dict__["__file__"] = str(place)
    text = place.read_text().replace('only_for = "xpu"', 'only_for = "cpu"')
    _loading.append(place.stem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, str(place), "exec"), module.__dict__)
    _loading.clear()
    for name, cls in list(module.__dict__.items()):
        for reason in NEEDS.items() if inspect.isclass(cls) else ():
            for test in [n for n in dir(cls) if n.startswith("test")]:
                if getattr(cls, test) is not None and re.search(reason[0], f"{name}.{test}"):
                    setattr(cls, test, functools.partialmethod(_stopped, reason[1]))
    return module


def _inside(place: Path, known: list[str], out: str, seconds: float) -> None:
    compat.ROOTS = ("torch",)  # type: ignore[misc, assignment]
    compat.install(report=False)
    sys.meta_path.insert(0, _Modules())
    unit_cases.run(lambda: _load(place), known, out, seconds)


def _more(name: str, outcome: tuple[str, str]) -> tuple[str, str]:
    """Return the outcome "more" for a wanted error in the place of which there is a result."""
    kind, text = outcome
    if kind != "fail" or not re.search(r"not raised|NameError: name", text):
        return outcome
    reason = next((r for pattern, r in MORE.items() if re.search(pattern, name)), None)
    return ("more", reason) if reason else outcome


# --- PyTorch's samples ----------------------------------------------------------------------------


def _in_dims(count: int) -> list[tuple[int | None, ...]]:
    """Along which dimensions `count` tensors are batched: all, the first, all others."""
    ways: list[tuple[int | None, ...]] = [(0,) * count, (-1,) * count]
    if count > 1:
        ways += [(0,) + (None,) * (count - 1), (None,) + (0,) * (count - 1)]
    return ways


def operators(
    most: int, only: str, known: unit_cases.Outcomes, limit: float
) -> unit_cases.Outcomes:
    """Map each op over its samples in PyTorch's table; the outcome of each.

    Those that are known stay.  It ends after `limit` seconds.
    """
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    sys.path.insert(0, str(unit_cases.HERE / "tests" / "ops" / "helpers"))
    from torch.testing._internal.common_methods_invocations import op_db

    results = known
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if name in known or not re.search(only, name):
            continue
        if time.monotonic() - begin > limit:
            print("stopped at the limit")
            break
        try:
            results[name] = _mapped(op, most)
        except Exception as error:
            results[name] = ("fail", f"{type(error).__name__}: {str(error)[:200]}")
    return results


def _mapped(op: Any, most: int) -> tuple[str, str]:
    """Map an op over some of its samples and compare with a loop."""
    import torch
    from torch_samples import AbsentError, called, converted  # type: ignore[import-not-found]

    function = called(op)
    dtype = next((d for d in (torch.float32, torch.int64, torch.complex64, torch.bool)
                  if d in op.supported_dtypes("cpu")), None)  # fmt: skip
    if function is None or dtype is None:
        return "without", "there is no such op"
    torch.manual_seed(0)
    count = 0
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), most):
        try:
            args = converted((sample.input, *sample.args), [])
            kwargs = converted(dict(sample.kwargs), [])
        except AbsentError:
            continue
        flat = func.trees.leaves(args)
        tensors = [k for k, x in enumerate(flat) if isinstance(x, flow.Tensor)]
        if not tensors:
            continue

        def run(*inputs: Any, _args: Any = args, _flat: Any = flat, _at: Any = tensors,
                _kwargs: Any = kwargs) -> Any:  # fmt: skip
            whole = list(_flat)
            for k, x in zip(_at, inputs, strict=True):
                whole[k] = x
            return function(*func.trees.rebuilt(_args, whole), **_kwargs)

        for dims in _in_dims(len(tensors)):
            pairs = [
                (flat[k], d) for k, d in zip(tensors, dims, strict=True)
            ]  # fmt: skip
            inputs = [x if d is None else flow.stack([x, x.clone()], d) for x, d in pairs]
            try:
                want = run(*[flat[k] for k in tensors])
            except Exception:
                continue  # the op's own, and not the map's
            result = func.vmap(run, dims, randomness="same")(*inputs)
            for a, b in zip(func.trees.leaves(result), func.trees.leaves(want), strict=True):
                if isinstance(b, flow.Tensor):
                    _same(a, flow.stack([b, b]), 1e-4, 1e-4, True)
            count += 1
    return ("pass", "") if count else ("skip", "no sample with tensors")


def main() -> int:
    """Run what is asked for; print shares, and what failures say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("files", nargs="*", help="files in the folder")
    parser.add_argument("--seconds", type=float, default=60, help="the most that a method may take")
    parser.add_argument("--results", type=Path, help="a file that keeps results")
    parser.add_argument("--table", action="store_true", help="print the results alone")
    parser.add_argument("--show", action="store_true", help="print what the files print")
    parser.add_argument("--operators", action="store_true", help="map PyTorch's samples")
    parser.add_argument("--samples", type=int, default=4, help="the most of an op's samples")
    parser.add_argument("--limit", type=float, default=1e9, help="the most that all may take")
    parser.add_argument("--only", default="", help="a pattern of names of operators")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--known", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.inside:
        known = Path(options.known).read_text().splitlines()
        _inside(options.root, known, options.inside, options.seconds)
        return 0
    results: dict[str, unit_cases.Outcomes] = {}
    if options.results and options.results.exists():
        results = json.loads(options.results.read_text())
    begin = time.monotonic()
    if options.operators and not options.table:
        before = results.get("operators", {})
        results["operators"] = operators(options.samples, options.only, before, options.limit)
    elif not options.table:
        if options.root is None:
            parser.error("say the folder of PyTorch's test/functorch, or --operators")
        root = options.root.resolve()
        places = [root / name for name in options.files] or [
            next(p for p in sorted(root.glob(f"{stem}*.py"))) for stem in FILES
        ]
        for place in places:
            command = ["tools.functorch_tests", str(place)]
            outcomes = unit_cases.outcomes(command, 1, options.seconds, options.show)
            results[place.stem] = {name: _more(name, outcome) for name, outcome in outcomes.items()}
            print(f"{time.monotonic() - begin:6.0f} s  {place.name}", flush=True)
    if options.results:
        options.results.write_text(json.dumps(results, indent=1))
    total: Counter[str] = Counter()
    for name, methods in results.items():
        count = Counter(kind for kind, _ in methods.values())
        total += count
        print(f"{name:30} {unit_cases.share(count)}")
    print(f"{'all':30} {unit_cases.share(total)}")
    print("\n".join(unit_cases.causes(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
