"""Wrong calls raise PyTorch's error, or a class that derives from it, so programs can catch it.

`CASES` says PyTorch's class; where PyTorch is found it is asked.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.commands.warmup import as_tensors
from flowvm.ops.declare.registry import SAMPLES

# `t` is the library's `ones`; each line is a call and PyTorch's class
CASES = [
    ("t(2, 3).sum((0, 0))", RuntimeError),
    ("t(2, 3).sum(5)", IndexError),
    ("t(2).long().softmax(0)", NotImplementedError),
    ("lib.cat([])", ValueError),
    ("lib.stack([t(2), t(3)])", RuntimeError),
    ("t(2, 3).view(-1, -1)", RuntimeError),
    ("t(2, 3).permute(0, 0)", RuntimeError),
    ("t(2, 3)[1.5]", IndexError),
    ("t(2, 3)[lib.tensor([0.5])]", IndexError),
    ("t(2, 3)[lib.tensor([5])].tolist()", IndexError),
    ("lib.gather(t(2, 3), 1, lib.tensor([[5]])).tolist()", RuntimeError),
    ("t(2, 3).chunk(0)", RuntimeError),
    ("t(2).item()", RuntimeError),
    ("lib.tensor(None)", RuntimeError),
    ("lib.tensor('a')", TypeError),
    ("lib.zeros(-1)", RuntimeError),
    ("lib.arange(0, 5, 0)", RuntimeError),
    ("lib.randint(5, 5, (2,))", RuntimeError),
    ("t(3).topk(5)", RuntimeError),
    ("lib.einsum('ij,jk', t(2, 3))", RuntimeError),
    ("t(2) & t(2)", NotImplementedError),
    ("~t(2)", TypeError),
    ("lib.tensor([2]) ** -1", RuntimeError),
    ("t(2).type('nope')", ValueError),
    ("nn.Linear(2, 3)([1, 2])", TypeError),
    ("nn.Linear(-2, 3)", RuntimeError),
    ("nn.Conv2d(3, 4, 3, groups=2)", ValueError),
    ("nn.BatchNorm2d(3)(t(2, 3))", ValueError),
    ("nn.Embedding(3, 2, padding_idx=5)", AssertionError),
    ("nn.MultiheadAttention(5, 2)", AssertionError),
    ("nn.Linear(2, 3).register_buffer('weight', t(2))", KeyError),
    ("nn.Linear(2, 3).train('x')", ValueError),
    ("nn.Sequential(nn.ReLU())['a']", TypeError),
    ("F.cross_entropy(t(2, 3), lib.tensor([0, 1, 2]))", ValueError),
    ("F.cross_entropy(None, None)", TypeError),
    ("F.mse_loss(t(2), t(2), reduction='x')", ValueError),
    ("F.binary_cross_entropy(t(2), t(3))", ValueError),
    ("F.margin_ranking_loss(t(2, 2), t(2), t(2))", RuntimeError),
    ("F.smooth_l1_loss(t(2), t(2), beta=-1)", RuntimeError),
    ("F.one_hot(lib.tensor([5]), 3).tolist()", RuntimeError),
    ("F.interpolate(t(1, 1, 2), size=2, mode='bilinear')", NotImplementedError),
    ("F.pad(t(1, 1, 2), (1, 1), mode='x')", NotImplementedError),
    ("F.max_pool2d(t(1, 1, 4, 4), 2, padding=2)", RuntimeError),
    ("lib.optim.SGD([], lr=0.1)", ValueError),
    ("lib.optim.Adam([t(2).requires_grad_()], betas=(2, 0.9))", ValueError),
    ("data.TensorDataset(t(2), t(3))", AssertionError),
    ("data.ConcatDataset([])", AssertionError),
    ("data.DataLoader([], shuffle=True)", ValueError),
    ("setattr(data.DataLoader([1]), 'batch_size', 3)", ValueError),
    ("data.WeightedRandomSampler([1.0], 2, 'x')", ValueError),
    ("lib.load(io.BytesIO(b'garbage'))", pickle.UnpicklingError),
    ("lib.manual_seed('a')", ValueError),
    ("nn.init.eye_(t(2))", ValueError),
    ("lib.func.vmap(lambda x: x.sum(), in_dims=3)(t(2))", ValueError),
    ("lib.finfo(lib.int64)", TypeError),
    ("lib.quantile(t(3), 2.0)", RuntimeError),
    ("lib.tensor([]).max()", RuntimeError),
    ("lib.fft.fft(t(4), norm='x')", RuntimeError),
    ("nn.utils.vector_to_parameters(3, [])", TypeError),
]


def raised(lib: Any, call: str) -> BaseException:
    import io

    names = {
        "lib": lib, "t": lib.ones, "nn": lib.nn, "F": lib.nn.functional, "data": lib.utils.data,
        "io": io,
    }  # fmt: skip
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is asked of it
        eval(call, names)
    return caught.value


@pytest.mark.parametrize(("call", "kind"), CASES)
def test_the_class_is_one_that_programs_catch(call: str, kind: type[BaseException]) -> None:
    error = raised(flow, call)
    assert isinstance(error, kind), type(error).__mro__
    assert isinstance(error, (flow.FlowError, KeyError, TypeError))
    assert str(error)


def test_the_classes_are_pytorch_s() -> None:
    torch = pytest.importorskip("torch")
    wrong = [(call, e) for call, kind in CASES if not isinstance(e := raised(torch, call), kind)]
    assert not wrong


def test_what_is_no_tensor_is_a_type_error() -> None:
    """A fifth of the ops, with None, a text and a list in the place of each tensor."""
    chance = np.random.default_rng(0)
    wrong = []
    for known in SAMPLES:
        if chance.random() > 0.2:
            continue
        sample = next(iter(known.generate(np.random.default_rng(0))))
        args = list(as_tensors(sample.args, False))
        kwargs = {k: as_tensors(v, False) for k, v in sample.kwargs.items()}
        for place, inputs in enumerate(args):
            for other in (None, "a", [1.0]) if isinstance(inputs, flow.Tensor) else ():
                try:
                    known.function(*args[:place], other, *args[place + 1 :], **kwargs)
                except (flow.FlowError, TypeError):
                    pass
                except Exception as error:
                    wrong.append((known.name, place, other, error))
    assert not wrong
