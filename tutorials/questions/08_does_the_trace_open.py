"""Question 8: does the trace open elsewhere?"""

# %% A run, exported for Perfetto (ui.perfetto.dev, or chrome://tracing) and for speedscope.
import json
import tempfile
from pathlib import Path

import flowvm as flow
from flowvm import nn

net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
x = flow.randn(16, 32)
net(x).sum().backward()
with flow.profiler.profile() as p:
    for _ in range(3):
        with flow.profiler.span("step"):
            net(x).sum().backward()

folder = Path(tempfile.mkdtemp())
p.export(str(folder / "run.json"))
p.export(str(folder / "run.speedscope.json"))

# %% A trace has one track a stream, slices that never overlap, arrows for what gated each
# instruction, and the critical path on a track of its own.
events = json.loads((folder / "run.json").read_text())["traceEvents"]
names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
print(sorted(names))
print({kind: sum(e["ph"] == kind for e in events) for kind in "XsfC"})

# %% The same as columns, for NumPy or pandas.
columns = p.to_columns()
print(sorted(columns)[:8], len(columns["op"]))
