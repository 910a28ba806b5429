"""Tutorial 09: your own CUDA kernel.

An op is declared once and has a kernel for every device: on a GPU its body is compiled for CUDA, or
a Numba-CUDA kernel of yours takes its place.  Without a GPU this tutorial runs on a simulated one,
in Numba's simulator: slowly, but with every instruction, event and copy.
"""

# %% A simulated device, where there is no driver.  (In the shell: FLOWVM_CUDA_DRIVER=simulator.)
import ctypes
import os

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    os.environ |= {"FLOWVM_CUDA_DRIVER": "simulator", "NUMBA_ENABLE_CUDASIM": "1"}

import flowvm as flow
from flowvm.ops import Launch, View, op

print(flow.cuda.get_device_name())

# %% The op of tutorial 03: each row's largest value so far.  Its body works on a range of rows.


def running_max_body(out, x, lo, hi):  # type: ignore[no-untyped-def]
    for row in range(lo, hi):
        best = x[row, 0]
        for i in range(x.shape[1]):
            best = max(best, x[row, i])
            out[row, i] = best


@op("x -> out")
def running_max(x):  # type: ignore[no-untyped-def]
    """The largest value so far, along each row."""
    return Launch(outputs=(x,), body=running_max_body, units=x.shape[0], grain=64)


x = flow.tensor([[1.0, 3, 2, 5, 4], [9, 1, 1, 10, 1]])
print(running_max(x.to("cuda")))

# %% That was the body itself, compiled for CUDA: a thread takes a row at a time.  With few long
# rows the GPU would idle; a kernel of our own gives each row to a warp.  It is a plain function
# that uses `numba.cuda`; flowvm compiles it when it is first needed.
from numba import cuda

WARP = 32
ALL = 0xFFFFFFFF


def running_max_kernel(out, x):  # type: ignore[no-untyped-def]
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    carried = x[row, 0]
    for start in range(0, x.shape[1], WARP):
        i = start + lane
        value = x[row, i] if i < x.shape[1] else carried
        step = 1
        while step < WARP:  # after each round a lane knows twice as many to its left
            neighbour = cuda.shfl_up_sync(ALL, value, step)
            if lane >= step:
                value = max(value, neighbour)
            step *= 2
        value = max(value, carried)
        if i < x.shape[1]:
            out[row, i] = value
        carried = cuda.shfl_sync(ALL, value, WARP - 1)


# %% A *rule* says how it is launched: which operands it gets (outputs first), on what grid.  The
# declaration is the same, with `cuda=`.
from flowvm.cuda.launch import CudaLaunch, KernelStep, Operand


def a_warp_a_row(launch, metas, attrs):  # type: ignore[no-untyped-def]
    (x,) = metas
    params = (Operand(0, View.of(launch.outputs[0])), Operand(1, View.of(x)))
    step = KernelStep(running_max_kernel, params, grid=(x.shape[0], 1, 1), block=(WARP, 1, 1))
    return CudaLaunch(launch.outputs, (step,))


def back(c, g):  # type: ignore[no-untyped-def]
    """A gradient goes to where its value came from; written in ops, so it works everywhere."""
    (x,) = c.saved
    places = flow.cummax(x, 1)[1]
    return (flow.zeros_like(g).scatter_add(1, places, g),)


@op("x -> out", saves="x", grad=back, cuda=a_warp_a_row)
def row_max(x):  # type: ignore[no-untyped-def]
    """The largest value so far, along each row."""
    return Launch(outputs=(x,), body=running_max_body, units=x.shape[0], grain=64)


wide = flow.rand(3, 100)
on_gpu = row_max(wide.to("cuda"))
print("as on the CPU:", (on_gpu.cpu() == row_max(wide)).all().item())

# %% It is an instruction like any other: autograd, graphs and traces have it.
leaf = x.to("cuda").requires_grad_()
row_max(leaf).sum().backward()
print(leaf.grad)

twice = flow.compile(lambda t: row_max(t) * 2)
for _ in range(3):
    result = twice(x.to("cuda"))
print(result.tolist())
print(twice.explain())

# %% Copies and kernels are on streams of their own; operands order them.
print(flow.vm.trace(lambda: row_max(x.to("cuda")).cpu()))
