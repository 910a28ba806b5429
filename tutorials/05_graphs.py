"""Tutorial 05: graphs.

A training step captured once and replayed as one instruction, what was captured, what it was
compiled to, and when that happens again.
"""

# %% The training of tutorial 04, as a function of how one step is taken.
import time
from collections.abc import Callable

import flowvm as flow
from flowvm import nn
from flowvm.datasets import load_digits
from flowvm.errors import CaptureError

Step = Callable[[flow.Tensor, flow.Tensor], flow.Tensor]
images, labels = load_digits("train")


def new_model() -> nn.Module:
    flow.manual_seed(0)
    layers = nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def new_optimizer(model: nn.Module) -> tuple[flow.optim.Optimizer, flow.optim.lr_scheduler.StepLR]:
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, flow.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)


def train(step: Step) -> float:
    """The mean loss of the last of four epochs."""
    batches = range(0, len(images) - 31, 32)
    for _ in range(4):
        total = flow.zeros(())
        for k in batches:
            total += step(images[k : k + 32], labels[k : k + 32]).detach()
    return float(total.item()) / len(batches)


# %% Eager: every op of the step is issued, every time.
model = new_model()
optimizer, schedule = new_optimizer(model)
loss_of = nn.CrossEntropyLoss()


def eager_step(x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
    optimizer.zero_grad()
    loss: flow.Tensor = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss


eager_loss = train(eager_step)
print(f"eager: loss {eager_loss:.4f}, learning rate {optimizer.param_groups[0]['lr']:.4f}")


# %% As a graph: `build` is the forward and the backward pass; gradients are cleared, and optimizer
# and schedule are stepped, by the graph.  The first call is an ordinary eager step, in which the
# optimizer makes its momentum; the second captures `build`, compiles it and runs it; the others
# replay.
class TrainStep(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.optimizer, schedule = new_optimizer(model)
        self.add_optimizer(self.optimizer, lr_sch=schedule)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss: flow.Tensor = loss_of(self.model(x), y)
        loss.backward()
        return loss


graph = TrainStep(new_model())
graph_loss = train(graph)
rate = graph.optimizer.param_groups[0]["lr"]
print(f"graph: loss {graph_loss:.4f}, learning rate {rate:.4f}")
assert abs(graph_loss - eager_loss) < 1e-3 * eager_loss

# %% How long is a step?  (Both run ahead of computing, so both wait once, at the end.)


def microseconds(step: Step) -> float:
    flow.vm.sync()
    began = time.perf_counter()
    for _ in range(300):
        step(images[:32], labels[:32])
    flow.vm.sync()
    return (time.perf_counter() - began) / 300 * 1e6


print(f"a step: eager {microseconds(eager_step):.0f} us, graph {microseconds(graph):.0f} us")

# %% What runs, after the passes, under the module that it belongs to: an operator is an instruction
# with its operands, and the line that issued it.  A ! marks what is changed in place.  `lr` is a
# number that each replay finds anew: the schedule changes it, and nothing is captured again.
print(graph)

# %% The same as a table, in the order of execution.  `in` are the arguments of a call, `var` what
# outlives it: parameters, the optimizer's momentum.
print(graph.graphs[0])

# %% What it was compiled to: registers and tasks.  Temporaries have their places in one chunk, and
# share bytes where their lives do not meet.
print(graph.plans[0].dump())

# %% A call is one instruction for the VM, ordered among eager ones by its operands.
x, y = images[:32], labels[:32]
print(flow.vm.trace(lambda: graph(x, y) * 2))

# %% Another shape, dtype, or number among the arguments is another Plan.  `explain` says which
# there are, and why.
graph(images[:5], labels[:5])
print(graph.explain())

# %% The parameters are the model's own, so everything else goes on as before.
model = graph.model.eval()
test_x, test_y = load_digits("test")
with flow.no_grad():
    right = (model(test_x).argmax(1) == test_y).float().mean().item()
print(f"test accuracy {right:.1%}")
assert right > 0.9


# %% `flow.compile` makes a graph of a function, also as a decorator.  Nothing that it returns has a
# place in autograd: what is to be differentiated is differentiated inside.
def formula(x: flow.Tensor) -> flow.Tensor:
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    result: flow.Tensor = 0.5 * x * (1 + flow.tanh(inner))
    return result


gelu = flow.compile(formula)
x = flow.linspace(-3, 3, 7)
print(gelu(x), nn.functional.gelu(x, approximate="tanh"), sep="\n")
print(gelu)

# %% Nine elementwise ops became one kernel, generated for this chain.  Passes print what they do:
# on stderr, for the name of a pass or "all" (or set FLOWVM_DEBUG_PASS before the start).
with flow.config(debug_pass="fusion"):
    flow.compile(lambda x: flow.relu(x * 2 + 1))(x)


# %% While a graph is captured no tensor has a value, so code that asks for one is told so.  Shapes
# and dtypes are there, and numbers and branches that depend on them are fixed at capture.
@flow.compile
def scaled(x: flow.Tensor) -> flow.Tensor:
    largest = x.abs().max()
    if largest.item() > 1:  # the value is asked for
        x = x / largest
    return x


try:
    scaled(x)
except CaptureError as error:
    print(f"CaptureError: {error}")


# %% The same with tensors alone: both outcomes are computed, and one is chosen by the kernel.
@flow.compile
def scaled_by_where(x: flow.Tensor) -> flow.Tensor:
    largest = x.abs().max()
    result: flow.Tensor = x / flow.where(largest > 1, largest, 1.0)
    return result


print(scaled_by_where(x))

# %% A pass can be left out, for instance to compare bits.  Without fusion the kernels are those of
# eager code; within one kernel, a product and a sum may be rounded once instead of twice.
unfused = flow.compile(formula)
unfused.config.disable("fusion")
many = flow.linspace(-3, 3, 100_000)
for name, compiled in ("fused", gelu), ("unfused", unfused):
    differ = (compiled(many) != formula(many)).sum().item()
    print(f"{name}: {differ} of 100,000 differ from eager code")
