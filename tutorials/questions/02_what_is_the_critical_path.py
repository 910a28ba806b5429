"""Question 2: what is the critical path, and what if one op cost nothing?"""

# %% Two branches; one is long.
import flowvm as flow

left, right = flow.Stream("left"), flow.Stream("right")
a = flow.randn(300, 300)


def work() -> flow.Tensor:
    with flow.stream(left):
        x = a
        for _ in range(4):
            x = (x @ a).tanh()
    with flow.stream(right):
        y = a.exp().sum(0)
    return x.sum() + y.sum()


work().item()
with flow.profiler.profile() as p:
    work().item()

# %% The *observed path* goes back from what ended last, through whatever held each instruction up,
# and sums to the wall time. The *floor* is the longest way through the data alone.
print(p.critical_path())

# %% What if an op cost nothing? The floor is worked out anew.
print(p.what_if("matmul"))
print(p.what_if("exp"))
