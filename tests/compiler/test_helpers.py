"""Helper processes and their jobs."""

import os
import queue
import threading
from pathlib import Path

import pytest

from flowvm.compiler import cache, helpers

JOBS = """
import os
from pathlib import Path
def note(path):
    Path(path).write_text(str(os.getpid()))
def fail(path):
    raise ValueError(path)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of jobs that helpers find."""
    (tmp_path / "noted_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pressing", [False, True])
def test_one_process_does_the_jobs_of_a_priority(jobs: Path, pressing: bool) -> None:
    results: queue.Queue[str] = queue.Queue()
    gate: queue.Queue[None] = queue.Queue()
    for name in "abc":
        path = jobs / name
        helpers.later(
            f"noted_jobs:note:{path}",
            lambda path=path: (results.put(path.read_text()), gate.get(timeout=60))[0],  # type: ignore[misc]
            pressing=pressing,
        )
    for _ in "abc":
        gate.put(None)
    processes = {results.get(timeout=60) for _ in "abc"}
    assert len(processes) == 1
    assert processes != {str(os.getpid())}


def test_a_job_that_fails_is_over_and_the_next_is_done(jobs: Path) -> None:
    results: queue.Queue[str] = queue.Queue()
    helpers.later(f"noted_jobs:fail:{jobs}", lambda: results.put("failed"))
    helpers.later(f"noted_jobs:note:{jobs / 'x'}", lambda: results.put("noted"))
    assert [results.get(timeout=60), results.get(timeout=60)] == ["failed", "noted"]
    assert (jobs / "x").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_behind_a_job_keeps_no_other_from_being_done(jobs: Path) -> None:
    results: queue.Queue[str] = queue.Queue()
    helpers.later(f"noted_jobs:note:{jobs / 'x'}", lambda: {}["planted"])
    helpers.later(f"noted_jobs:note:{jobs / 'y'}", lambda: results.put("noted"))
    assert results.get(timeout=60) == "noted"
    for thread in threading.enumerate():  # the error is reported in this test
        if thread.name == "flowvm-later":
            thread.join(60)


def test_a_guess_does_not_wait_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is done last, and then it waits."""
    order: list[tuple[str, bool]] = []

    def do(job: str, lock: str) -> None:
        order.append((job, helpers.jit.patient))
        if job == "busy" and not helpers.jit.patient:
            with cache.alone(tmp_path, job), cache.alone(tmp_path, job, waiting=False):
                raise AssertionError("two are alone")

    def sent(jobs: list[str]):  # type: ignore[no-untyped-def]
        jobs += ["first", "busy"]
        while jobs:
            yield jobs.pop()

    monkeypatch.setattr(helpers, "_do", do)
    monkeypatch.setattr(helpers, "_incoming_jobs", sent)
    monkeypatch.setattr(helpers.jit, "patient", True)
    helpers._guess()
    assert order == [("busy", False), ("first", False), ("busy", True)]
