"""The output of FLOWVM_DEBUG, and the settings that are taken when the VM starts."""

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import flowvm as flow
a = flow.ones(2, 3)
b = a * 2
a.add_(1)
print(b.sum().item())
"""


# the machine may be busy: an instruction is waited for as long as it takes
PATIENT = "from flowvm.vm.watch import narrate; narrate.PATIENCE = 60; "


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {f"FLOWVM_{name.upper()}": value for name, value in env.items()}
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
    )
    assert process.returncode == 0, process.stderr
    return process


def instructions(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if re.match(r"flowvm: #\d+ ", line)]


def test_by_default_nothing_is_said() -> None:
    assert run(PROGRAM).stderr == ""


def test_level_1_names_the_threads() -> None:
    output = run(PROGRAM, debug="1").stderr
    assert "flowvm: started thread flowvm-sched\n" in output
    assert not instructions(output)


def test_level_1_names_what_is_compiled(tmp_path) -> None:
    program = "from flowvm.ops.declare.cpu.walk import walk\nfrom flowvm.compiler import jit\n"
    program += "jit.native(abs_, 'int64(int64)')".replace("abs_", "lambda i: i * 3")
    process = run(program, debug="1", cache_dir=str(tmp_path))
    assert re.search(r"^flowvm: compiled <lambda> in \d+ ms$", process.stderr, re.M)
    assert "LLVM code" not in process.stderr
    assert list(tmp_path.glob("*.o"))


@pytest.mark.parametrize("engine", ["threaded", "sequential"])
def test_level_2_prints_each_instruction_in_order_with_the_users_line(engine: str) -> None:
    lines = instructions(run(PATIENT + PROGRAM, debug="2", engine=engine).stderr)
    assert [line.split()[3] for line in lines[:5]] == ["fill", "mul", "add", "sum", "wait"]
    assert [line.split()[1] for line in lines[:5]] == ["#0", "#1", "#2", "#3", "#4"]
    operands = r"mut out f32\[2,3\] · const x f32\[2,3\]"
    assert re.search(
        rf" cpu +mul +{operands} +\d+\.\d{{3}} ms +\d+\.\d GB/s +48 B  <string>:4$", lines[1]
    )


def test_level_2_gives_products_their_operations() -> None:
    program = "import flowvm as flow\nx = flow.ones(64, 64)\n(x @ x).numpy()\n"
    lines = instructions(run(PATIENT + program, debug="2").stderr)
    (line,) = [t for t in lines if t.split()[3] == "matmul"]
    ms, rate = (float(number) for number in re.findall(r"([\d.]+) (?:ms|GF/s)", line))
    slowest, fastest = (2 * 64**3 / 1e6 / max(ms + half, 1e-9) for half in (5e-4, -5e-4))
    assert slowest - 0.05 <= rate <= fastest + 0.05, line  # of numbers rounded to 0.001 and 0.1


def test_level_2_leaves_what_does_not_end_behind() -> None:
    program = """
import threading
import flowvm as flow
from flowvm.vm.machine.words import OPERAND
from flowvm.vm.engine.engine import engine
x, free = flow.ones(3), threading.Event()
flow.vm.sync()
with flow.config(debug=2):
    engine.callbacks.issue(lambda address: free.wait(), [x._ref], [OPERAND.MUT])
    y = x + 1
free.set()
assert y.tolist() == [2.0, 2.0, 2.0]
"""
    lines = instructions(run(program).stderr)
    assert [line.split()[3] for line in lines[:2]] == ["callback", "add"]
    assert all(re.search(r"not done yet  <string>:\d+$", line) for line in lines[:2])


def test_level_2_says_what_failed_and_what_was_skipped() -> None:
    program = """
import flowvm as flow
with flow.config(debug=2):
    y = flow.ones(4)[flow.tensor([7])] + 1
try: y.numpy()
except IndexError: pass
"""
    output = run(PATIENT + program).stderr
    assert re.search(r"index_select .* failed [\d.]+ ms", output)
    assert re.search(r" add .* skipped: an operand failed", output)


def test_level_2_in_ascii() -> None:
    program = "import flowvm as flow\nx = flow.ones(3) + 1\nflow.vm.sync()\n"
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "FLOWVM_DEBUG": "2", "PYTHONIOENCODING": "ascii:strict"},
    )
    assert b"mut out f32[3] | const x f32[3]" in process.stderr


def test_level_4_shows_kernels_and_what_numba_is_given() -> None:
    program = "import flowvm as flow\nx = (flow.ones(3) * 2.0).cumsum(0)\nflow.vm.sync()\n"
    output = run(program, debug="4").stderr
    assert "flowvm: kernel of mul: out float32 = x * y  of x float32 as float32, y " in output
    assert (
        "flowvm: kernel of cumsum: array(float32, 1d, C), array(float32, 1d, C)\n    def " in output
    )


def test_level_3_adds_what_each_waits_for() -> None:
    lines = instructions(run(PROGRAM, debug="3").stderr)
    ends = [line.partition("waits for ")[2] for line in lines[:4]]
    assert ends == ["", "#0 RAW", "#0 WAW, #1 WAR", "#1 RAW"]


def test_the_level_may_change_at_any_time() -> None:
    program = "import flowvm as flow\nx = flow.ones(3)\nfor _ in range(600): x = x + 1\n"
    program += "with flow.config(debug=2):\n    y = x * 2\n    flow.vm.sync()\nz = y - 1\n"
    names = [line.split()[3] for line in instructions(run(program).stderr)]
    assert [name for name in names if name != "release"] == ["mul", "barrier"]


def test_settings_of_the_start_are_taken_with_the_first_instruction() -> None:
    run(
        """
import os
import flowvm as flow
from flowvm.vm.engine.engine import engine
flow.config.engine = "sequential"
assert flow.ones(3).sum().item() == 3 and not engine.threads.running
try:
    flow.config.run_ahead = flow.config.run_ahead + 1
except flow.errors.ConfigError as error:
    assert "the VM has started" in str(error)
else:
    raise AssertionError("a setting that does nothing was taken")
"""
    )


def test_a_child_may_start_its_vm_with_other_settings() -> None:
    run(
        """
import os
import flowvm as flow
from flowvm.vm.engine.engine import engine
x = flow.ones(3)
assert x.sum().item() == 3
child = os.fork()
if child == 0:
    flow.config.engine = "sequential"
    os._exit(0 if x.sum().item() == 3 and not engine.threads.running else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )
