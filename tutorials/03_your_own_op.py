"""Tutorial 03: your own op.

An op is declared once; from the declaration it gets its instruction, its CPU kernel, its place in
autograd and in traces.
"""

# %% An elementwise op is a scalar expression and a gradient.
import flowvm as flow
from flowvm.ops import Launch, elementwise, op

square_plus = elementwise(
    "square_plus",
    "(x + sqrt(x * x + 4)) / 2",
    types="float",
    saves="x",
    grad=lambda c, g: (g * (1 + c.saved[0] / flow.sqrt(c.saved[0] ** 2 + 4)) / 2,),
)

x = flow.tensor([-2.0, 0.0, 2.0], dtype=flow.float64, requires_grad=True)
print(square_plus(x))
print("gradient right:", flow.autograd.gradcheck(square_plus, (x,)))

# %% Any other op has a kernel body: a plain function on arrays, compiled by Numba, which works on a
# range of units.  The decorated function is its *infer*: it sees metas (shape, dtype), runs at the
# call, and says what to launch.


def running_max_body(out, x, lo, hi):  # type: ignore[no-untyped-def]
    for row in range(lo, hi):
        best = x[row, 0]
        for i in range(x.shape[1]):
            best = max(best, x[row, i])
            out[row, i] = best


@op("x -> out")
def running_max(x):  # type: ignore[no-untyped-def]
    """The largest value so far, along each row."""
    if x.ndim != 2 or x.shape[1] == 0:
        raise flow.errors.ShapeError(f"running_max needs a matrix, got shape {tuple(x.shape)}")
    return Launch(outputs=(x,), body=running_max_body, units=x.shape[0], grain=64)


print(running_max(flow.tensor([[1, 3, 2, 5, 4], [9, 1, 1, 1, 10]])))

# %% It is an instruction like any other ...
print(flow.vm.trace(running_max, flow.rand(3, 4)))

# %% ... and wrong arguments raise at the call.
try:
    running_max(flow.rand(3))
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")

# %% A kernel says what is wrong with the *data* by a status.  The error arrives where the result is
# read.
import math

from flowvm.errors import Status

INVALID = int(Status.INVALID_VALUE)


def checked_log_body(out, x, lo, hi, details):  # type: ignore[no-untyped-def]
    for i in range(lo, hi):
        if x[i] <= 0:
            details[0] = i
            return INVALID
        out[i] = math.log(x[i])
    return 0


@op("x -> out", saves="x", grad=lambda c, g: (g / c.saved[0],))
def checked_log(x):  # type: ignore[no-untyped-def]
    """Logarithm of a vector of positive numbers."""
    return Launch(outputs=(x,), body=checked_log_body, units=x.numel, grain=1 << 14)


print(checked_log(flow.tensor([1.0, 10.0])))
bad = checked_log(flow.tensor([1.0, -1.0]))
try:
    bad.numpy()
except ValueError as error:
    print(f"{type(error).__name__}: {error}")
    print(*error.__notes__, sep="\n")
