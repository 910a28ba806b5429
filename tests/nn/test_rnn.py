"""Recurrent layers, cells and packed sequences: against torch, in graphs, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ShapeError
from flowvm.nn.utils import rnn

LENGTHS = [2, 5, 1, 4]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"num_layers": 2, "bias": False},
    ],
    ids=["plain", "both ways", "no bias"],
)
def test_layers_like_torch(kind, options, rng):
    """Batched, unbatched and packed, with weights that go both ways by state_dict."""
    torch = pytest.importorskip("torch")
    ours = getattr(nn, kind)(3, 4, **options, dtype=flow.float64)
    theirs = getattr(torch.nn, kind)(3, 4, **options, dtype=torch.float64)
    state = {k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()}
    theirs.load_state_dict(state)
    ours.load_state_dict({k: flow.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    assert repr(ours) == repr(theirs)
    x = rng.standard_normal((5, 5, 3))
    for sample in (x, x[0]):
        for mine, other in zip(
            flat(ours(flow.tensor(sample))), flat(theirs(torch.tensor(sample))), strict=True
        ):
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), 1e-9, 1e-12)
    ways, outs = [], []
    for lib, layer, pack in ((flow, ours, rnn), (torch, theirs, torch.nn.utils.rnn)):
        first = bool(options.get("batch_first"))
        padded = lib.tensor(x[:4] if first else x[:, :4]).requires_grad_(True)
        packed = pack.pack_padded_sequence(padded, LENGTHS, first, enforce_sorted=False)
        out, h = layer(packed)
        full, lengths = pack.pad_packed_sequence(out, first, -1.0, 6)
        assert lengths.tolist() == LENGTHS
        outs = [full, *flat(h)]
        (sum(o.cos().sum() for o in outs)).backward()
        ways.append([*outs, padded.grad, *(p.grad for p in layer.parameters())])
    for mine, other in zip(*ways, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), 1e-9, 1e-12)


def flat(values):
    if isinstance(values, (tuple, list)):
        return [v for value in values for v in flat(value)]
    return [values]


def test_a_projection_like_torch(rng):
    torch = pytest.importorskip("torch")
    ours = nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True, dtype=flow.float64)
    theirs = torch.nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True, dtype=torch.float64)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    x = rng.standard_normal((5, 2, 3))
    mine, other = flat(ours(flow.tensor(x))), flat(theirs(torch.tensor(x)))
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), 1e-9, 1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("GRUCell", {"bias": False}),
     ("LSTMCell", {})],
)  # fmt: skip
def test_cells_like_torch(kind, options, rng):
    torch = pytest.importorskip("torch")
    ours = getattr(nn, kind)(3, 4, **options, dtype=flow.float64)
    theirs = getattr(torch.nn, kind)(3, 4, **options, dtype=torch.float64)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    assert repr(ours) == repr(theirs)
    for x in (rng.standard_normal((2, 3)), rng.standard_normal(3)):
        a, b = ours(flow.tensor(x)), theirs(torch.tensor(x))
        a, b = ours(flow.tensor(x), a), theirs(torch.tensor(x), b)
        for mine, other in zip(flat(a), flat(b), strict=True):
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), 1e-9, 1e-12)


class Step(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x)[0].square().mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_graph_trains_as_eager_code_does(kind):
    losses = []
    for graph in (False, True):
        flow.manual_seed(3)
        model = getattr(nn, kind)(3, 4, 2, dropout=0.3, bidirectional=True)
        x = flow.randn(5, 2, 3)
        if graph:
            step = Step(model)
        else:
            optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

            def step(x, model=model, optimizer=optimizer):
                loss = model(x)[0].square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss

        losses.append([step(x).item() for _ in range(4)])
    np.testing.assert_allclose(losses[0], losses[1], 1e-6)
    assert losses[0][0] != losses[0][-1]


def test_compiled():
    model = nn.LSTM(3, 4)
    compiled = flow.compile(model)
    x = flow.randn(5, 2, 3)
    assert np.array_equal(compiled(x)[0].detach().numpy(), model(x)[0].detach().numpy())


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="hidden_size"):
        nn.GRU(3, 0)
    with pytest.raises(ArgumentError, match="smaller than hidden_size"):
        nn.LSTM(3, 4, proj_size=4)
    with pytest.raises(ArgumentError, match="LSTM alone"):
        nn.GRU(3, 4, proj_size=2)
    with pytest.raises(ArgumentError, match="nonlinearity"):
        nn.RNN(3, 4, nonlinearity="selu")
    with pytest.warns(UserWarning, match="between layers"):
        nn.GRU(3, 4, dropout=0.5)
    layer = nn.LSTM(3, 4)
    with pytest.raises(ShapeError, match="input_size is 3"):
        layer(flow.ones(5, 2, 2))
    with pytest.raises(ArgumentError, match="steps, features"):
        layer(flow.ones(3))
    with pytest.raises(ShapeError, match=r"must have shape \(1, 2, 4\) and \(1, 2, 4\)"):
        layer(flow.ones(5, 2, 3), (flow.ones(1, 2, 4), flow.ones(1, 1, 4)))
    with pytest.raises(ShapeError, match="features"):
        nn.GRUCell(3, 4)(flow.ones(2, 5))


# --- packed sequences -----------------------------------------------------------------------------


def sequences():
    return [flow.arange(10 * n, 10 * n + n) for n in (3, 1, 2)]


def test_packing():
    packed = rnn.pack_sequence(sequences(), enforce_sorted=False)
    assert packed.data.tolist() == [30, 20, 10, 31, 21, 32]
    assert packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices.tolist() == [0, 2, 1] == packed.unsorted_indices.tolist()
    assert [s.tolist() for s in rnn.unpack_sequence(packed)] == [s.tolist() for s in sequences()]
    padded, lengths = rnn.pad_packed_sequence(packed, batch_first=True, total_length=4)
    assert padded.tolist() == [[30, 31, 32, 0], [10, 0, 0, 0], [20, 21, 0, 0]]
    assert lengths.tolist() == [3, 1, 2]
    assert packed.double().data.dtype is flow.float64
    assert packed.long() is packed
    assert not packed.is_cuda


def test_padding():
    padded = rnn.pad_sequence(sequences(), padding_value=-1, padding_side="left")
    assert padded.tolist() == [[30, -1, -1], [31, -1, 20], [32, 10, 21]]
    assert rnn.invert_permutation(None) is None
    assert rnn.invert_permutation(flow.tensor([2, 0, 1])).tolist() == [1, 2, 0]


def test_packing_is_checked():
    x = flow.ones(3, 2)
    with pytest.raises(ArgumentError, match="must fall"):
        rnn.pack_padded_sequence(x, [1, 2])
    with pytest.raises(ArgumentError, match="from 1 to the input's 3"):
        rnn.pack_padded_sequence(x, [4, 2])
    with pytest.raises(ArgumentError, match="from 1"):
        rnn.pack_padded_sequence(x, flow.tensor([2, 0]))
    with pytest.raises(ArgumentError, match="each of the 2 samples"):
        rnn.pack_padded_sequence(x, [1])
    with pytest.raises(ArgumentError, match="total_length"):
        rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, [3, 2]), total_length=2)
    with pytest.raises(ArgumentError, match="no sequence"):
        rnn.pad_sequence([])
    with pytest.raises(ShapeError, match="agree"):
        rnn.pad_sequence([flow.ones(2, 3), flow.ones(2, 2)])
