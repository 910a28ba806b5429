"""Forks beside busy threads, no descriptors left, and tensors that outlive Python's good days."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.vm.live import script
from tools.campaign import forks, threads

# --- forks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "beside", [["issue", "stream"], ["fail", "fail"], ["compile", "graph"], ["backward", "delete"]]
)
def test_children_forked_beside_busy_threads(beside):
    children = [
        [0.001 * k, pending, forks.ENDS[k % 3], k] for k, pending in enumerate(forks.PENDING)
    ]
    case = {"threads": beside, "children": children}
    process = subprocess.run(
        [sys.executable, "-c", f"from tools.campaign import forks; forks.check({case!r})"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr


def test_a_thread_that_issues_waits_at_the_gate_and_goes_on():
    script(
        """
        from flowvm.vm.engine import engine as module
        forking = module._forking
        x = tensor([1])
        update(x, x, 1)
        forking.before()
        gate, begun, done = hot["counter"], threading.Event(), []
        def other():
            begun.set()
            update(x, x, 1)
            done.append(x.item())
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        thread.join(0.2)
        assert thread.is_alive() and not done, "it issued through the gate"
        assert engine.words[CTL.HEAD] == engine.words[CTL.RECEIVED]
        forking.after_in_parent()
        thread.join(20)
        assert done and hot["counter"] is gate.counter
        """
    )


def test_what_failed_in_the_parent_is_the_parents_to_report():
    process = script(
        """
        x = tensor([1])
        fail(x, x, 12345)
        engine.waits.wait_idle()
        pid = os.fork()
        if pid == 0:
            try:
                x.item()
            except BaseException as error:
                kept = error
            sys.exit(0)
        os.waitpid(pid, 0)
        try:
            x.item()
        except BaseException:
            print("heard")
        """
    )
    assert process.stdout == "heard\n"
    assert not process.stderr


# --- exit and descriptors -------------------------------------------------------------------------


def test_finalizers_use_tensors_when_python_ends():
    program = """
    import builtins, sys
    import flowvm as flow
    class Holder:
        def __init__(self):
            self.t = flow.ones(3) * 2
        def __del__(self):
            print(self.t.tolist(), (self.t * 3 + 1).cumsum(0).tolist(), repr(self.t))
    (flow.ones(3) * 3 + 1).cumsum(0).tolist()  # its kernels are in the cache, or compiled now
    holder = Holder()
    builtins.kept = Holder()
    cycle = [Holder()]
    cycle.append(cycle)
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr, process.stderr
    assert process.stdout.count("[2.0, 2.0, 2.0] [7.0, 14.0, 21.0]") == 3, process.stdout


def test_a_kernel_that_was_never_compiled_is_a_clear_error_when_python_ends():
    process = script(
        """
        from flowvm.compiler import jit
        from flowvm.errors import CompileError
        def triple(x: int) -> int:
            return 3 * x
        class Holder:
            facts = os.urandom(8)
            def __del__(self):
                try:
                    jit.native(triple, "int64(int64)", facts=self.facts)
                except CompileError as error:
                    print(error)
        jit.native(triple, "int64(int64)")
        holder = Holder()
        """
    )
    assert "Python is ending" in process.stdout, process.stdout + process.stderr
    assert not process.stderr


def test_the_watch_thread_outlives_running_out_of_descriptors():
    process = script(
        """
        import resource, subprocess
        from flowvm.vm.watch import window
        flowvm.ones(1).item()
        asking = subprocess.Popen(
            [sys.executable, "-c", '''
        import sys
        from flowvm.vm.watch import window
        for line in sys.stdin:
            print(window.ask(int(line), {})[0]["pid"], flush=True)
        '''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        asking.stdin.write(f"{os.getpid()}\\n")
        time.sleep(1.5)
        for number in held:
            os.close(number)
        print(int(asking.stdout.readline()) == os.getpid())
        asking.stdin.write(f"{os.getpid()}\\n")
        print(int(asking.stdout.readline()) == os.getpid())
        asking.stdin.close()
        print("flowvm-watch" in [t.name for t in threading.enumerate()])
        """
    )
    assert process.stdout == "True\nTrue\nTrue\n", process.stdout + process.stderr


# --- memory -------------------------------------------------------------------------------------

OUT_OF_MEMORY = [
    {"how": "limit", "at": 900, "programs": [["eager", 9], ["shapes", 5], ["backward", 9]]},
    {"how": "huge", "at": 1, "programs": [["many", 4], ["stream", 3]]},
    {"how": "system", "at": 1, "programs": [["backward", 4]]},
    {"how": "system", "at": 1, "programs": [["many", 2]]},
    {"how": "python", "at": 1, "programs": [["stream", 2]]},
    {"how": "python", "at": 1, "programs": [["views", 2]]},
]


def test_memory_runs_out_at_each_allocation_and_call():
    process = script(
        f"""
        sys.path.insert(0, os.getcwd())
        from tools.campaign import memory
        for case in {OUT_OF_MEMORY}:
            memory.check(case)
            print(case["how"], memory.AMOUNTS["failures"], flush=True)
        # what was to be released and is forgotten where no record could be written is found
        def forgets(self, batch):
            ids = list(batch)
            batch.clear()
            self.records.publish(self.releases[len(ids)], ids, (), None, 0)
        type(engine.storages)._release_some = forgets
        try:
            memory.check({{"how": "python", "at": 1, "programs": [["release", 2]]}})
        except AssertionError as error:
            print(error)
        """
    )
    lines = process.stdout.splitlines()
    assert [line.split()[0] for line in lines[:6]] == [case["how"] for case in OUT_OF_MEMORY]
    assert int(lines[5].split()[1]) > 200, process.stdout
    assert "more bytes are live" in lines[-1], process.stdout


def test_what_is_done_apart_is_done_here_if_there_is_no_memory_for_a_thread():
    process = script(
        """
        import resource
        from flowvm.guards.apart import apart
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        threading.stack_size(1 << 28)
        resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 24), resource.RLIM_INFINITY))
        print(apart(threading.get_ident) == threading.get_ident())
        """
    )
    assert process.stdout == "True\n", process.stdout + process.stderr


# --- a campaign, three cases ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_campaigns(seed):
    case = threads.case(seed)
    assert threads.check(case)
    assert len(threads.parts(threads.without(case, 0))) == len(threads.parts(case)) - 1
