"""The VM's calls of the driver: streams and events order conflicting launches.

Arguments are the operands'; memory is not used again too early; a call that fails is an error of
its instruction.

The recorder notes each call; the program alone says which launches must be ordered.
"""

import collections
import random

import numpy as np
import pytest

import flowvm as flow
from flowvm.cuda.simulator.recorder import Call, Recorder
from flowvm.errors import DeviceError

STEPS = 60


def marked(recorder: Recorder, mark: float) -> Call:
    """The launch that has `mark` among its arguments."""
    (call,) = [c for c in recorder.launches() if mark in c.launch.arguments]
    return call


def test_conflicting_launches_are_ordered(recorder: Recorder, seed: int) -> None:
    """Each step reads a tensor and writes another, on some stream; its factor marks it."""
    rng = random.Random(seed)
    streams = [flow.cuda.Stream() for _ in range(3)] + [flow.cuda.default_stream()]
    tensors = [flow.ones(8, device="cuda") for _ in range(5)]
    steps = []
    for number in range(STEPS):
        to, source = rng.sample(range(len(tensors)), 2)
        mark = 1000.5 + number + seed % 1000 * 1e6
        with flow.cuda.stream(rng.choice(streams)):
            flow.mul(tensors[source], mark, out=tensors[to])
        steps.append((mark, source, to))
    flow.cuda.synchronize()
    calls = [marked(recorder, mark) for mark, _, _ in steps]
    for j, (_, source, to) in enumerate(steps):
        for i, (_, source_before, to_before) in enumerate(steps[:j]):
            if to_before in (source, to) or source_before == to:
                assert recorder.ordered(calls[i], calls[j]), f"steps {i} and {j}, seed {seed}"


def test_unrelated_work_is_not_ordered(recorder: Recorder) -> None:
    """Or the test above would say nothing."""
    streams = [flow.cuda.Stream() for _ in range(2)]
    x, y = flow.ones(8, device="cuda"), flow.ones(8, device="cuda")
    flow.cuda.synchronize()
    with flow.cuda.stream(streams[0]):
        x.mul_(7.25)
    with flow.cuda.stream(streams[1]):
        y.mul_(7.75)
    flow.cuda.synchronize()
    first, second = marked(recorder, 7.25), marked(recorder, 7.75)
    assert not (recorder.ordered(first, second) and recorder.ordered(second, first))
    assert first.stream != second.stream


def test_a_copy_in_is_before_the_kernel_and_the_kernel_before_the_copy_out(
    recorder: Recorder,
) -> None:
    begun = len(recorder.calls)
    x = flow.arange(8).float().to("cuda")
    (x * 9.25).cpu().numpy()
    calls = recorder.calls[begun:]
    into = next(c for c in calls if c.name == "cuMemcpyHtoDAsync_v2" and c.arguments[2] == 32)
    out = next(c for c in calls if c.name == "cuMemcpyDtoHAsync_v2" and c.arguments[2] == 32)
    kernel = marked(recorder, 9.25)
    assert recorder.ordered(into, kernel)
    assert recorder.ordered(kernel, out)
    arrays = [a for a in kernel.launch.arguments if hasattr(a, "address")]
    assert into.arguments[0] in [a.address for a in arrays]
    assert out.arguments[1] in [a.address for a in arrays]


def test_arguments_are_the_operands(recorder: Recorder) -> None:
    x = flow.ones(6, 4, device="cuda") * 10.5
    y = x[1:, ::2] * 11.5
    flow.cuda.synchronize()
    whole = marked(recorder, 10.5).launch.arguments[0]
    out, part = [a for a in marked(recorder, 11.5).launch.arguments if hasattr(a, "address")]
    assert whole.dtype == out.dtype == part.dtype == "float32"
    assert part.address == whole.address + 16  # a row further: it is read where it lies
    block = recorder.memory.find(out.address)
    assert block is not None
    assert block.device == 0
    assert y.shape == (5, 2)


def test_a_block_is_used_again_only_behind_who_used_it_before(recorder: Recorder) -> None:
    """x is freed while its kernel waits on a stream; the next user of its memory comes later."""
    s = flow.cuda.Stream()
    for number in range(10):
        with flow.cuda.stream(s):
            x = flow.ones(1000, device="cuda") * (21.25 + number)
        del x
        y = flow.ones(1000, device="cuda") * (51.25 + number)
        del y
    flow.cuda.synchronize()
    launches = [c for c in recorder.launches() if c.launch.arguments]
    writes = [
        (c, c.launch.arguments[0].address)
        for c in launches
        if any(isinstance(a, float) and 21 < a < 62 for a in c.launch.arguments)
    ]
    assert len(writes) == 20
    for j, (second, at) in enumerate(writes):
        for first, before in writes[:j]:
            if at == before:
                assert recorder.ordered(first, second)


@pytest.mark.parametrize("code", [1, 719])
def test_a_launch_that_fails_is_its_instructions_error(code: int) -> None:
    """Run in a process of its own: the device's stream cannot be used any more."""
    import os
    import subprocess
    import sys

    program = f"""
import flowvm as flow
from flowvm.cuda.driver import driver
x = flow.ones(8, device="cuda")
flow.cuda.synchronize()
driver.driver().fake.fail("cuLaunchKernel", 1, {code})
y = x * 2
try:
    y.cpu().numpy()
except flow.errors.DeviceError as error:
    print(error)
print((flow.ones(2) + 1).sum().item())
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"FLOWVM_CUDA_DRIVER": "recorder"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    output, cpu = process.stdout.splitlines()
    assert "the CUDA device failed" in output
    assert "a failure that was asked for" in output
    assert ("the CUDA context is lost" in output) == (code == 719)
    assert cpu == "4.0"


def test_memory_that_the_driver_refuses_is_asked_for_again(recorder: Recorder) -> None:
    """Cached blocks go back first; only then it is an error, and the VM goes on."""
    x = flow.empty(3 << 20, device="cuda")
    flow.cuda.synchronize()
    del x
    flow.vm.sync()
    recorder.fail("cuMemAlloc_v2", 1, 2)
    freed = recorder.counts["cuMemFree_v2"]
    y = flow.empty(7 << 20, device="cuda")
    flow.cuda.synchronize()
    assert recorder.counts["cuMemFree_v2"] > freed
    del y
    flow.cuda.empty_cache()
    for k in (1, 2, 3):
        recorder.fail("cuMemAlloc_v2", k, 2)
    z = flow.empty(9 << 20, device="cuda")
    with pytest.raises(MemoryError, match="out of memory"):
        z.cpu().numpy()
    recorder.failures.clear()
    assert flow.ones(3, device="cuda").cpu().numpy().shape == (3,)
    assert issubclass(DeviceError, flow.FlowError)
    assert np.isfinite(flow.cuda.memory_allocated())


@pytest.mark.parametrize("layers", [1, 12])
def test_a_launch_of_a_graph_takes_few_calls(recorder: Recorder, layers: int) -> None:
    """However many tasks it has, whatever numbers change, and however many may report."""
    flow.manual_seed(0)
    weights = [flow.nn.Parameter(flow.ones(4, 4, device="cuda")) for _ in range(layers)]

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.optimizer = flow.optim.Adam(weights, lr=0.1)
            self.add_optimizer(self.optimizer)

        def build(self, x: flow.Tensor, index: flow.Tensor) -> flow.Tensor:
            for weight in weights:
                x = flow.nn.functional.dropout(x, 0.25) @ weight[index]
            x.backward(flow.ones_like(x))  # a gradient of its own: other drivers' tests left one
            return x

    step, x = Step(), flow.ones(4, 4, device="cuda")
    index = flow.arange(4, device="cuda")
    for _ in range(4):
        step.optimizer.param_groups[0]["lr"] *= 0.5
        step(x, index)
    flow.cuda.synchronize()
    assert step.plan.device_graph.text == "a CUDA graph, launched 2 times"
    assert len(step.plan.tasks) > 4 * layers
    before = len(recorder.calls)
    step(x, index)
    flow.cuda.synchronize()
    counts = collections.Counter(call.name for call in recorder.calls[before:])
    assert counts["cuGraphLaunch"] == 1
    # the numbers, and what comes behind: the lines; two inputs and the output
    assert counts["cuLaunchKernel"] == 2
    assert counts["cuMemcpyDtoDAsync_v2"] == 3
    waits = {"cuEventRecord", "cuEventQuery", "cuStreamSynchronize", "cuCtxSetCurrent"}
    assert set(counts) - waits == {"cuGraphLaunch", "cuLaunchKernel", "cuMemcpyDtoDAsync_v2"}
