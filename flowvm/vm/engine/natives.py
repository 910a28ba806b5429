"""The signatures of the VM's native functions, and which of them one helper compiles."""

from __future__ import annotations

from flowvm.vm.machine.lang import address_of
from flowvm.vm.workers import shell

SLICE_US = 50_000  # a native wait returns to Python this often, so that Ctrl-C works

SIGNATURES = {
    "scheduler_loop": "int64(int64, int64)",
    "close_plan": "int64(int64, int64)",
    "worker_loop": "int64(int64, int64, int64)",
    "device_loop": "int64(int64, int64)",
    "helper_loop": "int64(int64, int64, int64, int64)",
    "wake_stream": "int64(int64, int64)",
    "wake_scheduler": "int64(int64)",
    "wait_cell": "int64(int64, int64, int64, int64)",
    "settle_soon": "int64(int64, int64, int64, int64, int64)",
    "wait_room": "int64(int64, int64, int64)",
    "host_next": "int64(int64, int64, int64)",
    "host_begin": "int64(int64, int64, int64)",
    "host_fail": "int64(int64, int64, int64, int64)",
    "host_end": "int64(int64, int64)",
    "host_finish": "int64(int64, int64)",
    "read_clocks": "int64(int64)",
    "stamp_some": "int64(int64, int64)",
    "nap": "int64(int64, int64)",
    "publish_mark": "int64(int64, int64)",
    "drain": "int64(int64)",
    "settle": "int64(int64, int64)",
}
# What one helper compiles: functions that call the same ones, which are lowered once a process.
# The first of a group takes most of its time; whatever is in no group is quick.
RUNNING = ("worker_loop", "host_begin", "host_fail", "host_next", "helper_loop", "drain")
SCHEDULING = ("scheduler_loop", "settle_soon", "settle")
LAST = ("drain",)  # beside the threads' own it is used when Python ends
DEVICES = {"device_loop"}
SEQUENTIAL = {"drain", "settle", "read_clocks"}
THREADED = SIGNATURES.keys() - DEVICES - {"drain"}
JOB = f"{__name__}:make_loop"


def make_loop(name: str) -> None:
    """Compile a function of the shell into the cache: a helper's job."""
    address_of(getattr(shell, name), SIGNATURES[name])
