# ruff: noqa: N802  methods are named as the functions that they stand for
"""A CUDA driver without a GPU: FLOWVM_CUDA_DRIVER=simulator.

The functions of `flowvm.cuda.driver.driver`'s table, as callbacks into Python: device memory is
host memory whose bounds are remembered, kernels run in Numba's simulator, cuBLAS is NumPy.  Numbers
are right, small shapes take milliseconds, and mistakes that a GPU would let pass are errors: access
outside of a block, to freed memory or before it was written (it holds NaN), launches whose words do
not fit the kernel, waits that are missing.  Options follow a colon, with commas between:

    simulator:late,seed=7,devices=2,memory=256M

late       streams run what is in them only when somebody asks, in an order that `seed` chooses
           among those that the events allow; else everything runs at once
devices    how many there are (2)
memory     of each device (1G)

As with a GPU, an error while a stream runs is sticky, and later calls return it; `why` returns its
reason.  Every callback holds `lock`, so native threads may call at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from flowvm.cuda.driver.driver import Driver
from flowvm.cuda.driver.functions import NAMES as FUNCTIONS
from flowvm.cuda.driver.functions import function_type
from flowvm.cuda.driver.results import NAMES, STICKY
from flowvm.cuda.simulator.blas import read_gemm
from flowvm.cuda.simulator.exchange import Communicator
from flowvm.cuda.simulator.kernels import Function, Launch, choose_simulator, read_launch
from flowvm.cuda.simulator.memory import HOST, Fault, Memory
from flowvm.cuda.simulator.nccl import Nccl
from flowvm.cuda.simulator.streams import Event, Graph, Replay, Scheduler, Stream, Work
from flowvm.errors import ConfigError
from flowvm.vm.callers.interrupt import protected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.cuda.simulator.blas import Gemm


VERSION: Final = 12080
NOT_INITIALIZED = 3
NOT_READY, INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 600, 1, 101, 201, 400
INVALID_PTX, NOT_FOUND, UNSUPPORTED, UPDATE_FAILURE, UNKNOWN = 218, 500, 900, 910, 999
CUBLAS_NOT_INITIALIZED, CUBLAS_EXECUTION_FAILED = 1, 13
DISABLE_TIMING, NON_BLOCKING = 2, 1
MAX_DYNAMIC_SHARED = 8
# CUdevice_attribute -> value, of any of the devices
ATTRIBUTES: Final = {
    1: 1024, 8: 48 << 10, 10: 32, 12: 65536, 13: 1_000_000, 16: 4, 18: 0, 36: 1_000_000, 37: 128,
    38: 1 << 20, 39: 2048, 40: 2, 75: 8, 76: 0, 81: 228 << 10, 82: 65536, 97: 227 << 10,
}  # fmt: skip
PAUSE: Final = 0.0005  # seconds between two looks at other processes
_FIRST_HANDLE: Final = 0x5A00_0000


class Simulator(Nccl):
    """The devices, and a method for each function of the table, named as it is."""

    name = "simulator"
    runs_kernels = True
    ptx = False  # functions come from modules, as on a GPU, and not by `register`

    def __init__(
        self, late: bool = False, seed: int = 0, devices: int = 2, memory: int = 1 << 30
    ) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.devices = devices
        self.version = VERSION
        self.memory = Memory(memory)
        self.lost: dict[int, tuple[int, str]] = {}  # device -> sticky result, and why
        self.last_fault = ""
        self.faults: dict[int, str] = {}  # result -> why the last call gave it
        self.streams = Scheduler(
            late, seed, self._failed, lambda device: device not in self.lost, self._pause
        )
        self.events: dict[int, Event] = {}
        self.functions: dict[int, Function] = {}
        self.modules: dict[int, dict[str, int]] = {}  # handle -> entry -> parameters
        self.graphs: dict[int, Graph] = {}
        self.executables: dict[int, list[Work]] = {}
        self.handles: dict[int, int] = {}  # of cuBLAS -> stream
        self.communicators: dict[int, Communicator] = {}
        self.texts_of_nccl: dict[str, Any] = {}
        self.local = threading.local()  # .device: the device of the current context
        self.texts: dict[int, Any] = {}
        self._next = _FIRST_HANDLE
        self.callbacks = {n: function_type(n)(self._entry(n)) for n in FUNCTIONS}
        for device in range(devices):
            self.streams.streams[-1 - device] = Stream(0, device)

    @classmethod
    def of(cls, options: str) -> Self:
        """The driver of FLOWVM_CUDA_DRIVER=name:options."""
        values: dict[str, Any] = {}
        for option in filter(None, options.split(",")):
            key, _, value = option.partition("=")
            values[key] = cls._option(key, value, option)
        return cls(**values)

    @classmethod
    def _option(cls, key: str, value: str, option: str) -> int | bool:
        with contextlib.suppress(ValueError, KeyError):
            if key == "late" and not value:
                return True
            if key in ("seed", "devices"):
                return int(value)
            if key == "memory":
                return int(value[:-1]) << {"K": 10, "M": 20, "G": 30}[value[-1]]
        raise ConfigError(
            f"FLOWVM_CUDA_DRIVER={cls.name}:...: {option!r} is not an option; there are late, "
            f"seed=0, devices=2 and memory=1G"
        )

    def driver(self) -> Driver:
        """The table of its functions; cuBLAS is always there."""
        if self.runs_kernels:
            choose_simulator()
        addresses = {
            n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in self.callbacks.items()
        }
        return Driver(self.name, addresses, fake=self)

    def register(
        self, kernel: Callable[..., object], signature: tuple[object, ...], device: int
    ) -> int:
        """A handle for cuLaunchKernel that runs `kernel` as it is."""
        with self.lock:
            handle = self._handle()
            name = getattr(kernel, "__qualname__", repr(kernel))
            self.functions[handle] = Function(handle, name, device, kernel, signature)
            return handle

    def why(self, result: int) -> str:
        """Return the reason for a result, as text; "" if it is unknown."""
        sticky = [why for code, why in self.lost.values() if code == result]
        return sticky[-1] if sticky else self.faults.get(result, "")

    # --- callbacks --------------------------------------------------------------------------------

    def _entry(self, name: str) -> Callable[..., int]:
        method = getattr(self, name)

        @protected  # ctypes drops exceptions of a callback
        def call(*args: object) -> int:
            if os.getpid() != self.pid:  # in a forked child, where the lock may be held for ever
                return NOT_INITIALIZED
            with self.lock:
                return self.called(name, method, tuple(0 if a is None else a for a in args))

        return call

    def called(self, name: str, method: Callable[..., int | None], args: tuple[object, ...]) -> int:
        """Run a function of the table: its result."""
        try:
            return method(*args) or 0
        except Fault as fault:
            return self.refuse(fault.code, f"{name}: {fault.why}")
        except Exception as error:  # a callback cannot raise
            return self.refuse(UNKNOWN, f"{name}: {type(error).__name__}: {error}")

    def refuse(self, code: int, why: str) -> int:
        """Remember why a call has this result."""
        self.last_fault = self.faults[code] = why
        return code

    def _failed(self, device: int, error: Exception) -> None:
        """Note that a stream's work has failed: the device runs nothing any more."""
        code = error.code if isinstance(error, Fault) else UNKNOWN
        why = error.why if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
        self.lost[device] = (code if code in STICKY else 719, why)

    def _handle(self) -> int:
        self._next += 16
        return self._next

    def _device(self) -> int:
        """Return the device of the thread's current context.  Raise Fault if there is none, or it
        is lost.
        """
        device = getattr(self.local, "device", None)
        if device is None:
            raise Fault(INVALID_CONTEXT, "no context is current on this thread")
        if device in self.lost:
            raise Fault(*self.lost[device])
        return int(device)

    def _stream(self, handle: int) -> Stream:
        device = self._device()
        # 1 is the default stream by another name, 2 the thread's default stream, which is the same
        # here
        stream = self.streams.streams.get(-1 - device if handle <= 2 else handle)
        if stream is None:
            raise Fault(INVALID_HANDLE, f"{handle:#x} is not a stream")
        if stream.device in self.lost:
            raise Fault(*self.lost[stream.device])
        return stream

    def _event(self, handle: int) -> Event:
        self._device()
        entry: Event = _lookup(self.events, handle, "event")
        return entry

    def _number(self, index: int) -> int:
        if not 0 <= index < self.devices:
            raise Fault(INVALID_DEVICE, f"there are {self.devices} devices, not one {index}")
        return index

    def _pause(self) -> None:
        """Let other threads call while this one waits for another process."""
        self.lock.release()
        time.sleep(PAUSE)
        self.lock.acquire()

    def do(self, stream: int, what: str, run: Callable[[], None]) -> None:
        """Put work into a stream."""
        self.streams.enqueue(self._stream(stream), Work(what, run))

    def _uncaptured(self) -> None:
        if any(s.capture is not None for s in self.streams.streams.values()):
            raise Fault(UNSUPPORTED, "this cannot be done while a stream is captured")

    # --- devices and contexts ---------------------------------------------------------------------

    def cuInit(self, flags: int) -> int:
        return 0 if self.devices else 100

    def cuDriverGetVersion(self, out: int) -> None:
        _put(out, ctypes.c_int, self.version)

    def cuDeviceGetCount(self, out: int) -> None:
        _put(out, ctypes.c_int, self.devices)

    def cuDeviceGet(self, out: int, index: int) -> None:
        _put(out, ctypes.c_int, self._number(index))

    def cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        text = f"flowvm {self.name} {self._number(device)}".encode()[: size - 1] + b"\0"
        ctypes.memmove(out, text, len(text))

    def cuDeviceGetAttribute(self, out: int, attribute: int, device: int) -> None:
        self._number(device)
        if attribute not in ATTRIBUTES:
            raise Fault(INVALID_VALUE, f"attribute {attribute} is not simulated")
        _put(out, ctypes.c_int, ATTRIBUTES[attribute])

    def cuDeviceTotalMem_v2(self, out: int, device: int) -> None:
        self._number(device)
        _put(out, ctypes.c_size_t, self.memory.limit)

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        _put(out, ctypes.c_size_t, self._context(self._number(device)))

    def _context(self, device: int) -> int:
        return 0xC0DE_0000 + 16 * device

    def _of_context(self, context: int) -> int:
        for device in range(self.devices):
            if self._context(device) == context:
                return device
        raise Fault(INVALID_CONTEXT, f"{context:#x} is not a context")

    def cuCtxSetCurrent(self, context: int) -> None:
        self.local.device = self._of_context(context) if context else None

    def cuCtxGetCurrent(self, out: int) -> None:
        device = getattr(self.local, "device", None)
        _put(out, ctypes.c_size_t, 0 if device is None else self._context(device))

    # --- streams and events -----------------------------------------------------------------------

    def cuStreamCreate(self, out: int, flags: int) -> None:
        handle = self._handle()
        stream = Stream(handle, self._device(), blocking=not flags & NON_BLOCKING)
        self.streams.streams[handle] = stream
        _put(out, ctypes.c_size_t, handle)

    def cuStreamCreateWithPriority(self, out: int, flags: int, priority: int) -> None:
        self.cuStreamCreate(out, flags)

    def cuStreamDestroy_v2(self, stream: int) -> None:
        of = self._stream(stream)
        self.streams.drain(of)  # a GPU goes on and destroys it then
        del self.streams.streams[stream]

    def cuStreamSynchronize(self, stream: int) -> None:
        self._uncaptured()
        self.streams.drain(self._stream(stream))
        self._device()

    def cuCtxSynchronize(self) -> None:
        self._uncaptured()
        device = self._device()
        for stream in [s for s in self.streams.streams.values() if s.device == device]:
            self.streams.drain(stream)
        self._device()

    def cuStreamQuery(self, stream: int) -> int:
        self._uncaptured()
        of = self._stream(stream)
        self.streams.some()
        self._device()
        return NOT_READY if of.queue else 0

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.streams.wait(self._stream(stream), self._event(event))

    def cuEventCreate(self, out: int, flags: int) -> None:
        handle = self._handle()
        self.events[handle] = Event(handle, self._device(), not flags & DISABLE_TIMING)
        _put(out, ctypes.c_size_t, handle)

    def cuEventRecord(self, event: int, stream: int) -> None:
        recorded, on = self._event(event), self._stream(stream)
        if recorded.device != on.device:
            raise Fault(INVALID_HANDLE, "an event is recorded on a stream of another device")
        self.streams.record(on, recorded)

    def cuEventQuery(self, event: int) -> int:
        mark = self._event(event)
        if mark.captured is not None:
            raise Fault(907, "the event was recorded in a capture")
        self.streams.some()
        self._device()
        return NOT_READY if mark.happened < mark.requested else 0

    def cuEventSynchronize(self, event: int) -> None:
        mark = self._event(event)
        if mark.captured is not None:
            raise Fault(907, "the event was recorded in a capture")
        self.streams.happen(mark)
        self._device()

    def cuEventElapsedTime(self, out: int, start: int, end: int) -> int:
        first, last = self._event(start), self._event(end)
        if not (first.timing and last.timing and first.requested and last.requested):
            raise Fault(INVALID_HANDLE, "events without timing, or never recorded")
        if first.happened < first.requested or last.happened < last.requested:
            return NOT_READY
        _put(out, ctypes.c_float, 1e3 * (last.seconds - first.seconds))
        return 0

    def cuEventDestroy_v2(self, event: int) -> None:
        self._event(event)
        del self.events[event]

    # --- memory -----------------------------------------------------------------------------------

    def cuMemAlloc_v2(self, out: int, size: int) -> None:
        self._uncaptured()
        _put(out, ctypes.c_size_t, self.memory.allocate(size, self._device()))

    def cuMemFree_v2(self, address: int) -> None:
        self._uncaptured()
        self._device()
        self.streams.drain()  # as the driver does: it waits
        self.memory.free(address, on_host=False)

    def cuMemHostAlloc(self, out: int, size: int, flags: int) -> None:
        self._device()
        _put(out, ctypes.c_size_t, self.memory.allocate(size, HOST))

    def cuMemFreeHost(self, address: int) -> None:
        self._device()
        self.streams.drain()
        self.memory.free(address, on_host=True)

    def cuMemGetInfo_v2(self, free: int, total: int) -> None:
        _put(free, ctypes.c_size_t, self.memory.limit - self.memory.used[self._device()])
        _put(total, ctypes.c_size_t, self.memory.limit)

    def cuPointerGetAttribute(self, out: int, attribute: int, address: int) -> None:
        block = self.memory.find(address)
        if block is None:
            raise Fault(INVALID_VALUE, f"{address:#x} is not memory of the driver's")
        host = block.device == HOST
        device = self._device() if host else block.device
        values = {
            1: (ctypes.c_size_t, self._context(device)), 2: (ctypes.c_int, 1 if host else 2),
            3: (ctypes.c_size_t, address), 9: (ctypes.c_int, device),
            11: (ctypes.c_size_t, block.address), 12: (ctypes.c_size_t, block.size),
        }  # fmt: skip
        if attribute not in values:
            raise Fault(INVALID_VALUE, f"pointer attribute {attribute} is not simulated")
        _put(out, *values[attribute])

    def cuMemcpyHtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        data = None if self.memory.find(source) else ctypes.string_at(source, size)
        self._copy("copy h2d", to, source, size, stream, data)

    def cuMemcpyDtoHAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self._copy("copy d2h", to, source, size, stream, None)
        if self.memory.find(to) is None:  # not page-locked: the call returns when it is done
            self.streams.drain(self._stream(stream))

    def cuMemcpyDtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self._copy("copy d2d", to, source, size, stream, None)

    def _copy(
        self, what: str, to: int, source: int, size: int, stream: int, data: bytes | None
    ) -> None:
        reads, writes = what[-3] == "d", what[-1] == "d"

        def run() -> None:
            if reads or self.memory.find(source):
                self.memory.check(source, size, f"the source of a {what}")
            if writes or self.memory.find(to):
                self.memory.check(to, size, f"the destination of a {what}")
            ctypes.memmove(to, source if data is None else data, size)

        if size:
            for on_device, address in ((reads, source), (writes, to)):
                if on_device and self.memory.find(address) is None:  # the driver looks at once
                    raise Fault(INVALID_VALUE, f"{what} of {size} bytes at {address:#x}, no block")
            self.do(stream, what, run)

    def cuMemcpyPeerAsync(
        self, to: int, to_context: int, source: int, source_context: int, size: int, stream: int
    ) -> None:
        target, own_context = self._of_context(to_context), self._of_context(source_context)

        def run() -> None:
            self.memory.check(source, size, "the source of a copy", own_context)
            self.memory.check(to, size, "the destination of a copy", target)
            ctypes.memmove(to, source, size)

        if size:
            self.do(stream, "copy peer", run)

    def cuMemcpyAsync(self, to: int, source: int, size: int, stream: int) -> None:
        kinds = ["h" if self.memory.on_host(at) else "d" for at in (source, to)]
        copy = {"hd": self.cuMemcpyHtoDAsync_v2, "dh": self.cuMemcpyDtoHAsync_v2}
        copy.get("".join(kinds), self.cuMemcpyDtoDAsync_v2)(to, source, size, stream)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> None:
        device = self._stream(stream).device

        def run() -> None:
            self.memory.check(address, size, "a memset", device)
            ctypes.memset(address, value, size)

        if size:
            self.do(stream, "memset", run)

    # --- kernels ----------------------------------------------------------------------------------

    def cuModuleLoadData(self, out: int, image: int) -> None:
        self._device()
        text = ctypes.string_at(image).decode(errors="replace")
        entries = re.findall(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", text)
        if ".version" not in text or not entries:
            raise Fault(INVALID_PTX, "it has no entry")
        handle = self._handle()
        self.modules[handle] = {name: len(re.findall(r"\.param", p)) for name, p in entries}
        _put(out, ctypes.c_size_t, handle)

    def cuModuleLoadDataEx(
        self, out: int, image: int, count: int, options: int, values: int
    ) -> None:
        self.cuModuleLoadData(out, image)

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> None:
        entry = ctypes.string_at(name).decode()
        parameters = _lookup(self.modules, module, "module").get(entry)
        if parameters is None:
            raise Fault(NOT_FOUND, f"the module has no {entry}")
        handle = self._handle()
        words = ("int64",) * parameters
        self.functions[handle] = Function(handle, entry, self._device(), None, words)
        _put(out, ctypes.c_size_t, handle)

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        kernel = _lookup(self.functions, function, "function")
        if attribute == MAX_DYNAMIC_SHARED:
            if not 0 <= value <= ATTRIBUTES[97]:
                raise Fault(INVALID_VALUE, f"{value} bytes of shared memory")
            kernel.shared = value

    def cuLaunchKernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
        stream: int, params: int, extra: int,
    ) -> None:  # fmt: skip
        kernel = _lookup(self.functions, function, "function")
        on = self._stream(stream)
        if kernel.device != on.device:
            raise Fault(INVALID_HANDLE, f"a kernel of cuda:{kernel.device} on cuda:{on.device}")
        launch = read_launch(kernel, (gx, gy, gz), (bx, by, bz), shared, params, extra)
        self.launch(launch, stream)

    def launch(self, launch: Launch, stream: int) -> None:
        """Enqueue a launch whose arguments were read."""
        if launch.function.kernel is None:
            raise Fault(NOT_FOUND, "this driver runs kernels as Python, and a module has none")
        self.do(stream, launch.function.name, lambda: launch.run(self.memory))

    def cuGetErrorName(self, code: int, out: int) -> int:
        return self._text(code, out)

    def cuGetErrorString(self, code: int, out: int) -> int:
        return self._text(code, out)

    def _text(self, code: int, out: int) -> int:
        if code not in NAMES:
            return INVALID_VALUE
        text = self.texts.setdefault(code, ctypes.create_string_buffer(NAMES[code].encode()))
        _put(out, ctypes.c_size_t, ctypes.addressof(text))
        return 0

    # --- graphs -----------------------------------------------------------------------------------

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        self.streams.begin_capture(self._stream(stream), Graph(self._handle()))

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> None:
        before = getattr(self.local, "mode", 0)
        self.local.mode = ctypes.c_int.from_address(mode).value
        _put(mode, ctypes.c_int, before)

    def cuStreamEndCapture(self, stream: int, out: int) -> None:
        graph = self.streams.end_capture(self._stream(stream))
        self.graphs[graph.handle] = graph
        _put(out, ctypes.c_size_t, graph.handle)

    def cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> None:
        handle = self._handle()
        self.executables[handle] = list(_lookup(self.graphs, graph, "graph").work)
        _put(out, ctypes.c_size_t, handle)

    def cuGraphExecUpdate_v2(self, executable: int, graph: int, result: int) -> None:
        nodes, news = _lookup(self.executables, executable, "graph"), self.graphs[graph].work
        if [(w.what, w.needs) for w in nodes] != [(w.what, w.needs) for w in news]:
            raise Fault(UPDATE_FAILURE, "the graphs differ in more than arguments")
        nodes[:] = news

    def cuGraphLaunch(self, executable: int, stream: int) -> None:
        work = list(_lookup(self.executables, executable, "graph"))
        if any(one.poll is not None for one in work):
            replay = Replay(work)
            one = Work("graph", run=replay.run, poll=replay.poll)
            self.streams.enqueue(self._stream(stream), one)
            return

        def run() -> None:
            for one in self.streams.in_order(work):
                if one.run is not None:
                    one.run()

        self.do(stream, "graph", run)

    def cuGraphDestroy(self, graph: int) -> None:
        _lookup(self.graphs, graph, "graph")
        del self.graphs[graph]

    def cuGraphExecDestroy(self, executable: int) -> None:
        _lookup(self.executables, executable, "graph")
        del self.executables[executable]

    # --- cuBLAS -----------------------------------------------------------------------------------

    def cublasCreate_v2(self, out: int) -> int:
        if getattr(self.local, "device", None) is None:
            return CUBLAS_NOT_INITIALIZED
        handle = self._handle()
        self.handles[handle] = 0
        _put(out, ctypes.c_size_t, handle)
        return 0

    def cublasDestroy_v2(self, handle: int) -> int:
        return 0 if self.handles.pop(handle, None) is not None else CUBLAS_NOT_INITIALIZED

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:
        if handle not in self.handles:
            return CUBLAS_NOT_INITIALIZED
        self.handles[handle] = stream
        return 0

    def cublasSetMathMode(self, handle: int, mode: int) -> int:
        return 0 if handle in self.handles else CUBLAS_NOT_INITIALIZED

    def cublasSetWorkspace_v2(self, handle: int, workspace: int, size: int) -> int:
        if handle not in self.handles:
            return CUBLAS_NOT_INITIALIZED
        if size:
            self.memory.check(workspace, size, "cuBLAS's workspace", self._device())
        return 0

    def cublasGemmStridedBatchedEx(self, handle: int, *args: int) -> int:
        if handle not in self.handles:
            return CUBLAS_NOT_INITIALIZED
        gemm = read_gemm(*args[:-1])  # the last is the algorithm
        stream = self.handles[handle]
        self.gemm(gemm, stream, self._stream(stream).device)
        return 0

    def gemm(self, gemm: Gemm, stream: int, device: int) -> None:
        """Enqueue a matrix product whose arguments were read."""
        self.do(stream, "gemm", lambda: gemm.run(self.memory, device))


def _put(out: int, kind: Any, value: int | float) -> None:
    if not out:
        raise Fault(INVALID_VALUE, "a result has no place to go")
    kind.from_address(out).value = value


def _lookup(things: Mapping[int, object], handle: int, kind: str) -> Any:
    if handle not in things:
        raise Fault(INVALID_HANDLE, f"{handle:#x} is not a {kind}")
    return things[handle]
