"""A graph attention network that tells which side each member of a karate club took.

It knows of the two leaders only.  It is trained 20 steps, as eager code, as a graph and with
PyTorch where that is installed: the losses agree.  Then it is trained on, and says how many it
gets right.

Velickovic and others, "Graph attention networks", 2017; the club: Zachary, "An information flow
model for conflict and fission in small groups", 1977.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import compare, eager, trained

import flowvm as flow

FRIENDS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}  # 78 friendships of 34 members
FIRST = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21)  # who went with member 0
MEMBERS, LEADERS = 34, (0, 33)
SIDES = np.array([0 if member in FIRST else 1 for member in range(MEMBERS)])


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn, functional = lib.nn, lib.nn.functional

    class GATConv(nn.Module):
        def __init__(self, inputs: int, outputs: int, heads: int) -> None:
            super().__init__()
            self.heads, self.outputs = heads, outputs
            self.lin = nn.Linear(inputs, heads * outputs, bias=False)
            self.att_src = nn.Parameter(lib.empty(1, heads, outputs))
            self.att_dst = nn.Parameter(lib.empty(1, heads, outputs))
            self.bias = nn.Parameter(lib.zeros(heads * outputs))
            for weight in (self.lin.weight, self.att_src, self.att_dst):
                nn.init.xavier_uniform_(weight)

        def forward(self, x: Any, edge_index: Any) -> Any:
            src, dst = edge_index
            h = self.lin(x).view(-1, self.heads, self.outputs)
            alpha = (h * self.att_src).sum(-1)[src] + (h * self.att_dst).sum(-1)[dst]
            alpha = functional.leaky_relu(alpha, 0.2)
            # softmax over the edges into each member
            index = dst.unsqueeze(-1).expand_as(alpha)
            top = alpha.new_full((x.size(0), self.heads), float("-inf"))
            top = top.scatter_reduce(0, index, alpha.detach(), reduce="amax")
            alpha = (alpha - top[dst]).exp()
            whole = alpha.new_zeros(x.size(0), self.heads).scatter_add_(0, index, alpha)
            alpha = alpha / (whole[dst] + 1e-16)
            out = lib.zeros_like(h).index_add_(0, dst, h[src] * alpha.unsqueeze(-1))
            return out.flatten(1) + self.bias

    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GATConv(MEMBERS, 8, heads=4), GATConv(32, 2, heads=1)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv2(functional.elu(self.conv1(x, edge_index)), edge_index)

    return GAT()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    optimizer = lib.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)

    @compiled
    def step(x: Any, edge_index: Any, known: Any, y: Any) -> Any:
        model.train()
        optimizer.zero_grad()
        out = lib.nn.functional.log_softmax(model(x, edge_index), dim=1)
        loss = lib.nn.functional.nll_loss(out[known], y[known])
        loss.backward()
        optimizer.step()
        return loss

    return step


pairs = [(a, b) for a, others in FRIENDS.items() for b in others]
edges = pairs + [(b, a) for a, b in pairs] + [(a, a) for a in range(MEMBERS)]
known = np.isin(np.arange(MEMBERS), LEADERS)
batch = np.eye(MEMBERS, dtype=np.float32), np.array(edges).T.copy(), known, SIDES

# %% The same 20 steps, each way.
model, _ = compare(make, training, [batch] * 20)

# %% More of them, and who is told right.
trained(flow, training(flow, model, eager), [batch] * 80)
with flow.no_grad():
    prediction = model(flow.tensor(batch[0]), flow.tensor(batch[1])).argmax(1)
right = (prediction == flow.tensor(SIDES)).sum().item()
print(f"{right} of {MEMBERS} members are told right")
if right < 0.9 * MEMBERS:
    raise SystemExit("it has not learned who is whose friend")
