"""The frames that a traceback shows, wherever it is printed, and the ones it must not lose."""

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import AutogradError, FlowError, OutOfRangeError, ShapeError
from flowvm.vm.callers.lines import is_internal
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND


def frames(call: Callable[[], Any]) -> tuple[BaseException, list[str]]:
    """Return the error of `call`, and its traceback's function names, from the inside out."""
    try:
        call()
    except BaseException as error:
        codes = [f.f_code for f, _ in traceback.walk_tb(error.__traceback__)]
        return error, [("flowvm " if is_internal(c.co_filename) else "") + c.co_name for c in codes]
    raise AssertionError("nothing was raised")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3))

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Wrong(nn.Graph):
    def build(self, x: Any) -> Any:
        return x + flow.ones(7)


def composed(x: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(x, target)


X = flow.ones(2, 4)
INDEX = flow.tensor([9])
AT_THE_CALL: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "an operator": (lambda: X + flow.ones(3), ["<lambda>"]),
    "a function": (lambda: flow.exp("x"), ["<lambda>"]),
    "a composed function": (lambda: composed(X, INDEX), ["<lambda>", "composed"]),
    "a composed function that looks itself": (lambda: flow.stack([X, INDEX]), ["<lambda>"]),
    "a module": (lambda: nn.Linear(3, 3)(X), ["<lambda>"]),
    "a module of the user's": (lambda: Net()(X), ["<lambda>", "forward"]),
    "a graph": (lambda: Wrong()(X), ["<lambda>", "build"]),
    "backward": (lambda: flow.ones(2).backward(), ["<lambda>"]),
    "grad": (lambda: flow.autograd.grad(X.sum(), X), ["<lambda>"]),
    "a read": (lambda: X.item(), ["<lambda>"]),
    "a truth value": (lambda: bool(X), ["<lambda>"]),
    "a name of flowvm": (lambda: flow.ruls, ["<lambda>"]),
    "a name of a part of it": (lambda: flow.optim.Adm, ["<lambda>"]),
    "a name that PyTorch has": (lambda: flow.sparse.solve, ["<lambda>"]),
    "an attribute of a tensor": (lambda: X.foo, ["<lambda>"]),
    "an attribute of a module": (lambda: nn.Linear(3, 3).wight, ["<lambda>"]),
    "a child of a module": (lambda: Net().get_submodule("outer"), ["<lambda>"]),
}


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Net()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("around", [contextlib.nullcontext, flow.vm.record])
def test_an_error_in_a_layer_names_its_path(around: Callable[[], Any]) -> None:
    with around():
        error, _ = frames(lambda: Deep()(X))
        assert getattr(error, "__notes__", None) == ["in layers.1.inner.0 (Linear) of Deep"]
        hooked = Net()
        hooked.register_forward_pre_hook(lambda *_: None)
        error, _ = frames(lambda: hooked(X))
        assert error.__notes__ == ["in inner.0 (Linear) of Net"]
        error, _ = frames(lambda: nn.Linear(3, 3)(X))
        assert not getattr(error, "__notes__", [])  # the only one there is
        stranger = nn.Linear(3, 3)
        hooked.register_forward_pre_hook(lambda *_: stranger(X))  # which is no part of it
        error, _ = frames(lambda: hooked(X))
        assert not getattr(error, "__notes__", [])


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_of_errors_at_the_call_the_users_frames_are_left(name: str) -> None:
    call, expected = AT_THE_CALL[name]
    error, shown = frames(call)
    assert isinstance(error, FlowError)
    assert shown == ["frames", *expected]
    with flow.config(tb="full"):
        assert len(frames(call)[1]) > len(shown)


def test_a_caught_error_goes_on_as_any_other() -> None:
    notes: list[Any] = []

    def again() -> None:
        try:
            composed(X, INDEX)
        except FlowError as error:
            notes.extend((error.__traceback__, error.__traceback__, sys.exc_info()[2]))
            mine = error
        raise mine.with_traceback(None)

    error, shown = frames(again)
    assert shown == ["frames", "again"]
    assert notes[0] is notes[1] is notes[2], "from the first look on there is one"
    error.__traceback__ = None
    assert error.__traceback__ is None


@pytest.mark.parametrize(
    "read", [lambda t: t.numpy(), lambda t: t.item(), lambda t: t.tolist(), lambda t: int(t)]
)
def test_of_errors_at_the_read_the_users_frames_are_left(read: Callable[[Any], Any]) -> None:
    failed = X[0][INDEX]
    for _ in range(2):  # the same exception, raised again
        error, shown = frames(lambda: read(failed))
        assert isinstance(error, OutOfRangeError)
        assert shown == ["frames", "<lambda>", "<lambda>"]
    assert frames(lambda: read(failed))[0] is error


def test_sync_too() -> None:
    failed = X[0][INDEX]
    error, shown = frames(flow.vm.sync)
    assert isinstance(error, OutOfRangeError)
    assert shown == ["frames"]
    del failed


def test_what_a_callback_raises_keeps_its_own_frames_and_its_cause() -> None:
    t = flow.ones(3)

    def callback(address: int) -> None:
        try:
            raise KeyError("below")
        except KeyError as below:
            raise ValueError("mine") from below

    engine.callbacks.issue(callback, [t._ref], [OPERAND.MUT])
    for _ in range(2):
        error, shown = frames(t.numpy)
        assert type(error) is ValueError
        assert type(error.__cause__) is KeyError
        assert error.__cause__.__traceback__ is not None
        assert shown == ["frames", "callback"]


def test_the_cause_and_the_context_stay() -> None:
    @border
    def fails() -> None:
        try:
            raise KeyError("below")
        except KeyError as below:
            raise ShapeError("above") from below

    error, shown = frames(fails)
    assert shown == ["frames", "fails"]  # of this file: the user's
    assert type(error.__cause__) is type(error.__context__) is KeyError


def test_a_bug_of_flowvms_shows_where_it_is() -> None:
    x = flow.ones(3, requires_grad=True)  # a copy, which native code does not make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowvm.eager.values.wait_for", lambda *_, **__: {}["bug"])
        error, shown = frames(x.numpy)
    assert type(error) is KeyError
    assert "flowvm numpy" in shown


def test_a_gradient_function_of_the_users_is_in_the_traceback() -> None:
    class Double(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g + flow.ones(7)

    x = flow.ones(3, requires_grad=True)
    error, shown = frames(lambda: Double.apply(x).sum().backward())
    assert shown == ["frames", "<lambda>", "backward"]
    assert "raised by the gradient of" in error.__notes__[0]


def test_a_graphs_error_names_the_module_and_the_line_of_build() -> None:
    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, x: Any) -> Any:
            return self.table(x)  # here

    class Whole(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.look = Look()

        def build(self, x: Any) -> Any:
            return self.look(x)

    graph = Whole()
    out = graph(flow.tensor([1, 2]))
    out = graph(flow.tensor([1, 9]))
    error, shown = frames(out.numpy)
    assert shown == ["frames"]
    (note,) = error.__notes__
    lines = note.splitlines()
    assert " of Whole on " in lines[0]
    assert lines[2].strip() == "return self.table(x)  # here"
    assert "    module    look.table" in lines


# --- as Python prints them ------------------------------------------------------------------------

PROGRAM = """
import flowvm as flow
x = flow.ones(2, 3)
def step():
    return x.sum(7)
step()
"""


def stderr_of(*arguments: str, text: str | None = None, **env: str) -> str:
    process = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": "", **env},  # ours are of options that it lacks
    )
    return process.stdout + process.stderr


def test_a_program_that_ends_in_an_error_shows_the_users_frames() -> None:
    output = stderr_of("-c", PROGRAM)
    assert output.count("File ") == 2
    assert 'File "<string>", line 5, in step\n' in output
    assert "OutOfRangeError: sum: dim 7" in output
    full = stderr_of("-c", PROGRAM, FLOWVM_TB="full")
    assert "reduce.py" in full


INTERRUPTED = """
import os, signal, flowvm as flow
from flowvm.eager import interpreter
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it in the background
def sent(*words, **named):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("no interrupt")
def work(x):
    return x + x  # here
x = flow.ones(3)
interpreter._entry = sent
work(x)
"""


def test_a_program_that_is_interrupted_shows_the_users_frames() -> None:
    output = stderr_of("-c", INTERRUPTED)
    assert "KeyboardInterrupt" in output
    assert "in work" in output
    assert "interpreter.py" not in output
    assert "interpreter.py" in stderr_of("-c", INTERRUPTED, FLOWVM_TB="full")


def test_pythons_prompt_does_so_too() -> None:
    output = stderr_of("-i", "-q", text=PROGRAM.replace("step()\n", "\nstep()\n"))
    assert "OutOfRangeError" in output
    assert "reduce.py" not in output
    assert "bad thing" in stderr_of("-c", "import flowvm\nraise ValueError('bad thing')")


@pytest.mark.parametrize("arguments", [("-c",), ("-i", "-q")])
def test_a_misspelt_name_shows_the_users_line_alone(arguments: tuple[str, ...]) -> None:
    """Before the VM has started, too."""
    program = "import flowvm as flow\nflow.ruls(1)\n"
    if arguments == ("-c",):
        output = stderr_of("-c", program)
    else:
        output = stderr_of(*arguments, text=program)
    assert "MissingNameError: flowvm has no 'ruls'; did you mean" in output
    assert output.count("File ") == 1


def test_names_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: Any) -> str:
        raise AssertionError("what is near is looked for although nobody reads it")

    monkeypatch.setattr("flowvm.errors.did_you_mean", search)
    for thing in (flow, flow.optim, X, nn.Linear(3, 3)):
        assert not hasattr(thing, "ruls")
        assert getattr(thing, "ruls", 5) == 5


def test_a_misspelt_name_can_be_sent_to_another_process() -> None:
    with pytest.raises(AttributeError) as caught:
        flow.sofmax  # noqa: B018
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.name == "sofmax"


def test_flowvm_run_does_so_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    output = stderr_of("-m", "flowvm", "run", str(tmp_path / "mine.py"))
    assert "OutOfRangeError: sum: dim 7" in output
    assert output.count("File ") == 2
    assert "mine.py" in output


def test_who_printed_errors_before_still_does() -> None:
    program = "import sys\nsys.excepthook = lambda *e: print('mine', len(e))\n" + PROGRAM
    assert stderr_of("-c", program) == "mine 3\n"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("flow.ones(3)[flow.tensor([9])].numpy()", "OutOfRangeError"),
        ("flow.ones(3).sum(7)", "OutOfRangeError"),
        ("flow.ruls", "MissingNameError"),
        ("flow.sparse.solve", "MissingNameError"),
        ("flow.ones(3).sums", "MissingNameError"),
        ("flow.nn.Linear(2, 2).wight", "MissingNameError"),
    ],
)
def test_ipython_shows_the_users_frames(call: str, error: str) -> None:
    pytest.importorskip("IPython")
    program = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("import flowvm as flow")
shell.run_cell({call!r})
"""
    output = stderr_of("-c", program)
    assert error in output
    assert "reading.py" not in output
    assert "def sum" not in output
    assert "dims_of" not in output
    assert "__getattr__" not in output


def test_pytest_shows_the_users_frames(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import flowvm as flow\ndef test(): flow.ones(3).sum(7)\n"
    )
    output = stderr_of("-m", "pytest", "-p", "no:cacheprovider", str(tmp_path))
    assert "OutOfRangeError" in output
    assert "reduce.py" not in output
    full = stderr_of("-m", "pytest", "-p", "no:cacheprovider", str(tmp_path), FLOWVM_TB="full")
    assert "reduce.py" in full


def test_an_error_costs_nothing_where_there_is_none() -> None:
    """A `try` is no instruction: the table of handlers is all that a call function gains."""
    import dis

    code = flow.exp.call.__code__
    assert code.co_exceptiontable
    names = {i.opname for i in dis.get_instructions(code)}
    assert not names & {"SETUP_FINALLY", "SETUP_WITH", "BEFORE_WITH"}


def test_autograd_errors_are_the_callers() -> None:
    error, shown = frames(lambda: X.sum().backward())
    assert isinstance(error, AutogradError)
    assert shown[-1] == "<lambda>"
