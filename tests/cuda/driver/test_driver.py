"""The driver's table, its errors, and the message where it cannot be used."""

import ctypes

import pytest
from programs import run

import flowvm as flow
from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver import results
from flowvm.cuda.driver.driver import MINIMUM, Driver
from flowvm.cuda.driver.functions import CUBLAS, DRIVER, INDEX, NAMES, NCCL
from flowvm.cuda.simulator.recorder import Recorder
from flowvm.cuda.simulator.simulator import Simulator
from flowvm.errors import DeviceError, OutOfMemoryError


def test_the_table_has_an_address_for_each_name_in_order() -> None:
    with drivers.using(Recorder().driver()):
        table = drivers.table()
        assert table.dtype == "int64"
        assert len(table) == len(NAMES) == len(set(NAMES)) == len(DRIVER) + len(CUBLAS) + len(NCCL)
        assert all(table)
        for name, place in INDEX.items():
            address = ctypes.cast(drivers.driver().functions[name], ctypes.c_void_p).value
            assert table[place] == address, name


def test_an_address_of_the_table_can_be_called() -> None:
    """Call as native code does: all arguments are 64-bit integers."""
    with drivers.using(Recorder(devices=3).driver()):
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
        count = ctypes.c_int()
        address = int(drivers.table()[INDEX["cuDeviceGetCount"]])
        assert call(address)(ctypes.addressof(count)) == 0
        assert count.value == 3


ASK = """
import flowvm as flow
for _ in range(2):
    try:
        flow.ones(2, device="cuda")
    except flow.errors.DeviceError as error:
        print(error)
print(float(flow.ones(2).sum().item()))
"""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("none", "switched off by FLOWVM_CUDA_DRIVER=none"),
        ("/no/such/libcuda.so", "FLOWVM_CUDA_DRIVER=/no/such/libcuda.so cannot be loaded"),
        ("libm.so.6", "libm.so.6 is not a CUDA driver"),
        ("recorder:devices=0", "there is a driver but no CUDA device"),
        ("simulator:lat", "'lat' is not an option; there are late"),
        ("recorder:memory=lots", "'memory=lots' is not an option"),
    ],
)
def test_what_is_missing_is_said_twice_alike_and_the_cpu_goes_on(
    setting: str, message: str
) -> None:
    first, second, third = run(ASK, FLOWVM_CUDA_DRIVER=setting).splitlines()
    assert first == second
    assert first.startswith("device 'cuda:0' is not available: ")
    assert message in first
    assert third == "2.0"


def test_a_driver_that_is_too_old_names_both_versions() -> None:
    old = Recorder()
    old.version = 11040
    with pytest.raises(DeviceError, match=r"too old: it supports CUDA 11\.4, .* needs 12\.0"):
        old.driver().initialize()
    assert MINIMUM == 12000


def test_importing_flowvm_loads_no_driver() -> None:
    program = """
import sys
import flowvm as flow
flow.ones(2).sum().item()
print([n for n in sys.modules if n.startswith(("flowvm.cuda", "numba.cuda", "cuda.bindings"))])
"""
    assert run(program).strip() == "[]"


def test_codes_are_errors_with_what_to_do() -> None:
    assert isinstance(results.error(2, "cuMemAlloc_v2"), OutOfMemoryError)
    sticky = str(results.error(700, "cuStreamSynchronize"))
    assert "the CUDA context is lost" in sticky
    assert "CPU tensors are still usable; restart Python" in sticky
    assert sticky.endswith("(CUDA_ERROR_ILLEGAL_ADDRESS)")
    assert "context is lost" not in str(results.error(218, "kernel x"))
    assert "CUresult 12345" in str(results.error(12345, "cuInit"))


@pytest.mark.parametrize("code", sorted(set(results.NAMES) - {0}))
def test_every_known_code_has_a_message(code: int) -> None:
    error = results.error(code, "doing it")
    assert str(error).startswith("doing it: ")
    assert str(error).endswith(f"({results.name_of(code)})")


def test_cublas_that_is_not_there_is_said_once_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(library: str, version: int) -> ctypes.CDLL:
        raise OSError("tried nothing")

    fake = Simulator()
    whole = fake.driver()
    table = {n: int(whole.table[INDEX[n]]) for n in DRIVER}
    monkeypatch.setattr("flowvm.cuda.driver.driver.load_library", missing)
    with drivers.using(Driver("part", table, fake)):
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"not found \(tried nothing\)"):
                drivers.require("cublas")
        assert not drivers.table()[INDEX["cublasCreate_v2"]]
    with drivers.using(whole):
        drivers.require("cublas")


def test_a_device_that_is_not_there_is_named() -> None:
    with drivers.using(Recorder(devices=1).driver()):
        assert flow.device("cuda:0").index == 0
        with pytest.raises(DeviceError, match=r"'cuda:1' is not available: there is 1 CUDA device"):
            flow.ones(1, device="cuda:1")


def test_the_first_cublas_that_loads_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowvm.cuda.driver import libraries

    def missing(library: str) -> ctypes.CDLL:
        raise ImportError

    monkeypatch.setattr(libraries, "_by_pathfinder", missing)
    monkeypatch.setattr(libraries, "_in_folders", lambda *of: ["/no/such/file.so", "libm.so.6"])
    assert libraries.load_library("cublas", 12080)._name == "libm.so.6"
    monkeypatch.setattr(libraries, "_in_folders", lambda *of: ["/no/such/file.so"])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: missing(name))
    with pytest.raises(OSError, match=r"pathfinder: ImportError.*file\.so.*libcublas\.so\.12"):
        libraries.load_library("cublas", 12080)
