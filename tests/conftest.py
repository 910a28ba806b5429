"""Every test starts from a seed of its own, and a failing one prints how to run it again with that
seed.

The seed is drawn from `--seed` (default: today's, printed in the header) and the test's name, so a
test's numbers do not depend on which tests ran before it or on which process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:
    import pytest_timeout

# Texts are as wide as without a terminal: readline, which pytest imports, sets the width for its
# children, and so for the workers of a parallel run.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)

# A shared machine may be slow at any moment: no deadline.  A failure prints how to repeat it.
hypothesis.settings.register_profile("flowvm", deadline=None, print_blob=True)
hypothesis.settings.load_profile("flowvm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="base seed of every test (default: from the date)"
    )
    parser.addoption(
        "--once-more",
        action="store_true",
        help="run each failed test once more alone; the run passes where all of them do then",
    )
    parser.addoption(
        "--whole", action="store_true", help="run all cases of products, not the sample of them"
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks for its seed
def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    seed = config.getoption("--seed")
    if worker is not None:  # under xdist the main process decides, or the workers could disagree
        seed = worker["base_seed"]
    elif seed is None:
        seed = int(time.strftime("%Y%m%d"))
    config.base_seed = seed  # type: ignore[attr-defined]
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)
    # tests start some hundred processes, each of which would compile flowvm's files anew
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # and every core is busy with what tests need now
    os.environ.setdefault("FLOWVM_AHEAD", "0")


@pytest.hookimpl(optionalhook=True)  # of xdist, which need not be there
def pytest_configure_node(node: Any) -> None:
    node.workerinput["base_seed"] = node.config.base_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.base_seed} (--seed {config.base_seed} repeats this run's numbers)"  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)  # of pytest-timeout, which need not be there
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """Bound a test's time by `tools.patience`: pytest-timeout's own thread reads frames while other
    threads run, which CPython 3.11 may not survive.
    """
    if settings.method != "thread":
        return None
    from tools.patience import patience

    ends = contextlib.ExitStack()
    ends.enter_context(patience(settings.timeout, functools.partial(_report_timeout, item)))
    vars(item)["cancel_timeout"] = ends.close  # where pytest-timeout looks for it
    return True


def _report_timeout(item: pytest.Item) -> bool:
    """Print what a test that takes too long has printed; False while it is in a debugger."""
    import pytest_timeout

    if pytest_timeout.is_debugging():
        return False
    capture = item.config.pluginmanager.getplugin("capturemanager")
    texts = ("", "")
    if capture is not None:
        capture.suspend_global_capture(item)
        texts = capture.read_global_capture()
    rule = "+" * 30
    print(f"{rule} Timeout {rule}\n{item.nodeid}", *texts, sep="\n", file=sys.stderr, flush=True)
    return True


FAILED: dict[str, None] = {}
"""The names of the tests that have failed, in their order; of all processes, in the main one."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        FAILED[report.nodeid] = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With --once-more, run failed tests again, each in a process of its own where nothing else
    runs.  Print `FLAKY name` of one that passes; if all do, the run has passed.

    A run that ended early (--maxfail, an error while collecting) stays failed.
    """
    config = session.config
    if not config.getoption("--once-more") or hasattr(config, "workerinput"):
        return
    if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or not FAILED:
        return
    passed = [_passes_alone(name, config) for name in FAILED]
    if all(passed):
        session.exitstatus = pytest.ExitCode.OK


def pytest_unconfigure() -> None:
    """Look at the errors that tests have left unread: they are no failure of the run."""
    if flow := sys.modules.get("flowvm"):
        with contextlib.suppress(Exception):
            flow.vm.sync()


def _passes_alone(name: str, config: pytest.Config) -> bool:
    """Run one test again and print the outcome."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    base = config.base_seed  # type: ignore[attr-defined]
    options = [f"--seed={base}", f"--import-mode={config.option.importmode}"]
    options += [f"-p{plugin}" for plugin in config.option.plugins]
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={config.rootpath}", *options, name]
    again = subprocess.run(command, cwd=config.rootpath, env=known, capture_output=True, text=True)
    passed = again.returncode == pytest.ExitCode.OK
    print(f"\n{'FLAKY' if passed else 'FAILED TWICE'} {name}", flush=True)
    if not passed:
        print(again.stdout[-4000:], again.stderr[-2000:], flush=True)
    return passed


@pytest.fixture(scope="session", autouse=True)
def _loops() -> None:
    """The VM and native calls are compiled before anything counts instructions, calls or threads;
    or with FLOWVM_TEST_LOOPS=python the VM never is, and each instruction runs where it is issued.
    """
    from flowvm.eager.native.install import settle
    from flowvm.vm.engine.engine import engine
    from flowvm.vm.engine.natives import SEQUENTIAL, THREADED

    if os.environ.get("FLOWVM_TEST_LOOPS") == "python":
        engine.loops.ready = lambda names: False  # type: ignore[method-assign]
    else:
        for name in sorted(THREADED | SEQUENTIAL):
            engine.loops.compiled(name)
    settle()


@pytest.fixture(scope="module", autouse=True)
def _tidy() -> None:
    """Collect the rest of other modules now, not while a test counts.

    Later collections skip the objects that stay.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _read_errors() -> Iterator[None]:
    """Fail a test that leaves an error of the VM unread: the next one that waits would raise it."""
    yield
    engine = sys.modules.get("flowvm.vm.engine.engine")
    if engine is not None and engine.engine.threads.running:
        sys.modules["flowvm"].vm.sync()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This test's seed."""
    name = zlib.crc32(request.node.nodeid.encode())
    base: int = request.config.base_seed  # type: ignore[attr-defined]
    return (base * 1_000_003 + name) % 2**31


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A NumPy generator with this test's seed."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    flow = sys.modules.get("flowvm")  # a test that never imports flowvm must not pay for it
    if flow is not None and hasattr(flow, "manual_seed"):
        flow.manual_seed(seed)
        flow.interop.printing.PATIENCE = 60.0  # a busy machine: no repr says "pending"
    torch = sys.modules.get("torch")  # the peer, where a test's file has imported it
    if torch is not None:
        torch.manual_seed(seed)


# --- products -------------------------------------------------------------------------------------


class Sample:
    """The cases of products that a run takes.

    A product is a test of many ops, or of many ops and dtypes; most of its time is spent compiling.
    A run takes the same ops of all products, so that they share kernels: those whose name and the
    seed in `sample.txt` hash to 0 modulo `one_in`.  Cases in `always.txt` are in every run.
    """

    def __init__(self, folder: Path) -> None:
        (seed,) = _lines(folder / "sample.txt")
        self.seed = int(seed)
        self.always = set(_lines(folder / "always.txt"))

    def takes(self, item: pytest.Item, mark: pytest.Mark) -> bool:
        """Return True if a run takes this case of a product."""
        callspec: Any = getattr(item, "callspec", None)
        if callspec is None or item.nodeid in self.always:
            return True
        if callspec.params.get("dtype") in mark.kwargs.get("always", ()):
            return True
        case = callspec.params.get("op", callspec.params.get("name", callspec.id))
        name = getattr(case, "name", case)
        return zlib.crc32(f"{self.seed} {name}".encode()) % int(mark.args[0]) == 0


def _lines(path: Path) -> list[str]:
    """Return the lines of a file without comments and empty ones."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of products that are not in the sample, unless they are asked for: by
    --whole, by -k or by name.
    """
    if config.getoption("--whole") or config.option.keyword:
        return
    named = tuple(arg for arg in config.args if "::" in arg)
    sample = Sample(Path(__file__).parent)
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("product")
        is_taken = mark is None or item.nodeid.startswith(named) or sample.takes(item, mark)
        (chosen if is_taken else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Making fifteen thousand tests, no collection of garbage finds any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        base = item.config.base_seed  # type: ignore[attr-defined]
        report.sections.append(("seed", f"repeat with: pytest '{item.nodeid}' --seed {base}"))
    return report
