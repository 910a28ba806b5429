"""GCN and GAT, networks on sparse matrices, that tell the subject of papers in a citation graph.

The graph is made from a seed: papers of five subjects cite papers of their own subject more often,
and use its words more often.  The subject of some is known.  Each network is trained 20 steps, as
eager code, as a graph and with PyTorch where that is installed: the losses agree.  Then it is
trained on, and says how many of the others it gets right.

Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017;
Velickovic and others, "Graph attention networks", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import compare, eager, trained

import flowvm as flow

PAPERS, SUBJECTS, WORDS, KNOWN = 600, 5, 120, 60

rng = np.random.default_rng(0)
subject = rng.integers(0, SUBJECTS, PAPERS)
alike = subject[:, None] == subject[None, :]
cites = rng.random((PAPERS, PAPERS)) < np.where(alike, 0.02, 0.001)
links = cites | cites.T | np.eye(PAPERS, dtype=bool)
often = 0.02 + 0.1 * (np.arange(WORDS)[None, :] % SUBJECTS == subject[:, None])
words = (rng.random((PAPERS, WORDS)) < often).astype(np.float32)
words /= np.maximum(words.sum(1, keepdims=True), 1)
known = np.arange(PAPERS) < KNOWN
targets, sources = np.nonzero(links)
degree = links.sum(1)
weights = (1 / np.sqrt(degree[targets] * degree[sources])).astype(np.float32)
places = np.stack([targets, sources])


# %% Kipf and Welling's: each paper gets the weighted mean of what its neighbours are.
def make_gcn(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn
    edges = lib.sparse_coo_tensor(lib.tensor(places), lib.tensor(weights), (PAPERS, PAPERS))
    adjacency = edges.coalesce()

    class GraphConvolution(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(lib.empty(inputs, outputs))
            self.bias = nn.Parameter(lib.zeros(outputs))
            nn.init.xavier_uniform_(self.weight)

        def forward(self, x: Any) -> Any:
            return lib.sparse.mm(adjacency, x @ self.weight) + self.bias

    class GCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gc1, self.gc2 = GraphConvolution(WORDS, 16), GraphConvolution(16, SUBJECTS)

        def forward(self, x: Any) -> Any:
            return self.gc2(nn.functional.relu(self.gc1(x)))

    return GCN()


# %% Velickovic's: how much of each neighbour is learned, a softmax over the values of a row.
def make_gat(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn
    edge_index = lib.tensor(places)
    row, col = edge_index[0], edge_index[1]

    class SparseAttention(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.lin = nn.Linear(inputs, outputs, bias=False)
            self.to_source = nn.Parameter(lib.empty(outputs, 1))
            self.to_target = nn.Parameter(lib.empty(outputs, 1))
            for weight in (self.lin.weight, self.to_source, self.to_target):
                nn.init.xavier_uniform_(weight)

        def forward(self, x: Any) -> Any:
            h = self.lin(x)
            scores = (h @ self.to_target).squeeze(1)[row] + (h @ self.to_source).squeeze(1)[col]
            scores = nn.functional.leaky_relu(scores, 0.2)
            attention = lib.sparse_coo_tensor(
                edge_index, scores, (PAPERS, PAPERS), is_coalesced=True
            )
            return lib.sparse.mm(lib.sparse.softmax(attention, dim=1), h)

    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(SparseAttention(WORDS, 8) for _ in range(2))
            self.out = SparseAttention(16, SUBJECTS)

        def forward(self, x: Any) -> Any:
            h = lib.cat([nn.functional.elu(head(x)) for head in self.heads], 1)
            return self.out(h)

    return GAT()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)

    @compiled
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x)
        loss = lib.nn.functional.cross_entropy(out[:KNOWN], y[:KNOWN])
        loss.backward()
        optimizer.step()
        return loss

    return step


# %% The same 20 steps of each, each way; then more of them, and who is told right.
batch = words, subject
for name, make in (("GCN", make_gcn), ("GAT", make_gat)):
    print(name)
    model, _ = compare(make, training, [batch] * 20)
    trained(flow, training(flow, model, eager), [batch] * 60)
    with flow.no_grad():
        prediction = model(flow.tensor(words)).argmax(1)
    right = (prediction == flow.tensor(subject))[flow.tensor(~known)].sum().item()
    print(f"{name}: {right} of {PAPERS - KNOWN} subjects are told right")
    if right < 0.8 * (PAPERS - KNOWN):
        raise SystemExit(f"{name} has not learned what is cited with what")
