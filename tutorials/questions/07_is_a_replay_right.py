"""Question 7: can a replay be silently wrong?

What a graph captured is looked at before each launch: shapes, dtypes, settings, the identity of
what it reads. What it cannot see is turned down at capture. And a switch compares replays with
eager code.
"""

# %% A branch on a value has no value at capture: an error on the line, and what to write instead.
import textwrap

import flowvm as flow
from flowvm.errors import CaptureError


@flow.compile
def branch(x: flow.Tensor) -> flow.Tensor:
    return x if x.sum() > 0 else -x


try:
    branch(flow.ones(3))
except CaptureError as error:
    print("CaptureError:", *textwrap.wrap(str(error), 90), sep="\n    ")


@flow.compile
def chosen(x: flow.Tensor) -> flow.Tensor:
    return flow.where(x.sum() > 0, x, -x)


print(chosen(flow.ones(3)), chosen(-flow.ones(3)))

# %% Every n-th call is computed eagerly as well, and compared; a difference names the first node.
chosen.config.check(2)
for k in range(4):
    chosen(flow.full((3,), k - 1.5))
print(chosen.config)

# %% A capture that failed leaves everything usable.
print(branch.explain())
print((flow.ones(2) + 1).tolist())
