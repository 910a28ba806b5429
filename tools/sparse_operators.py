"""Runs PyTorch's samples of sparse tensors, from its table of operators, and compares.

    python -m tools.sparse_operators                 shares by layout and op, and causes
    python -m tools.sparse_operators --only masked   ops of which the name matches a pattern
    python -m tools.sparse_operators --show          each sample that fails

Each op that PyTorch's table says to take a layout is called with that layout's samples in float32
and float64.  A sample passes where the result has PyTorch's layout, shape, dtype, indices and
values, and so do the gradients that PyTorch has.  An op of one operand without samples of its own
gets PyTorch's simple tensors: batches, dense dimensions, empty ones.  A sample that PyTorch itself
refuses is not counted; of those that it lists as errors, an error is a pass.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import flowvm as flow
from tools import unit_cases

LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
DTYPES = ("float32", "float64")
NAMES = {"crow_indices", "col_indices", "ccol_indices", "row_indices"}
BLOCKS = ((1, 1), (2, 1), (3, 2))
TOLERANCE = {"float32": 3e-5, "float64": 1e-9}


class AbsentError(Exception):
    """The error of a sample that cannot be asked of both libraries."""


# --- PyTorch's tensors, here ----------------------------------------------------------------------


def twin_of(x: Any, leaves: list[Any]) -> Any:
    """Return a tensor like PyTorch's `x`; one that requires grad is added to `leaves` with it."""
    import torch

    def dense(part: Any) -> Any:
        return flow.tensor(part.detach().resolve_conj().resolve_neg().numpy().copy())

    if x.layout == torch.strided:
        made = dense(x)
    elif x.layout == torch.sparse_coo:
        made = flow.sparse_coo_tensor(
            dense(x._indices()), dense(x._values()), tuple(x.shape), is_coalesced=x.is_coalesced()
        )
    else:
        names = ("crow", "col") if x.layout in (torch.sparse_csr, torch.sparse_bsr) else (
            "ccol", "row")  # fmt: skip
        bounds, plain = (dense(getattr(x, f"{name}_indices")()) for name in names)
        kind = getattr(flow, str(x.layout)[6:])
        made = flow.sparse_compressed_tensor(
            bounds, plain, dense(x.values()), tuple(x.shape), layout=kind
        )
    if x.requires_grad:
        made.requires_grad_()
        leaves.append((x, made))
    return made


def converted(value: Any, leaves: list[Any]) -> Any:
    """Return an argument with PyTorch's tensors, dtypes and layouts made flowvm's."""
    import torch

    if isinstance(value, torch.Tensor):
        return twin_of(value, leaves)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return getattr(flow, str(value)[6:])
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (list, tuple)):
        return type(value)(converted(v, leaves) for v in value)
    if isinstance(value, dict):
        return {k: converted(v, leaves) for k, v in value.items()}
    return value


# --- comparison -----------------------------------------------------------------------------------


def compare(ours: Any, theirs: Any, values: bool = True) -> None:
    """AssertionError unless a result is PyTorch's; without `values` of its meta alone."""
    import torch

    if isinstance(theirs, (list, tuple)):
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b, values)
        return
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs or ours != ours, f"{ours} in place of {theirs}"
        return
    for name in ("layout", "dtype"):
        a, b = (str(getattr(x, name)).partition(".")[2] for x in (ours, theirs))
        assert a == b, f"{name} {a} in place of {b}"
    assert tuple(ours.shape) == tuple(theirs.shape), (
        f"shape {tuple(ours.shape)} in place of {tuple(theirs.shape)}"
    )
    pairs = [(ours, theirs)]
    if theirs.layout == torch.sparse_coo:
        for name in ("sparse_dim", "dense_dim"):
            a, b = getattr(ours, name)(), getattr(theirs, name)()
            assert a == b, f"{name} {a} in place of {b}"
        a, b = ours.coalesce(), theirs.coalesce()
        pairs = [(a.indices(), b.indices()), (a.values(), b.values())]
    elif theirs.layout != torch.strided:
        names = sorted(n for n in NAMES if _has(theirs, n))
        pairs = [(getattr(ours, n)(), getattr(theirs, n)()) for n in names]
        pairs.append((ours.values(), theirs.values()))
    for a, b in pairs:
        assert tuple(a.shape) == tuple(b.shape), (
            f"a part of shape {tuple(a.shape)} in place of {tuple(b.shape)}"
        )
        if values or not b.dtype.is_floating_point:
            wide = b.detach().resolve_conj().resolve_neg().numpy()
            close = TOLERANCE.get(str(b.dtype)[6:], 0.0)
            np.testing.assert_allclose(a.detach().numpy(), wide, close, close)


def _has(x: Any, name: str) -> bool:
    try:
        getattr(x, name)()
    except RuntimeError:
        return False
    return True


# --- samples --------------------------------------------------------------------------------------


def samples_of(op: Any, layout: str, dtype: Any, grad: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Each sample of an op in a layout: the first operand, other ones, and keywords."""
    import torch
    from torch.testing._internal.common_utils import TestCase

    kind = getattr(torch, layout)
    try:
        for sample in op.sample_inputs_sparse(kind, "cpu", dtype, requires_grad=grad):
            yield sample.input, tuple(sample.args), sample.kwargs
        return
    except unittest.SkipTest:
        return
    except NotImplementedError:
        pass
    if op.name.startswith("sparse."):
        for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
            operands = [sample.input, *sample.args]
            if any(isinstance(x, torch.Tensor) and x.layout == kind for x in operands):
                yield sample.input, tuple(sample.args), sample.kwargs
        return
    for x in TestCase().generate_simple_inputs(kind, dtype=dtype, device="cpu"):
        yield x.requires_grad_(grad), (), op.sample_kwargs("cpu", dtype, x)[0] if hasattr(
            op, "sample_kwargs"
        ) else {}  # fmt: skip


def function_of(op: Any) -> Any:
    """Return flowvm's function of an op's name; a method where there is no such function."""
    place: Any = flow
    for part in op.name.split("."):
        place = getattr(place, part, None)
    return place or getattr(flow.Tensor, op.name, None)


def outcomes_of(op: Any, layout: str, dtype: Any, most: int) -> list[tuple[str, str]]:
    """Return what becomes of each sample of an op in a layout, such as "pass", and why."""
    import torch

    function = function_of(op)
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    results: list[tuple[str, str]] = []
    for x, args, kwargs in samples_of(op, layout, dtype, grad):
        if len(results) >= most:
            break
        try:
            theirs = op(x, *args, **kwargs)
        except Exception as error:
            results.append(("skip", f"{type(error).__name__}: {str(error)[:100]}"))
            continue
        leaves: list[Any] = []
        try:
            if function is None:
                raise AbsentError(f"there is no {op.name}")
            first, others, names = (converted(v, leaves) for v in (x, args, kwargs))
            ours = function(first, *others, **names)
            compare(ours, theirs, values="rand" not in op.name)
            if leaves and isinstance(theirs, torch.Tensor) and theirs.requires_grad:
                compare_gradients(ours, theirs, leaves)
        except Exception as error:
            results.append(("fail", _text(error, x)))
            continue
        results.append(("pass", ""))
    for x, args, kwargs in _errors_of(op, layout):
        try:
            first, others, names = (converted(v, []) for v in (x, args, kwargs))
        except Exception:
            continue
        try:
            function(first, *others, **names)
        except Exception:
            results.append(("pass", ""))
        else:
            results.append(("more", "a result where PyTorch has an error"))
    return results


def _errors_of(op: Any, layout: str) -> Iterator[tuple[Any, Any, Any]]:
    import torch

    if op.error_inputs_sparse_func is None:
        return
    for wrong in op.error_inputs_sparse("cpu", getattr(torch, layout)):
        sample = wrong.sample_input
        yield sample.input, tuple(sample.args), sample.kwargs


def compare_gradients(ours: Any, theirs: Any, leaves: list[Any]) -> None:
    """Compare the gradients of both libraries' sums, where PyTorch has them."""
    import torch

    try:
        whole = theirs.to_dense() if theirs.layout != torch.strided else theirs
        expected = torch.autograd.grad(whole.sum(), [x for x, _ in leaves], allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return
    whole = ours.to_dense() if ours.layout is not flow.strided else ours
    actual = flow.autograd.grad(whole.sum(), [y for _, y in leaves], allow_unused=True)
    for a, b in zip(actual, expected, strict=True):
        if a is None or b is None:
            assert a is b, f"gradient {a} in place of {b}"
            continue
        left, right = a.to_dense().detach().numpy(), b.detach().to_dense().numpy()
        if a.layout is flow.sparse_coo and not a.is_coalesced():
            # each of several values at a place has the gradient of the element
            left, right = a._values().detach().numpy(), right[tuple(a._indices().numpy())]
        close = TOLERANCE[str(b.dtype)[6:]]
        np.testing.assert_allclose(left, right, close, close, err_msg="gradient")


def _text(error: Exception, x: Any) -> str:
    what = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {what}"


# --- shares ---------------------------------------------------------------------------------------


def ops_of(layout: str, only: str) -> Iterator[Any]:
    """The ops of PyTorch's table that take a layout."""
    from torch.testing._internal.common_methods_invocations import op_db

    flag = "supports_sparse" + layout.removeprefix("sparse").replace("_coo", "")
    for op in op_db:
        inside = layout == "sparse_csr" and op.name.startswith("sparse.")
        if (getattr(op, flag) or inside) and re.search(only, op.name):
            yield op


def main() -> int:
    """Run what is asked for; print shares by layout and op, and causes of failures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a pattern of names of ops")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="this layout alone")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="this dtype alone")
    parser.add_argument("--samples", type=int, default=10**9, help="the most of an op's samples")
    parser.add_argument("--show", action="store_true", help="print each sample that fails")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    total: collections.Counter[str] = collections.Counter()
    causes: collections.Counter[str] = collections.Counter()
    for layout in options.layout or LAYOUTS:
        whole: collections.Counter[str] = collections.Counter()
        complete, count, lines = 0, 0, []
        for op in ops_of(layout, options.only):
            name = f"{op.name}.{op.variant_test_name}".rstrip(".")
            own: collections.Counter[str] = collections.Counter()
            for dtype in options.dtype or DTYPES:
                if getattr(torch, dtype) not in op.supported_dtypes("cpu"):
                    continue
                torch.manual_seed(0)
                for kind, text in outcomes_of(op, layout, getattr(torch, dtype), options.samples):
                    own[kind] += 1
                    if kind == "fail":
                        causes[text] += 1
                        if options.show:
                            print(f"{layout} {name} {dtype}: {text}")
            if own["pass"] + own["fail"]:
                count, complete = count + 1, complete + (own["fail"] == 0)
                if own["fail"]:
                    lines.append(f"    {name:30} {unit_cases.share(own)}")
            whole += own
        total += whole
        print(f"{layout:12} {unit_cases.share(whole)}; {complete} of {count} ops whole")
        print("\n".join(lines), flush=True)
    print(f"{'all':12} {unit_cases.share(total)}")
    for text, times in causes.most_common(20):
        print(f"{times:5}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
