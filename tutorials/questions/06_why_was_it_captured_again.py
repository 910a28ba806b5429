"""Question 6: why was my graph captured again?"""

# %% Each warning says what differed from the nearest plan, and where the call stands.
import warnings

import flowvm as flow

scale = 2.0


@flow.compile
def f(x: flow.Tensor, flag: bool = False) -> flow.Tensor:
    return (x * 3).relu() if flag else x + 1


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    f(flow.ones(4, 8))
    f(flow.ones(5, 8))  # another shape
    f(flow.ones(5, 8), True)  # another value of an argument
    f(flow.ones(5, 8, dtype=flow.float64))  # another dtype
for warning in said:
    print(f"{type(warning.message).__name__}: {warning.message}")

# %% All plans, with what each was made for and what it cost.
print(f.explain())
