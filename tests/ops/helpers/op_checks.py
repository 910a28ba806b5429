"""Checks of every sample of every op.

Each check prints the call, the seed and both values.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import op_calls as calls
import pytest
from op_calls import Array, as_tensor, call, flow, results, values

from flowvm.autograd import enable_grad, gradcheck, gradgradcheck, no_grad
from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import DType
from flowvm.ops.declare.registry import OpSamples, Sample, _operators
from flowvm.vm.engine.engine import engine


class Checks:
    """The checks of one op, with numbers from one seed."""

    def __init__(self, op: OpSamples, seed: int) -> None:
        self.op = op
        self.seed = seed

    def samples(self) -> Iterator[Sample]:
        yield from self.op.generate(np.random.default_rng(self.seed))

    # --- values -------------------------------------------------------------------------------

    def forward(self, dtype: str) -> None:
        """Against the reference, with the floating arguments in `dtype`."""
        floating = False
        for original in self.samples():
            floating = floating or calls.has_floats(original)
            if not calls.has_floats(original) and dtype != self.op.floats[0]:
                continue  # integers only: once is enough
            sample = calls.in_dtype(original, dtype)
            actual = results(call(self.op.function, sample, as_tensor))
            want = results(call(self.op.reference, sample, calls.widened))
            self.same(sample, actual, want, dtype)
            for g in actual:
                self.meta(sample, g)
        if not floating and dtype != self.op.floats[0]:
            pytest.skip("no floating arguments")

    def same(
        self, sample: Sample, actual: list[Any], want: list[Any], dtype: str, exact: bool = False
    ) -> None:
        where = calls.shown(self.op, sample, self.seed)
        assert len(actual) == len(want), f"{where}\n{len(actual)} results, expected {len(want)}"
        for i, (g, w) in enumerate(zip(actual, want, strict=True)):
            a, b = values(g), values(w)
            text = f"result {i} of {where}\ngot:\n{a!r}\nexpected:\n{b!r}"
            assert a.shape == b.shape, f"shape {a.shape}, expected {b.shape}\n{text}"
            assert self.close(a, b, dtype, exact), f"values differ\n{text}"

    def close(self, a: Array, b: Array, dtype: str, exact: bool) -> bool:
        if exact:
            return a.dtype == b.dtype and a.tobytes() == b.tobytes()
        if a.dtype.kind == "c":
            parts = zip((a.real, a.imag), (b.real, b.imag), strict=True)
            return all(self.close(x, y, dtype, exact) for x, y in parts)
        if a.dtype.kind != "f":
            return bool(np.array_equal(a, b))
        coarser = min((a.dtype.name, dtype), key=lambda n: np.finfo(n).precision)
        rtol, atol = calls.tolerances(self.op, coarser)
        with np.errstate(all="ignore"):
            b = b.astype(a.dtype).astype(
                np.float64
            )  # so that what overflows, overflows on both sides
            return bool(np.allclose(a.astype(np.float64), b, rtol, atol, equal_nan=True))

    def meta(self, sample: Sample, result: Any) -> None:
        """Check that a result's meta is true: its shape and strides stay inside its memory."""
        if not isinstance(result, Tensor):
            return
        where = calls.shown(self.op, sample, self.seed)
        meta, array = result._meta, values(result)
        assert array.dtype == meta.dtype.numpy, f"{array.dtype} in memory, {meta!r}\n{where}"
        assert array.shape == tuple(meta.shape), f"{array.shape} in memory, {meta!r}\n{where}"
        assert len(meta.stride) == meta.ndim, f"{meta!r} has strides {meta.stride}\n{where}"
        assert not result.requires_grad, f"requires grad, and no argument does\n{where}"

    def strided(self) -> None:
        """Arguments with gaps or the dimensions the other way round give the same."""
        for original in self.samples():
            sample = calls.in_dtype(original, self.op.floats[0])
            want = results(call(self.op.function, sample, as_tensor))
            for way in (calls.transposed, calls.stepped):
                actual = results(call(self.op.function, sample, way))
                self.same(sample, actual, [values(w) for w in want], self.op.floats[0])

    def sequential(self) -> None:
        """The threaded VM and the plain loop agree in every bit."""
        dtype = self.op.floats[-1 if len(self.op.floats) == 1 else 1]
        samples = [calls.in_dtype(s, dtype) for s in self.samples()]
        threaded = [
            [values(r) for r in results(call(self.op.function, s, as_tensor))] for s in samples
        ]
        with engine.sequential.region():
            plain = [
                [values(r) for r in results(call(self.op.function, s, as_tensor))] for s in samples
            ]
        for sample, t, p in zip(samples, threaded, plain, strict=True):
            self.same(sample, t, p, dtype, exact=True)

    # --- gradients ----------------------------------------------------------------------------

    def gradients(self, check: Any) -> None:
        tried = 0
        for original in self.samples():
            if not calls.has_floats(original):
                continue
            sample = calls.in_dtype(original, "float64")
            arrays = calls.arrays_of(sample)
            plain = results(call(self.op.function, sample, as_tensor))
            if not any(a.size for a in arrays if calls.is_float(a)) or not any(
                values(r).size for r in plain
            ):
                self._empty_gradients(sample)
                continue
            inputs = [as_tensor(a) for a in arrays]
            for t, a in zip(inputs, arrays, strict=True):
                t.requires_grad_(calls.is_float(a))

            def function(*tensors: Tensor, sample: Sample = sample) -> Any:
                inputs = iter(tensors)
                out = results(call(self.op.function, sample, lambda a: next(inputs)))
                return tuple(o for o in out if isinstance(o, Tensor))

            tried += 1
            try:
                check(function, inputs)
            except Exception as error:
                error.add_note(calls.shown(self.op, sample, self.seed))
                raise
        if not tried:
            pytest.fail(f"no sample of {self.op.name} has a floating argument; give grad=False")

    def _empty_gradients(self, sample: Sample) -> None:
        """Backward from an op on tensors without elements gives gradients without elements."""
        inputs: list[Tensor] = []

        def leaf(a: Array) -> Tensor:
            t = as_tensor(a).requires_grad_(calls.is_float(a))
            inputs.append(t)
            return t

        with enable_grad():
            out = results(call(self.op.function, sample, leaf))
        for o in out:
            if isinstance(o, Tensor) and o.requires_grad:
                o.backward(as_tensor(np.ones(o.shape)), retain_graph=True)
        for t in inputs:
            assert t.grad is None or t.grad.shape == t.shape, calls.shown(
                self.op, sample, self.seed
            )

    def gradcheck(self) -> None:
        self.gradients(gradcheck)

    def gradgradcheck(self) -> None:
        self.gradients(gradgradcheck)

    # --- against PyTorch ----------------------------------------------------------------------

    def torch(self) -> None:
        """PyTorch's function of this name gives the same dtypes, shapes and values."""
        torch = pytest.importorskip("torch")
        places = (torch.nn.functional, torch, torch.linalg, torch.special, torch.Tensor)
        twin = next((getattr(p, self.op.name) for p in places if hasattr(p, self.op.name)), None)
        if twin is None:
            pytest.skip(f"PyTorch has no {self.op.name}")
        refused: list[Exception] = []
        compared = 0
        for original in self.samples():
            sample = calls.in_dtype(
                original, "float32" if "float32" in self.op.floats else "float64"
            )
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what PyTorch means to rename
                    want = results(self._torch_call(torch, twin, sample))
            except (TypeError, RuntimeError, NotImplementedError, ValueError, IndexError) as error:
                refused.append(error)
                continue
            with no_grad():
                actual = results(call(self.op.function, sample, as_tensor))
            compared += 1
            where = calls.shown(self.op, sample, self.seed)
            for g, w in zip(actual, want, strict=False):
                if isinstance(g, Tensor) and isinstance(w, torch.Tensor):
                    name = str(w.dtype).removeprefix("torch.")
                    assert g.dtype.name == name, (
                        f"dtype {g.dtype.name}, PyTorch has {name}\n{where}"
                    )
            self.same(sample, actual, want, "float32")
        if not compared:
            pytest.skip(f"PyTorch takes none of the samples: {refused[0]}")

    def _torch_call(self, torch: Any, twin: Any, sample: Sample) -> Any:
        def plain(value: Any) -> Any:
            if isinstance(value, DType):
                return getattr(torch, value.name)
            if isinstance(value, (list, tuple)):
                return type(value)(plain(v) for v in value)
            return value

        def tensor(a: Array) -> Any:
            return torch.from_numpy(np.array(a, order="C"))

        args = [plain(calls.mapped(a, tensor)) for a in sample.args]
        kwargs = {k: plain(calls.mapped(v, tensor)) for k, v in sample.kwargs.items()}
        return twin(*args, **kwargs)

    # --- what a caller meets ------------------------------------------------------------------

    def errors(self) -> None:
        """Check that wrong arguments raise the declared error at the call, with a message."""
        for wrong, kind in self.op.errors:
            with pytest.raises(kind) as caught:
                wrong(flow)
            assert len(str(caught.value)) > 10, f"{kind.__name__} of {self.op.name} says too little"

    def letters(self) -> None:
        """The operator behind the function says how global tensors may be split, if it is one."""
        function = self.op.function
        operator = _operators.get(getattr(function, "__wrapped__", function))
        assert operator is None or operator.rules.letters is not None, (
            f"{self.op.name} does not say letters=: without them every rank computes all of "
            f"everything, and `unsplit` of flowvm.ops.declare.letters says so on purpose"
        )

    def docstring(self) -> None:
        text = (self.op.function.__doc__ or "").strip()
        assert len(text) > 15, f"{self.op.name} has no docstring"
