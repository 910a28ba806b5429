"""CUDA kernels are tested in Numba's simulator, and compiled to PTX in a process of its own.

The simulator is chosen before numba is imported for the first time; nothing else in the suite
imports numba.cuda, so the whole suite may run in the simulator's process.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))  # simulated, compiled: the tests are no packages
REAL = os.environ.get("FLOWVM_TEST_GPU", "") == "1"  # on a GPU: see tools/gpu_check.sh
if not REAL:
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
if not REAL and "numba.core.config" in sys.modules and "numba.cuda" not in sys.modules:
    sys.modules["numba.core.config"].reload_config()


class _Skipped(pytest.Module):
    """A module of tests that is not even imported."""

    def collect(self):
        pytest.skip(_missing(), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if _missing() and module_path.is_relative_to(os.path.dirname(__file__)):
        return _Skipped.from_parent(parent, path=module_path)
    return None


def _missing():
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    from numba.core import config

    if not config.ENABLE_CUDASIM and not REAL:
        return "numba was imported before the simulator could be chosen"
    return ""


def pytest_collection_modifyitems(config, items):
    """Select the tests for a GPU, without those for simulated devices only.

    FLOWVM_TEST_PART=k/n names a part of them, and the file FLOWVM_TEST_TAKEN the tests to leave
    out.
    """
    if not REAL:
        return
    number, of = map(int, os.environ.get("FLOWVM_TEST_PART", "0/1").split("/"))
    earlier = _log_of_tests().read_text().splitlines() if _log_of_tests().is_file() else []
    mine = [i for i in items if _is_ours(i) and _for_a_gpu(i)][number::of]
    chosen = [i for i in mine if i.nodeid not in earlier] + [i for i in items if not _is_ours(i)]
    config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
    items[:] = chosen


def _is_ours(item):
    return item.path.is_relative_to(os.path.dirname(__file__))


def _for_a_gpu(item):
    needs = set(item.fixturenames)
    if "device" not in needs or needs & {"simulated", "ptx_of"}:
        return False
    return item.callspec.params["device"] != "at once"  # a GPU runs in its own time


def _log_of_tests():
    return Path(os.environ.get("FLOWVM_TEST_TAKEN", ""))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Note the test that begins, so that a test that ends the process is known."""
    if "FLOWVM_TEST_TAKEN" in os.environ:
        with _log_of_tests().open("a") as file:
            print(item.nodeid, file=file)


@pytest.fixture(scope="session")
def ptx_of():
    """`ptx_of(kernel, signature, cc)` in another process; skips where nothing can be compiled."""
    from compiled import Compiler

    compiler = Compiler()
    if compiler.missing:
        pytest.skip(f"kernels cannot be compiled: {compiler.missing}")
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def simulated_driver():
    """One simulated driver for all tests of a process: the VM's streams stay bound to it."""
    from flowvm.cuda.simulator.simulator import Simulator

    return Simulator(devices=2).driver()


@pytest.fixture(scope="module")
def recording_driver():
    """A driver that notes each call, whose streams run late; one for a module's tests."""
    from flowvm.cuda.simulator.recorder import Recorder

    return Recorder(late=True).driver()


@pytest.fixture
def recorder(recording_driver, seed):
    """Record the calls of the driver in use."""
    import flowvm as flow
    from flowvm.cuda.driver import driver

    with driver.using(recording_driver):
        recording_driver.fake.streams.random.seed(seed)
        flow.ones(1, device="cuda")
        flow.cuda.synchronize()
        yield recording_driver.fake
        flow.vm.sync()


@pytest.fixture(params=["at once", "late"])
def device(request, seed):
    """A device is in use: "cuda" works.  A simulated driver's streams run at once, or late."""
    import flowvm as flow
    from flowvm.cuda.driver import driver

    if REAL:
        yield flow.device("cuda")
        try:
            flow.vm.sync()
            flow.cuda.synchronize()
        except flow.errors.DeviceError as error:
            if "context is lost" in str(error):  # whatever comes next would fail, too
                pytest.exit(f"{request.node.nodeid}: {error}", returncode=3)
            raise
        return
    simulated_driver = request.getfixturevalue("simulated_driver")
    streams = simulated_driver.fake.streams
    with driver.using(simulated_driver):
        streams.late, _ = request.param == "late", streams.random.seed(seed)
        yield flow.device("cuda")
        flow.vm.sync()
        streams.late = False
