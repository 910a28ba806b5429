"""PyTorch's own samples of an op, run through flowvm: the same arguments, results, gradients.

`run(op, dtype)` calls the function of the op's name with some of its samples, and compares values,
shapes, dtypes and, for floats, the gradients of the arguments.
"""

import itertools
import types
import warnings

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

TOLERANCES = {
    "float32": 3e-5, "float64": 1e-9, "bfloat16": 4e-2, "float16": 5e-3, "complex64": 3e-5,
    "complex128": 1e-9,
}  # fmt: skip


class AbsentError(Exception):
    """The error of a sample with a layout, a dtype or a device that flowvm lacks."""


def of_torch(x, leaves):
    """Return a tensor like `x`; if it requires grad, add it and its twin to `leaves`."""
    if x.layout != torch.strided or not hasattr(flow, str(x.dtype)[6:]):
        raise AbsentError
    dtype, plain = getattr(flow, str(x.dtype)[6:]), x.detach()
    plain = (plain.float() if x.dtype == torch.bfloat16 else plain).contiguous().resolve_conj()
    array = plain.numpy().copy()
    twin = flow.tensor(array).to(dtype)
    if x.requires_grad:
        twin.requires_grad_()
        leaves.append((x, twin))
    return twin


def converted(value, leaves):
    """An argument with PyTorch's tensors and dtypes made flowvm's."""
    if isinstance(value, torch.Tensor):
        return of_torch(value, leaves)
    if isinstance(value, torch.dtype):
        if not hasattr(flow, str(value)[6:]):
            raise AbsentError
        return getattr(flow, str(value)[6:])
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (torch.layout, torch.memory_format, torch.Generator)):
        raise AbsentError
    if isinstance(value, torch.nn.LinearCrossEntropyOptions):
        fields = {f: converted(getattr(value, f), leaves) for f in value.__dataclass_fields__}
        return flow.nn.LinearCrossEntropyOptions(**fields)
    if isinstance(value, (list, tuple)):
        items = [converted(v, leaves) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {k: converted(v, leaves) for k, v in value.items()}
    return value


def flat(value):
    """The tensors and numbers in a result."""
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in flat(v)]
    return [value]


def same(mine, theirs, what):
    """Check that a result is PyTorch's."""
    if not isinstance(theirs, torch.Tensor):
        assert mine == theirs or mine != mine, f"{what}: {mine}, PyTorch has {theirs}"
        return
    assert isinstance(mine, flow.Tensor), f"{what}: a {type(mine).__name__}"
    name = str(theirs.dtype)[6:]
    assert mine.dtype.name == name, f"{what}: dtype {mine.dtype.name}, PyTorch has {name}"
    assert tuple(mine.shape) == tuple(theirs.shape), f"{what}: shape {tuple(mine.shape)}"
    tolerance = TOLERANCES.get(name, 0.0)
    wide = theirs.detach().resolve_conj().resolve_neg()
    array = (wide.float() if name == "bfloat16" else wide).numpy(force=True)
    actual = mine.detach()
    np.testing.assert_allclose(
        (actual.float() if name == "bfloat16" else actual).numpy(), array, tolerance, tolerance,
        err_msg=what,
    )  # fmt: skip


def function_of(name):
    """flowvm's function under an op's name, such as "nn.functional.pad"; None without one."""
    member = flow
    for part in name.split("."):
        member = getattr(member, part, None)
    return member


def called(op):
    """Return the function to call with the op's samples: flowvm's function of its name.

    The table may have code of its own, which calls a method or orders arguments otherwise.  Then it
    is that code, with flowvm for PyTorch.
    """
    own = op.op
    if isinstance(own, types.FunctionType) and "testing" in own.__module__ and not own.__closure__:
        space = {**own.__globals__, "torch": flow}
        return types.FunctionType(own.__code__, space, own.__name__, own.__defaults__)
    if isinstance(own, types.MethodDescriptorType):
        return getattr(flow.Tensor, op.name, None)
    return function_of(op.name)


def run(op, dtype, count):
    """Up to `count` of an op's samples of a dtype compared; how many there were."""
    function = called(op)
    backward = (
        (dtype.is_floating_point or dtype.is_complex)
        and op.supports_autograd
        and dtype in op.supported_backward_dtypes("cpu")
    )
    torch.manual_seed(0)
    compared = 0
    samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
    for sample in itertools.islice(samples, count):
        leaves = []
        try:
            mine = converted((sample.input, tuple(sample.args), sample.kwargs), leaves)
        except AbsentError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = flat(op(sample.input, *sample.args, **sample.kwargs))
        actual = flat(function(mine[0], *mine[1], **mine[2]))
        what = f"{op.name} of {mine}"
        assert len(actual) == len(want), f"{what}: {len(actual)} results, PyTorch has {len(want)}"
        for g, w in zip(actual, want, strict=True):
            same(g, w, what)
        compared += 1
        pairs = [
            (g, w) for g, w in zip(actual, want, strict=True)
            if isinstance(w, torch.Tensor) and w.requires_grad
        ]  # fmt: skip
        if not (backward and pairs):
            continue
        seeds = [torch.randn_like(w) for _, w in pairs]
        theirs = torch.autograd.grad(
            [w for _, w in pairs], [x for x, _ in leaves], seeds, allow_unused=True
        )
        ours = flow.autograd.grad(
            [g for g, _ in pairs], [x for _, x in leaves],
            [converted(s, []) for s in seeds], allow_unused=True,
        )  # fmt: skip
        for i, (g, w) in enumerate(zip(ours, theirs, strict=True)):
            if g is not None and w is not None:
                same(g, w, f"gradient {i} of {what}")
            else:
                assert w is None or not w.any(), f"gradient {i} of {what}: None"
                assert g is None or not g.numpy().any(), f"gradient {i} of {what}: not None"
    return compared
