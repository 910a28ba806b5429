"""Question 10: what does looking cost, and can it break the run?

The recorder writes words into an array as an instruction goes through the VM. Nobody waits for it,
and what reads it (`flowvm top PID`, the watchdog) is another process, or a thread without locks.
"""

# %% It measures itself; each summary has the figure in its first line.
import time

import flowvm as flow

print(flow.profiler.overhead())

# %% The same loop without the recorder, with it, and with everything a profile notes.
x = flow.ones(8, 8)


def loop(n: int = 20_000) -> float:
    begun = time.perf_counter()
    for _ in range(n):
        x + x
    flow.vm.sync()
    return (time.perf_counter() - begun) / n * 1e9


loop()
times = {}
for level in (0, 1, 2):
    flow.profiler.level = level
    times[level] = min(loop() for _ in range(3))
flow.profiler.level = 1
for level, ns in times.items():
    print(f"level {level}: {ns:5.0f} ns a call, {ns / times[0]:.2f}x")
