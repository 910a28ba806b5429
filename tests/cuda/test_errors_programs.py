"""Permanent faults on a simulated device, each in a program of its own.

They are a lost context, a driver that refuses, forks, Ctrl-C, and the end of Python with work in
flight.
"""

from programs import run

STICKY = """
import traceback
import flowvm as flow
from flowvm.ops import Launch, View, op
from flowvm.cuda.launch import CudaLaunch, KernelStep, Operand

def astray_kernel(out, x):
    out[0] = x[4_000_000]

def rule(launch, metas, attrs):
    params = Operand(0, View.of(launch.outputs[0])), Operand(1, View.of(metas[0]))
    step = KernelStep(astray_kernel, params, grid=(1, 1, 1), block=(1, 1, 1))
    return CudaLaunch(launch.outputs, (step,))

def body(out, x, lo, hi):
    out[0] = x[0]

@op("x -> out", cuda=rule)
def astray(x):
    return Launch(outputs=(x,), body=body, units=1, grain=1)

x = flow.ones(4, 4).to("cuda")
kept = x + 1
product = x @ x
flow.cuda.synchronize()
bad = astray(x)
uses = dict(
    reads=lambda: bad.cpu().numpy(),
    copies=lambda: kept.cpu().numpy(),
    computes=lambda: (kept + 1).cpu().numpy(),
    multiplies=lambda: (x @ x).cpu().numpy(),
    makes=lambda: flow.ones(3, device="cuda").sum().item(),
    moves=lambda: flow.ones(3).to("cuda").tolist(),
    waits=flow.cuda.synchronize,
    waits_again=flow.cuda.synchronize,
    asks=flow.cuda.mem_get_info,
    records=lambda: (flow.cuda.Event().record(), flow.cuda.synchronize()),
)
for name, use in uses.items():
    try:
        use()
        print(name, "raised nothing")
    except flow.errors.FlowError as error:
        print(name, type(error).__name__, str(error).replace("\\n", " "))
print("on the CPU", (flow.ones(3) + 1).sum().item())
other = flow.ones(3, device="cuda:1")
print("elsewhere", (other + 1).sum().item())
print("shown", "cannot be shown" in repr(kept))
flow.cuda.empty_cache()
"""


def test_a_context_that_is_lost_is_lost_and_said_by_each_use():
    message = dict(
        line.split(" ", 1)
        for line in run(STICKY, FLOWVM_CUDA_DRIVER="simulator:late,seed=3").splitlines()
    )
    assert (message.pop("on"), message.pop("elsewhere")) == ("the CPU 6.0", "6.0")
    assert message.pop("shown") == "True"
    assert len(message) == 10
    for use, text in message.items():
        assert text.startswith("DeviceError"), (use, text)
        assert "the CUDA context is lost, with all tensors on the device" in text, use
        assert "astray_kernel" in text, use  # the simulator knows whose fault it was
        assert "CPU tensors are still usable; restart Python" in text, use
        assert text.endswith("(CUDA_ERROR_ILLEGAL_ADDRESS)") or "CUDA_ERROR_" in text, use


REFUSED = """
import flowvm as flow
from flowvm.cuda.driver.driver import driver
x = flow.ones(4, 4).to("cuda")
product, more = x @ x, x + 1
flow.cuda.synchronize()
fake = driver().fake
cases = [
    ("cuLaunchKernel", 701, lambda: x + 1), ("cuLaunchKernel", 1, lambda: x + 1),
    ("cublasGemmStridedBatchedEx", 3, lambda: x @ x),
    ("cublasGemmStridedBatchedEx", 13, lambda: x @ x),
    ("cuMemAlloc_v2", 719, lambda: flow.empty(9 << 20, device="cuda")),
    ("cuMemcpyHtoDAsync_v2", 999, lambda: flow.ones(3).to("cuda")),
]
for name, code, call in cases:
    fake.fail(name, 1, code)
    try:
        call().cpu().numpy()
        print("nothing was raised")
    except flow.errors.FlowError as error:
        print(type(error).__name__, str(error).split("\\n")[0])
    assert (x + 1).cpu().shape == (4, 4)
    flow.cuda.synchronize()  # nothing of it stays
"""


def test_a_call_that_is_refused_names_the_call_and_the_next_one_works():
    text = run(REFUSED, FLOWVM_CUDA_DRIVER="recorder").splitlines()
    resources, size, full, broken, lost, unknown = text
    assert "failed at the launch of " in resources
    assert "more registers or shared memory than the device has" in resources
    assert resources.endswith("(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)")
    assert "failed at the launch of " in size
    assert "its grid, block or shared memory is larger" in size
    assert full.startswith(
        "OutOfMemoryError cuBLAS failed at cublasGemmStridedBatchedEx: it got no"
    )
    assert full.endswith("(CUBLAS_STATUS_ALLOC_FAILED)")
    assert broken.startswith("DeviceError cuBLAS failed at cublasGemm")
    assert broken.endswith("(CUBLAS_STATUS_EXECUTION_FAILED)")
    assert "the CUDA context is lost" in lost  # and not that memory was out
    assert "the driver gives no reason" in unknown


FORK = """
import os, sys
import flowvm as flow
double = flow.compile(lambda x: x * 2 + 1)
x = flow.ones(3, device="cuda")
for _ in range(4):
    double(x)
event, stream = flow.cuda.Event(), flow.cuda.Stream()
event.record(stream)
lent = x.__cuda_array_interface__
flow.cuda.synchronize()
if os.fork() == 0:
    uses = [lambda: double(x).cpu().numpy(), lambda: x + 1, flow.cuda.synchronize,
            lambda: flow.ones(3).to("cuda"), flow.cuda.Stream, flow.cuda.mem_get_info]
    for use in uses:
        try:
            use()
        except flow.errors.DeviceError as error:
            assert "'spawn'" in str(error), error
            print("said")
        else:
            print("not said")
    print(flow.compile(lambda t: t + 1)(flow.ones(3)).sum().item(), flush=True)
    del x, double, event, stream
    sys.exit(0)  # by all that is done at exit
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), double(x).tolist())
"""


def test_a_forked_child_of_a_parent_with_device_graphs():
    *text, cpu, parent = run(FORK, FLOWVM_CUDA_DRIVER="simulator").splitlines()
    assert text == ["said"] * 6
    # the launch in the child failed, and only the reading of its result was seen to
    assert (cpu, parent) == ("6.0", "1 [3.0, 3.0, 3.0]")


INTERRUPTED = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it in the background
import flowvm as flow
from flowvm.vm.engine import cancel
cancel.NAMED_AFTER = 1e9  # a busy machine takes long for what is in flight
from flowvm.cuda.driver.driver import driver
x = flow.ones(300, device="cuda")
(x + 1).cpu().numpy()
lock = driver().fake.lock
held, free = threading.Event(), threading.Event()

def hold():  # what a device does that takes long
    with lock:
        held.set()
        free.wait()

def interrupt():
    while not waits(sys._current_frames()[threading.main_thread().ident]):
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGINT)

def waits(frame):
    while frame and frame.f_code.co_name not in ("_wait", "_wait_for"):
        frame = frame.f_back
    return frame is not None

stream = flow.cuda.current_stream()
for wait in (flow.cuda.synchronize, lambda: y.cpu().numpy(), stream.synchronize):
    held.clear(), free.clear()
    threading.Thread(target=hold).start()
    held.wait()
    y = x + 1
    threading.Thread(target=interrupt).start()
    try:
        wait()
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    free.set()
    print(y.sum().item())
for _ in range(300):
    x = x * 1.5 + 1
    z = x.cpu()
print("in flight")
"""


def test_ctrl_c_while_the_device_works_and_leaving_python_with_work_in_flight():
    text = run(INTERRUPTED, quiet=True, FLOWVM_CUDA_DRIVER="simulator:late,seed=5").splitlines()
    assert text == ["interrupted", "600.0"] * 3 + ["in flight"]


PRODUCTS = """
import numpy as np
import flowvm as flow
from flowvm.cuda.driver.driver import driver
a = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
t = flow.from_numpy(a).to("cuda")
early, unused = flow.cuda.Stream(), flow.cuda.Stream()
def product(stream):
    with flow.cuda.stream(stream):
        return (t @ t).cpu().numpy()
found = [product(early), product(None), product(flow.cuda.Stream()), product(unused)]
for f in found:
    np.testing.assert_allclose(f, a.astype(np.float64) @ a, rtol=1e-4, atol=1e-4)
calls = driver().fake.handles if driver().name == "simulator" else {}
streams = [flow.cuda.default_stream().cuda_stream, early.cuda_stream, unused.cuda_stream]
assert set(streams) <= set(calls.values()), (streams, calls)
assert len(set(calls.values())) == len(calls), "two handles for a stream"
other = flow.from_numpy(a).to("cuda:1")
np.testing.assert_allclose((other @ other).cpu().numpy(), found[0], rtol=1e-6)
print("done")
"""


def test_products_on_streams_made_before_and_after_the_first():
    assert run(PRODUCTS, FLOWVM_CUDA_DRIVER="simulator:late,seed=2") == "done\n"
