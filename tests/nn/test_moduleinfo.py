"""PyTorch's own samples of its modules: flowvm's give the same results, gradients and state.

A sixth of them in float64, all where FLOWVM_TEST_OPINFO is set.  Skipped where PyTorch, or what its
tests need, is not installed.
"""

import os
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
modules = pytest.importorskip("torch.testing._internal.common_modules")
sys.path.append(str(Path(__file__).parents[1] / "ops" / "helpers"))

import torch  # noqa: E402
from torch_samples import AbsentError, converted, flat, same  # noqa: E402

import flowvm as flow  # noqa: E402

ALL = "FLOWVM_TEST_OPINFO" in os.environ
ELSEWHERE = {
    "TransformerEncoder": "the table gives it a layer of PyTorch's",
    "FractionalMaxPool2d": "random", "FractionalMaxPool3d": "random",
    "Dropout": "random", "RReLU": "random",
    "KLDivLoss": "the table has a target that hangs on the input",
}  # fmt: skip


def each():
    for info in modules.module_db:
        name = info.module_cls.__name__
        if name in ELSEWHERE or not hasattr(flow.nn, name) or name.startswith("Lazy"):
            continue
        for training in (True, False):
            if ALL or zlib.crc32(f"{name} {training}".encode()) % 6 == 0:
                mode = "train" if training else "eval"
                yield pytest.param(info, training, id=f"{name}-{mode}")


@pytest.mark.parametrize(("info", "training"), list(each()))
def test_it_is_pytorchs(info, training):
    options = {"device": "cpu", "dtype": torch.float64, "requires_grad": True}
    for sample in info.module_inputs_func(info, training=training, **options)[:4]:
        constructor, arguments = sample.constructor_input, sample.forward_input
        callables = [v for v in (*constructor.args, *constructor.kwargs.values()) if callable(v)]
        if arguments is None or callables:
            continue  # no call, or a function of PyTorch's
        theirs = (
            info.module_cls(*constructor.args, **constructor.kwargs)
            .to(torch.float64)
            .train(training)
        )
        leaves = []
        try:
            args, kwargs = converted((tuple(constructor.args), dict(constructor.kwargs)), [])
            inputs, named = converted((tuple(arguments.args), dict(arguments.kwargs)), leaves)
        except AbsentError:
            continue
        ours = getattr(flow.nn, info.module_cls.__name__)(*args, **kwargs)
        ours = ours.to(flow.float64).train(training)
        ours.load_state_dict({k: converted(v, []) for k, v in theirs.state_dict().items()})
        torch.manual_seed(0)
        want = [w for w in flat(theirs(*arguments.args, **arguments.kwargs)) if w is not None]
        actual = [g for g in flat(ours(*inputs, **named)) if g is not None]
        assert len(actual) == len(want)
        pairs = [(getattr(g, "data", g), getattr(w, "data", w)) if type(w).__name__ ==
                 "PackedSequence" else (g, w)
                 for g, w in zip(actual, want, strict=True)]  # fmt: skip
        what = f"{info.module_cls.__name__}{constructor.args}{constructor.kwargs}"
        for g, w in pairs:
            same(g, w, what)
        for (name, mine), (key, value) in zip(
            ours.state_dict().items(), theirs.state_dict().items(), strict=True
        ):
            assert name == key
            same(mine, value, f"{name} of {what}")
        pairs = [(g, w) for g, w in pairs if isinstance(w, torch.Tensor) and w.requires_grad]
        if not pairs:
            continue
        leaves += [
            (a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True)
            if a.requires_grad
        ]  # fmt: skip
        seeds = [torch.randn_like(w) for _, w in pairs]
        expected = torch.autograd.grad(
            [w for _, w in pairs], [x for x, _ in leaves], seeds, allow_unused=True
        )
        gradients = flow.autograd.grad(
            [g for g, _ in pairs], [x for _, x in leaves], [converted(s, []) for s in seeds],
            allow_unused=True,
        )  # fmt: skip
        for g, w in zip(gradients, expected, strict=True):
            if g is None or w is None:
                assert w is None or not w.any()
                assert g is None or not g.numpy().any()
            else:
                same(g, w, f"a gradient of {what}")


def test_there_are_enough_of_them():
    assert len(list(each())) >= 25
