"""Question 4: an error came late; which line was it?

Kernels run behind Python's back, so what only data can tell is found later. The error is raised
where a value is read, and says which line issued the instruction. Nothing is run again for it.
"""

# %% The index is wrong three lines above the line that raises.
import flowvm as flow

table = flow.arange(10.0)
places = flow.tensor([1, 5, 99])
picked = table[places]
doubled = picked * 2
try:
    print(doubled.sum().item())
except IndexError as error:
    print(f"{type(error).__name__}: {error}")
    print(*error.__notes__, sep="\n")

# %% Only what needed the failed result is poisoned; the VM goes on.
print((table + 1)[:3])
print(flow.vm.errors())

# %% To have each error on its own line, for a debugger: run instructions on the issuing thread.
with flow.vm.sequential():
    try:
        table[places]
    except IndexError as error:
        print("at once:", error)
