"""Tutorial 10: global tensors.

A tensor that lives on several processes, and one program that all of them run.  This file runs on
one rank, and on as many as you start:

    python tutorials/10_global_tensors.py
    flowvm launch -n 2 tutorials/10_global_tensors.py
    mpiexec -n 4 python tutorials/10_global_tensors.py

What is printed below is printed by the first rank alone, but computed by all: a global tensor is
put together from all its ranks when it is read, so all of them have to read it.
"""

# %% A placement says which ranks hold a tensor, an sbp what each of them holds.
from typing import Any

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn

P = flow.placement.all("cpu")
S, B = flow.sbp.split, flow.sbp.broadcast
dist.init_process_group("mpi")
first = dist.get_rank() == 0


def say(*values: Any) -> None:
    """Print on the first rank; every rank makes the text."""
    text = " ".join(map(str, values))
    if first:
        print(text, flush=True)


say(P)

# %% Rows of x are cut among the ranks; w is on all of them.  The shape is that of the whole tensor,
# and random numbers do not depend on where they lie.
flow.manual_seed(0)
x = flow.randn(4, 6, placement=P, sbp=S(0))
w = flow.randn(6, 3, placement=P, sbp=B)
say(x.shape, x.sbp, "here:", tuple(x.to_local().shape))

# %% An op computes on what each rank has.  Rows of x times w are rows of the product.
y = x @ w
say(y.sbp)
say(y)

# %% Columns of x meet rows of w: each rank has a summand of the product, and nothing was sent.
by_columns = x.to_global(sbp=S(1))
say((by_columns @ w).sbp)

# %% What cannot be computed so is boxed to something that can.  explain() says what an op chose,
# and the bytes that each rank receives.
say(flow.sbp.explain(lambda: (by_columns @ w).relu()))

# %% The same by hand: summands are added by an all-reduce, columns become rows by an all-to-all.
say(x.to_global(sbp=S(1)).to_global(sbp=B).sbp)

# %% Data parallel: rows of the batch are cut, parameters are on every rank.  Their gradients
# come as summands, and are added when they become `.grad`.
lower, upper = nn.Linear(6, 16), nn.Linear(16, 2)
model = nn.Sequential(lower, nn.ReLU(), upper).to_global(P, B)
optimizer = flow.optim.Adam(model.parameters(), lr=0.05)
target = flow.randint(0, 2, (4,), placement=P, sbp=S(0))
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", round(loss.item(), 4))

# %% Tensor parallel: the first layer's outputs and the second layer's inputs are cut instead.  The
# program stays as it is; gradients and the optimizer's state are cut as the parameters are.
lower.to_global(P, S(0))
upper.weight = nn.Parameter(upper.weight.detach().to_global(sbp=S(1)))
say(flow.sbp.explain(model, x.to_global(sbp=B)))


# %% A graph captures each rank's instructions, and the collectives among them.
class Step(nn.Graph):
    """One training step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.05))

    def build(self, x: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        loss = nn.functional.cross_entropy(self.model(x), target)
        loss.backward()
        return loss


step = Step()
for _ in range(3):
    say("loss", round(step(x, target).item(), 4))
