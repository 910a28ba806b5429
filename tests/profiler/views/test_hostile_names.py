"""Names of files and programs that hold a terminal's commands, and all that prints them."""

import contextlib
import io
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.files.printable import cropped, printable
from flowvm.profiler.run.run import Run
from flowvm.vm.callers import lines

# a title, a bell, a cleared screen, colours by one byte, a return, a direction, half a pair
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202ey\u2066z\u200b\ud800</script>&\"'<b>"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def check(text: str, what: str) -> None:
    codes = COMMANDS.findall(text)
    assert not codes, f"{what}: {codes[:5]!r}"


def _program() -> Any:
    space: dict[str, Any] = {}
    code = "def f(x):\n    return x * 2 + 1\n"
    exec(compile(code, f"/tmp/{HOSTILE.replace('/', '')}.py", "exec"), space)
    return space["f"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A profile with such names, as they are in the file."""
    model = nn.Module()
    model.add_module(HOSTILE.replace(".", ""), nn.Linear(3, 3))
    layer = next(model.children())
    with flow.profiler.profile() as recorded, flow.profiler.span(HOSTILE):
        flow.profiler.mark(HOSTILE)
        with flow.stream(flow.Stream(HOSTILE)):
            (layer(_program()(flow.ones(2, 3))).sum() + 1).item()
    path = tmp_path_factory.mktemp("runs") / "run.flowtrace"
    recorded.save(path)
    run = Run.load(path)
    fields = {name: getattr(run, name) for name in Run.__dataclass_fields__}
    # a file may have them where no program could
    fields |= {name: [HOSTILE + one for one in fields[name]] for name in ("names", "modules")}
    fields["lines"] = ["", *(HOSTILE + one for one in fields["lines"][1:])]
    fields["spots"] = [[HOSTILE + s[0], s[1], s[2], HOSTILE + s[3]] for s in fields["spots"]]
    fields["streams"] = [f"{HOSTILE}{k}" for k in range(len(fields["streams"]))]
    fields["info"] = {**fields["info"], "machine": HOSTILE, "cpu": HOSTILE, "raised": HOSTILE}
    Run(**fields).save(path)
    loaded = flow.profiler.load(path)
    assert any(HOSTILE in name for name in loaded.run.names)
    return loaded


def _views(profile: Any) -> Iterator[tuple[str, Any]]:
    """Yield every view of a method without arguments, and the views of an instruction."""
    seq = int(profile.run.seq[len(profile) // 2])
    arguments: dict[str, tuple[Any, ...]] = {
        "query": ("stream != 'a'",), "diff": (profile,), "why": (seq,), "at": (0.0,),
        "whatif": ("x",), "beside": (profile,),
    }  # fmt: skip
    for name in dir(type(profile)):
        if name.startswith("_") or name in ("save", "export", "widget", "show"):
            continue
        method = getattr(profile, name)
        with contextlib.suppress(flow.FlowError, TypeError, AttributeError):
            yield name, method(*arguments.get(name, ())) if callable(method) else method
    for by in ("op", "line", "module", "stream"):
        with contextlib.suppress(flow.FlowError):
            yield f"summary {by}", profile.summary(by)
    yield "instr", profile.instr[seq]
    yield "instrs", profile.instr


def test_every_view(profile: Any) -> None:
    from rich.console import Console

    visited = set()
    for name, view in _views(profile):
        if not type(view).__module__.startswith("flowvm"):
            continue
        visited.add(name)
        check(repr(view), name)
        check(str(view), name)
        if hasattr(view, "screen"):
            for width in (40, 100, 160):
                check(view.screen(width).plain(), name)
                check(view.screen(width).cut(30).plain(True), name)
                check(view.screen(width).html(), name)
            out = io.StringIO()
            Console(file=out, width=100, color_system=None).print(view)
            check(out.getvalue(), name)
            check(json.dumps(view.to_dict(), default=str), name)
        if hasattr(view, "_repr_html_"):
            text = view._repr_html_()
            check(text, name)
            assert "<b>" not in text.replace("&lt;b&gt;", ""), name
    assert {"summary", "timeline", "memory", "flame", "tree", "instr"} <= visited, sorted(visited)


@pytest.mark.parametrize(
    "ending", [".html", ".svg", ".dot", ".mmd", ".json", ".speedscope.json", ".folded"]
)
def test_every_export(ending: str, profile: Any, tmp_path: Path) -> None:
    path = tmp_path / f"run{ending}"
    (profile.flame().save if ending == ".folded" else profile.export)(path)
    text = path.read_text("utf-8")
    check(text, ending)
    if ending == ".svg":
        ElementTree.fromstring(text)
    elif ending.endswith(".json"):
        assert any(HOSTILE[:5] in str(part) for part in _texts(json.loads(text)))
    elif ending == ".html":
        assert "<b>" not in text
        assert text.count("</script>") == text.count("<script")
    widget = profile.widget()._repr_html_()
    check(widget, "widget")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


@pytest.mark.parametrize("command", [["view"], ["query"], ["diff"], ["why"], ["view", "--html"]])
def test_commands(command: list[str], profile: Any, tmp_path: Path) -> None:
    path = str(tmp_path / f"run{HOSTILE[:12]}.flowtrace")
    profile.save(path)
    more = {"query": ["stream != 'a'"], "diff": [path], "why": [str(int(profile.run.seq[0]))]}
    line = [sys.executable, "-m", "flowvm", command[0], path, *more.get(command[0], command[1:])]
    for arguments in (line, [*line, "no such question ="], [*line[:4], path + "x"]):
        process = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
        )
        check(process.stdout.decode() + process.stderr.decode(), " ".join(command))


# --- the VM ---------------------------------------------------------------------------------------


def test_the_vms_own_words() -> None:
    f = _program()
    shown: list[str] = []
    with flow.stream(flow.Stream(HOSTILE)):
        with flow.vm.record() as trace:
            f(flow.ones(3)).sum().item()
        check(str(trace), "a trace")
        check(repr(trace), "a trace")
        with flow.vm.step("mul", on=lambda stop: shown.append(flow.vm.dump() + repr(stop))):
            f(flow.ones(3)).sum().item()
        assert shown
        check("".join(shown), "dump")


def test_errors_and_their_notes() -> None:
    for error in (
        flow.errors.ArgumentError(HOSTILE),
        flow.errors.FileError(HOSTILE),
        flow.errors.MissingNameError(HOSTILE, "x", lambda: ["x" + HOSTILE]),
    ):
        check(str(error), type(error).__name__)
    model = nn.Sequential()
    model.add_module(HOSTILE.replace(".", ""), nn.Embedding(2, 2))
    check(repr(model), "a module")
    with flow.stream(flow.Stream(HOSTILE)):
        with pytest.raises(flow.FlowError) as caught:
            model(flow.tensor([5])).sum().item()
        check("".join(getattr(caught.value, "__notes__", [])), "notes")
        check(str(caught.value), "the error")
        check(repr(flow.vm.errors() if callable(flow.vm.errors) else flow.vm.errors), "errors")
    with pytest.raises(flow.FlowError) as caught:
        model(flow.ones(2))  # no indices: raised at the call, in a layer of that name
    assert "owned" in "".join(caught.value.__notes__)
    check("".join(caught.value.__notes__), "the note of a layer")
    with pytest.raises(flow.FlowError) as caught:
        model.load_state_dict({HOSTILE: flow.ones(1)})
    check(str(caught.value), "load_state_dict")


def test_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lines.warn(HOSTILE, place=(f"/tmp/{HOSTILE}", 3))
    check(str(caught[0].message) + caught[0].filename, "a warning")


def test_graphs() -> None:
    class Hostile(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential()
            self.model.add_module(HOSTILE.replace(".", ""), nn.Linear(2, 2))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            y: flow.Tensor = function(self.model(x))
            return y

    function = _program()
    graph = Hostile()
    graph(flow.ones(1, 2))
    plan = graph.plan
    for text in (
        repr(graph), graph.explain(), graph._repr_html_(), plan.dump(), repr(plan),
        plan._repr_html_(), repr(plan.graph), repr(plan.passes), repr(graph.compare()),
        repr(graph.model),
    ):  # fmt: skip
        check(text, text[:20])


def test_tensors() -> None:
    kind = type(HOSTILE.encode("ascii", "replace").decode(), (flow.Tensor,), {})
    check(repr(flow.ones(2).as_subclass(kind)), "a tensor")


# --- the function ---------------------------------------------------------------------------------


def test_printable() -> None:
    for code in (*range(32), *range(127, 160), 0x61C, 0x200E, 0x2028, 0x202A, 0x2069, 0xD800):
        text = printable(f"a{chr(code)}b")
        assert text.isascii()
        assert text.startswith("a\\")
        assert text.encode().decode("unicode_escape") == f"a{chr(code)}b"
    assert printable("a\tb\nc", lines=True) == "a\tb\nc"
    assert printable("a\r\nb\x1b", lines=True) == "a\\r\nb\\x1b"
    for plain in ("", "add", "größe", "数", "👩\u200d👧", "█▇ ━ ·", "a\u00a0b"):
        assert printable(plain) == plain
    assert cropped("\x1b" * 100, 10) == "\\x1b" * 7 + "..."
    assert cropped([1]) == "list"


def test_every_character(rng: np.random.Generator) -> None:
    """Every terminal shows printable text as it is."""
    for _ in range(200):
        text = "".join(map(chr, rng.integers(0, 0x110000, 50)))
        assert not COMMANDS.search(printable(text))
        printable(text).encode()
