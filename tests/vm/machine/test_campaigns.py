"""The campaigns of random programs: some cases of each, and their finding of planted faults."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from tests.vm.mutants import HAZARDS
from tools import patience as bounds
from tools.campaign import __main__ as running
from tools.campaign import graph, vm


@pytest.mark.parametrize("campaign", [vm, graph])
def test_some_cases(campaign, seed):
    for k in range(8):
        case = campaign.case(seed + k)
        assert campaign.check(case) in ("right", "with errors"), campaign.kind(case)


@pytest.mark.parametrize("campaign", [vm, graph])
def test_cases_get_smaller(campaign, seed):
    case = campaign.case(seed)
    sizes = {len(str(case))} | {
        len(str(campaign.without(case, k))) for k in range(min(4, len(campaign.parts(case))))
    }
    assert len(sizes) > 2


FORGETFUL = """
import sys
from tests.vm.mutants import MUTANT, forgetful_scheduler
from flowvm.vm.engine.engine import engine
from tools.campaign import vm
found = 0
with forgetful_scheduler():
    for seed in range({first}, {first} + 12):
        case = {{**vm.case(seed), "streams": 4, "verify": True}}
        engine.words[MUTANT] = {hazard}
        try:
            vm.check(case)
        except Exception:
            found += 1
        engine.words[MUTANT] = 0
        if found:
            break
sys.stdout.write(str(found))
sys.stdout.flush()
import os
os._exit(0)
"""


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_scheduler_that_forgets_a_hazard_is_found(hazard, seed):
    """In a process of its own, for what it breaks may be memory: a crash is a finding too."""
    source = FORGETFUL.format(hazard=HAZARDS[hazard], first=seed)
    process = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=os.getcwd()
    )
    assert process.returncode < 0 or process.stdout == "1", process.stderr


def test_a_wrong_number_a_missing_error_and_a_wrong_one_are_found(seed):
    """The checks themselves, given a case whose expectation is off."""
    quiet = {"streams": 1, "verify": False, "values": seed}
    bad = ["bad", "", 0, 1, 2, 3, 1]
    read = ["read", "", 0, 0, 1, 1, 1]
    assert vm.check({**quiet, "programs": [[bad, read]]}) == "with errors"

    def broken(change):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            with pytest.raises(AssertionError) as caught:
                vm.check({**quiet, "programs": [[bad, read, ["sync", "", 0, 0, 0, 0, 1]]]})
        return str(caught.value)

    never = lambda patch: patch.setattr(vm.Model, "causes", lambda self, *names: frozenset())  # noqa: E731
    assert "an error of step 0 where one of set() is due" in broken(never)
    other = lambda patch: patch.setattr(vm, "_places", lambda n: vm.flow.tensor([0, 1, 2, 3]))  # noqa: E731
    assert "read a number that {0} poisoned" in broken(other)


@pytest.mark.parametrize("fails", [True, False])
def test_a_finding_that_passes_alone_is_named(monkeypatch, capsys, tmp_path, fails):
    def watched(name, seed, until, outcomes, amounts, report):
        if seed == 1:
            report(seed, "the process ended with 1")
        return seed + 1

    monkeypatch.setattr(running, "FOUND", tmp_path)
    monkeypatch.setattr(running, "_watched", watched)
    monkeypatch.setattr(running, "_fails", lambda name, case: fails)
    monkeypatch.setattr(running, "shrunk", lambda name, case: case)
    assert running.run("vm", 0.02, 1, once_more=True) == int(fails)
    output = capsys.readouterr().out
    assert ("FLAKY campaign vm --seed 1" in output) is not fails
    assert f"{int(fails)} findings" in output


DYING = """
import json, os, signal
print("case 7 of this kind", flush=True)
print("done " + json.dumps({"outcome": "right", "problem": "", "amounts": {}}), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_crash_behind_the_last_case_is_found(monkeypatch, tmp_path):
    program = tmp_path / "dying"
    program.write_text(f"#!{sys.executable}\n{DYING}")
    program.chmod(0o700)
    monkeypatch.setattr(running, "FOUND", tmp_path)
    monkeypatch.setattr(running.sys, "executable", str(program))
    reports, outcomes = [], Counter()

    def report(*what):
        reports.append(what)

    until = time.monotonic() + 60
    assert running._watched("vm", 7, until, outcomes, Counter(), report) == 8
    assert outcomes == {"of this kind right": 1, "crashed behind the cases": 1}
    ((seed, problem),) = reports
    assert seed == 7
    assert "ended with -11, behind its last case" in problem


def test_a_crash_leaves_stacks():
    source = (
        "import faulthandler, types\n"
        "from tools.campaign import __main__ as running\n"
        "def of_the_case(seed): faulthandler._sigsegv()\n"
        "running.campaign = lambda name: types.SimpleNamespace(case=of_the_case)\n"
        "running.batch('vm', 1, 1)"
    )
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert process.returncode == -11
    assert "in of_the_case" in process.stderr


def test_a_late_case_leaves_stacks():
    source = (
        "import time\n"
        "from tools.patience import patience\n"
        "def of_the_case():\n    while True: time.sleep(0)\n"
        "with patience(0.2): of_the_case()"
    )
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert process.returncode == 1
    assert "no end within 0.2 s" in process.stderr
    assert "in of_the_case" in process.stderr


def test_stacks_are_printed_by_a_thread_with_the_lock(monkeypatch):
    """faulthandler's own thread reads frames that others change and free meanwhile."""
    printed = threading.Event()
    names, codes = [], []

    def dump(*, all_threads):
        names.append(threading.current_thread().name)

    def ends(code):
        codes.append(code)
        printed.set()

    monkeypatch.setattr(bounds.faulthandler, "dump_traceback", dump)
    monkeypatch.setattr(bounds.os, "_exit", ends)
    with bounds.patience(0.01):
        assert printed.wait(60)
    assert (names, codes) == (["patience"], [1])
