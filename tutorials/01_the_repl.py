"""Tutorial 01: at the prompt.

Run it whole (`python tutorials/01_the_repl.py`), cell by cell in an editor that knows `# %%`, or
type it at `python -m flowvm`.
"""

# %% Tensors look and behave as you know them from PyTorch.
import flowvm as flow

a = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
b = flow.arange(4.0).reshape(2, 2)
print(a + b)
print(a @ b.T)
print(a.shape, a.dtype, a.device)

# %% Nothing above waited.  `a + b` wrote one record into the VM's ring and came back in about a
# microsecond, with a tensor whose shape is known and whose values are on their way.  Printing
# waits, for that tensor alone.
c = flow.ones(1000, 1000) @ flow.ones(1000, 1000)
print("issued; the shape is known already:", tuple(c.shape))
print(c[0, :3])

# %% What did the machine do?  Counters since the process began:
print(flow.vm.stats())

# %% Wrong arguments raise at the call, on your line, because shapes and dtypes are worked out when
# you call.
try:
    flow.ones(2, 3) @ flow.ones(2, 3)
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")

# %% What only the data can tell is found later, by the kernel, on another thread.  The result is
# *poisoned*; who reads it gets the original error, with a note that shows the line which issued the
# instruction.
table = flow.arange(10.0)
picked = table[flow.tensor([1, 5, 99])]
doubled = picked * 2
unrelated = table * 2
try:
    print(doubled.numpy())
except IndexError as error:
    print(f"{type(error).__name__}: {error}")
    print(*error.__notes__, sep="\n")

# %% Everything that did not need the failed result went on, and so does the VM.
print(unrelated)

# %% For pdb, or to have every error at once on its own line: run each instruction on this thread.
with flow.vm.sequential():
    try:
        table[flow.tensor([99])]
    except IndexError as error:
        print("at the call:", error)

# %% NumPy in and out: `flow.tensor` and `.numpy()` copy; `from_numpy` shares memory (and makes the
# array read-only, because the VM works behind Python's back); DLPack shares both ways.
import numpy as np

shared = flow.from_numpy(np.linspace(0.0, 1.0, 5))
print(np.from_dlpack(shared * 10))
