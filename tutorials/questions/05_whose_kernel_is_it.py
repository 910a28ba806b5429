"""Question 5: a captured graph runs one fused kernel; which lines and modules is it?"""

# %% A network, captured.
import flowvm as flow
from flowvm import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        y = self.body(x)
        return (y * y + 1).sqrt().mean(1)


net = Net()


class Call(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.net = net

    def build(self, x: flow.Tensor) -> flow.Tensor:
        return self.net(x)


call = Call()
x = flow.randn(8, 32)
call(x)

# %% The graph as it was written: modules, operators, lines.
print(call)

# %% The Plan that runs: each task with what was fused into it, and the lines it came from.
print(call.plans[0].dump())

# %% In a profile a launch is its tasks, each with its module.
with flow.profiler.profile() as p:
    call(x).sum().item()
print(p.plan())
