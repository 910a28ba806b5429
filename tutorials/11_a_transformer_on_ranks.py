"""Tutorial 11: a transformer on several ranks.

One script trains a small transformer data parallel, tensor parallel and in pipeline stages, in any
mix, and prints the same losses whatever the mix is:

    python tutorials/11_a_transformer_on_ranks.py
    flowvm launch -n 2 tutorials/11_a_transformer_on_ranks.py --tensor 2
    flowvm launch -n 4 tutorials/11_a_transformer_on_ranks.py --data 2 --tensor 2
    flowvm launch -n 4 tutorials/11_a_transformer_on_ranks.py --tensor 2 --stages 2
    flowvm launch -n 4 tutorials/11_a_transformer_on_ranks.py --data 2 --stages 2
    flowvm launch -n 4 tutorials/11_a_transformer_on_ranks.py --stages 4 --graph

The model does not know about ranks.  What differs is where its tensors lie, which is said once.
"""

# %% How many ranks there are of each kind; without arguments all of them are data parallel.
import argparse
import time
from typing import Any

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn

F = nn.functional
S, B = flow.sbp.split, flow.sbp.broadcast

dist.init_process_group("mpi")
parser = argparse.ArgumentParser()
parser.add_argument("--data", type=int, default=0, help="ranks that have a part of the batch each")
parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer")
parser.add_argument("--stages", type=int, default=1, help="groups of ranks with some layers each")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--graph", action="store_true", help="replay the step as a graph")
args, _ = parser.parse_known_args()
world = dist.get_world_size()
data = args.data or world // (args.tensor * args.stages)
if data * args.tensor * args.stages != world:
    raise SystemExit(
        f"{data} x {args.tensor} x {args.stages} ranks are asked for, and {world} were launched"
    )


def say(*values: Any) -> None:
    """Print on the first rank; every rank makes the text."""
    text = " ".join(map(str, values))
    if dist.get_rank() == 0:
        print(text, flush=True)


# %% A stage is a rectangle of ranks.  Along its rows the batch is cut, along its columns layers.
def rectangle(stage: int) -> flow.placement:
    """The ranks of a stage."""
    first = stage * data * args.tensor
    rows = [[first + i * args.tensor + j for j in range(args.tensor)] for i in range(data)]
    return flow.placement("cpu", rows)


stages = [rectangle(k) for k in range(args.stages)]
everybody = flow.placement.all("cpu")
say(stages)

# %% The model, as for one process.
WORDS, WIDTH, HEADS, LENGTH, BATCH, LAYERS = 32, 32, 4, 8, 16, 2


class Block(nn.Module):
    """Attention and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        h = self.norm1(x)
        q, k, v = (
            f(h).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: flow.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


flow.manual_seed(0)
embedding = nn.Embedding(WORDS, WIDTH)
blocks = [Block() for _ in range(LAYERS)]
head = nn.Linear(WIDTH, WORDS, bias=False)


# %% Where it lies.  An sbp has one entry for the rows of ranks and one for the columns: all rows
# have the same parameters.  Of the columns each has some heads and some hidden units.  A Linear's
# weight is (outputs, inputs): S(0) cuts what comes out, S(1) what goes in.
def place(module: nn.Module, where: flow.placement) -> None:
    """Cut the big layers of a module among the ranks of its stage, and place all parameters."""
    cut = {"query": S(0), "key": S(0), "value": S(0), "up": S(0), "out": S(1), "down": S(1)}
    for name, child in module.named_modules():
        for own, parameter in list(child.named_parameters(recurse=False)):
            columns = cut.get(name, B)
            if own == "bias" and columns is S(1):
                columns = B  # it is added once the summands are
            whole = parameter.detach().to_global(where, (B, B))
            child.register_parameter(own, nn.Parameter(whole.to_global(sbp=(B, columns))))


for number, module in enumerate((embedding, *blocks, head)):
    at = number * args.stages // (LAYERS + 2)
    place(module, stages[at])
    module.config.set_stage(at, stages[at])
parameters = [p for module in (embedding, *blocks, head) for p in module.parameters()]
own = sum(p.to_local().numel() for p in parameters if dist.get_rank() in p.placement.ranks)
say("parameters", sum(p.numel() for p in parameters), "on the first rank", own)


# %% From stage to stage activations move, because a module moves what it is called with to its
# stage: each rank sends its part to its counterpart.  On ranks that a tensor is not on, an op on it
# does nothing.
def loss_of(words: flow.Tensor, targets: flow.Tensor) -> flow.Tensor:
    """The loss, on the ranks of the last stage."""
    x = words
    for module in (embedding, *blocks, head):
        x = module(x)
    loss: flow.Tensor = F.cross_entropy(x.flatten(0, 1), targets.flatten())
    return loss


def batch(step: int) -> tuple[flow.Tensor, flow.Tensor]:
    """Return words and their successors: counting upwards from a random number."""
    flow.manual_seed(step)
    start = flow.randint(0, WORDS, (BATCH, 1), placement=stages[0], sbp=(S(0), B))
    places = flow.arange(LENGTH + 1, placement=stages[0], sbp=(B, B))
    words = (start + places) % WORDS
    return words[:, :-1], words[:, 1:].to_global(placement=stages[-1])


# %% A pipeline is kept busy by micro-batches: a stage computes forward for the next while the one
# behind it is at the last.  The program says in which order; who waits for what follows from the
# data, because nothing waits but for a tensor that is not there.
optimizer = flow.optim.AdamW(parameters, lr=0.01)
micro = 4 if args.stages > 1 else 1


def step_eagerly(words: flow.Tensor, targets: flow.Tensor) -> flow.Tensor:
    """A step; the mean loss."""
    optimizer.zero_grad()
    total: Any = 0
    waiting: list[flow.Tensor] = []
    for k in range(micro):
        mine = slice(k * BATCH // micro, (k + 1) * BATCH // micro)
        loss = loss_of(words[mine], targets[mine]) / micro
        total = total + loss.detach()
        waiting.append(loss)
        if len(waiting) == args.stages:  # as many forwards in flight as there are stages
            waiting.pop(0).backward()
    for loss in waiting:
        loss.backward()
    optimizer.step()
    mean: flow.Tensor = total
    return mean


# %% A graph needs no such order.  It is told the number of micro-batches, and each rank's Plan is
# its stage: of p stages, stage i may have p - i micro-batches in flight.  Forward and backward run
# when their inputs have come, which gives the same order.
class Train(nn.Graph):
    """The training step, captured once and replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([embedding, *blocks, head])
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(micro)

    def build(self, words: flow.Tensor, targets: flow.Tensor) -> flow.Tensor:
        """One micro-batch."""
        loss = loss_of(words, targets)
        loss.backward()
        return loss


graph = Train()
begin = time.perf_counter()
for step in range(args.steps):
    words, targets = batch(step)
    total = graph(words, targets).mean() if args.graph else step_eagerly(words, targets)
    total = total.to_global(placement=everybody, sbp=B)  # who reads it must have it
    say("loss", round(total.item(), 3))
say(f"{args.steps} steps, {time.perf_counter() - begin:.1f} s")
