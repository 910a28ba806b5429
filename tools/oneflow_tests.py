"""Runs OneFlow's own tests with flowvm in the place of OneFlow, on one or several ranks.

    python -m tools.oneflow_tests FOLDER                        FOLDER: its python/oneflow
    python -m tools.oneflow_tests FOLDER -n 2 --only several    files that speak of several ranks
    python -m tools.oneflow_tests FOLDER modules/test_ddp.py    these files
    python -m tools.oneflow_tests FOLDER --results r.json --table    the shares of a run before

`import oneflow` is flowvm, and PyTorch is itself where a test compares.  "cuda" reads "cpu", and
types of OneFlow's compiled functions are flowvm's as well.  The tests are read and not changed
otherwise.  A method passes if it passes on every rank.  Behind a method that fails on several
ranks, all start anew: the others may wait for it.  Apart are "words", where an error came as it
should and has other words than OneFlow's, and "without": what `NEEDS` names.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import importlib.abc
import importlib.util
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flowvm import ops
from flowvm.compat import torch as compat
from flowvm.ranks.world import world, world_size

HERE = Path(__file__).resolve().parent.parent
# methods that need what a CPU has not: `folder/file.py`, a method or a class in it -> the reason
NEEDS = {
    "expensive/test_global_tensor_offload.py": "a GPU's memory",
    "expensive/test_id_shuffle_global.py": "OneEmbedding, on a GPU",
    "expensive/test_tensor_str.py": "OneFlow's own way to print",
    "graph/test_graph_reuse_var.py": "OneFlow's inner parts of a graph",
    "graph/test_graph_zero.py::test_linear_train_graph_with_zero_1": "parameters cut by stage 1",
    "graph/test_graph_zero.py::test_linear_train_graph_with_zero_2": "parameters cut by stage 2",
    "misc/test_env_cuda.py": "a GPU",
    "misc/test_manual_seed_api.py": "two GPUs in one process",
    "modules/test_coco_reader.py": "a data set",
    "modules/test_dlpack.py": "GPUs by number",
    "modules/test_gpt_data_loader.py": "a data set",
}


# --- inside a process -----------------------------------------------------------------------------


class _OnCpu(ast.NodeTransformer):
    """A program in which "cuda" reads "cpu"."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and str(first.value).startswith("cuda:"):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "is_cuda":
            node.attr = "is_cpu"
        if ast.unparse(node) == "types.BuiltinFunctionType":
            return ast.copy_location(ast.Name("_FUNCTIONS", ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        return node


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `oneflow.test_utils` and the modules beside a test, and loads them on the CPU."""

    def __init__(self, root: Path, beside: Path) -> None:
        self.root, self.beside = root, beside

    def _path(self, name: str) -> Path | None:
        parts = name.split(".")
        if parts[:2] == ["oneflow", "test_utils"]:
            base = self.root.joinpath(*parts[1:])
        elif len(parts) == 1:
            base = self.beside / name
        else:
            return None
        return next(
            (p for p in (base / "__init__.py", base.with_suffix(".py")) if p.exists()), None
        )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        place = self._path(fullname)
        if place is None:
            return None
        inside = [str(place.parent)] if place.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, place, loader=self, submodule_search_locations=inside
        )

    def exec_module(self, module: Any) -> None:
        place = Path(module.__spec__.origin)
        tree = ast.fix_missing_locations(_OnCpu().visit(ast.parse(place.read_text())))
        module._FUNCTIONS = (types.BuiltinFunctionType, type(ops.bernoulli))
        exec(compile(tree, str(place), "exec"), module.__dict__)


def _cases(suite: Any) -> Iterator[unittest.TestCase]:
    for case in suite:
        if isinstance(case, unittest.TestSuite):
            yield from _cases(case)
        else:
            yield case


def _outcome(error: Any) -> tuple[str, str]:
    """Return an error's kind, "words" if it asserts an error's words, else "fail", and text."""
    kind, value, trace = error
    text = f"{kind.__name__}: {' '.join(str(value).split())[:300]}"
    if kind is AssertionError:
        for frame in traceback.extract_tb(trace):
            first, last = frame.lineno or 0, frame.end_lineno or 0
            lines = (linecache.getline(frame.filename, k) for k in range(first, last + 1))
            if re.search(r"in str\(", " ".join(lines)):
                return "words", text
    return "fail", text


class _Result(unittest.TestResult):
    outcome = ("pass", "")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.outcome = _outcome(err)

    addFailure = addError  # noqa: N815

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.outcome = ("skip", reason)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.outcome = _outcome(err)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcome = ("pass", "")


def _inside(root: Path, place: Path, known: list[str], out: str, seconds: float) -> None:
    compat.ROOTS = ("oneflow",)  # type: ignore[misc, assignment]
    sys.meta_path.insert(0, _Sources(root, place.parent))
    compat.install(report=False)
    sys.meta_path.insert(0, sys.meta_path.pop(1))
    several = world_size() > 1
    rank = world().rank if several else 0
    with open(f"{out}.{rank}", "a", buffering=1) as log:

        def note(*row: str) -> None:
            log.write(json.dumps(row) + "\n")

        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            module = importlib.import_module(place.stem)
        except unittest.SkipTest as error:
            note("whole file", "skip", str(error))
            return
        except BaseException as error:
            traceback.print_exc()
            note("whole file", *_outcome(sys.exc_info()))
            raise SystemExit(1) from error
        for case in _cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
            name = case.id().partition(".")[2]
            if name in known:
                continue
            note(name, "start", "")
            faulthandler.dump_traceback_later(seconds, exit=True)
            result = _Result()
            case.run(result)
            note(name, *result.outcome)
            for _, text in (*result.errors, *result.failures):
                print(name, text, file=sys.stderr)
            if several and result.outcome[0] in ("fail", "words"):
                os._exit(1)
        note("all", "done", "")
        faulthandler.cancel_dump_traceback_later()


# --- all files ------------------------------------------------------------------------------------


def outcomes(
    root: Path, place: Path, ranks: int, seconds: float, show: bool
) -> dict[str, tuple[str, str]]:
    """Run a file's methods; for each: "pass", "fail" or "skip", and what was said."""
    known: dict[str, tuple[str, str]] = {}
    for _ in range(60):
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/log"
            given = Path(folder) / "known"
            given.write_text("\n".join(known))
            inside = ["tools.oneflow_tests", str(root), str(place), "--inside", out]
            inside += ["--known", str(given), "--seconds", str(seconds)]
            launch = ["flowvm", "launch", "-n", str(ranks), "-m"] if ranks > 1 else []
            command = [sys.executable, "-m", *launch, *inside]
            env = {**os.environ, "PYTHONPATH": str(HERE), "ONEFLOW_TEST_DATASET_DIR": folder}
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            if show:
                print(done.stdout, done.stderr)
            rows: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
            for rank in range(ranks):
                path = Path(f"{out}.{rank}")
                for line in path.read_text().splitlines() if path.exists() else ():
                    name, kind, text = json.loads(line)
                    rows[name][rank] = (kind, text)
        over = len(rows.pop("all", {})) == ranks
        before = len(known)
        for name, said in rows.items():
            kinds = {kind for kind, _ in said.values()}
            if kinds & {"fail", "words"}:
                known[name] = min(s for s in said.values() if s[0] in ("fail", "words"))
            elif kinds == {"start"} or (not over and "start" in kinds):
                known[name] = ("fail", _end(done.stderr))
            elif len(said) == ranks and len(kinds) == 1:
                known[name] = next(iter(said.values()))
        if over or "whole file" in known:
            return known
        if len(known) == before:
            known["whole file"] = ("fail", _end(done.stderr))
            return known
    return known | {"whole file": ("fail", "too many starts")}


def _end(text: str) -> str:
    if "Timeout (" in text:
        return "timeout"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "ended: " + next(
        (n for n in reversed(lines) if "Error" in n), lines[-1] if lines else ""
    )


def counted(file: str, method: str) -> bool:
    """False for a method that needs what a CPU has not."""
    parts = method.split(".")
    return not any(key in NEEDS for key in (file, *(f"{file}::{part}" for part in parts)))


def table(results: dict[str, dict[str, Any]], by: str) -> str:
    """The shares by folder, or by file where not all pass."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for file, methods in results.items():
        key = file.partition("/")[0] if by == "folder" else file
        for name, (kind, _) in methods.items():
            rows[key][kind if counted(file, name) else "without"] += 1
    lines = []
    total: Counter[str] = Counter()
    for key, count in sorted(rows.items()):
        total += count
        all_of = count["pass"] + count["fail"]
        if by == "folder" or count["fail"]:
            lines.append(f"{key:60} {count['pass']:5d} of {all_of:5d}")
    all_of = total["pass"] + total["fail"]
    share = f"{100 * total['pass'] / max(all_of, 1):.1f} %"
    rest = ", ".join(f"{total[kind]} {kind}" for kind in ("skip", "words", "without"))
    lines.append(f"{'all':60} {total['pass']:5d} of {all_of:5d}  {share}; {rest}")
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for; print shares, and what failures say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("files", nargs="*", help="files or folders below `test`")
    parser.add_argument("-n", "--ranks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="the most that a method may take")
    parser.add_argument("--limit", type=float, default=1e9, help="the most that all may take")
    parser.add_argument("--only", choices=["several"], help="files that speak of several ranks")
    parser.add_argument("--results", type=Path, help="a file that keeps results; files in it stay")
    parser.add_argument("--again", action="store_true", help="run files again that have failures")
    parser.add_argument("--table", action="store_true", help="print the results alone")
    parser.add_argument("--show", action="store_true", help="print what the files print")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--known", help=argparse.SUPPRESS)
    asked = parser.parse_intermixed_args()
    root = asked.root.resolve()
    if asked.inside:
        known = Path(asked.known).read_text().splitlines()
        _inside(root, Path(asked.files[0]), known, asked.inside, asked.seconds)
        return 0
    begin = time.monotonic()
    places: list[Path] = []
    for name in asked.files or ["."]:
        at = root / "test" / name
        places += [at] if at.is_file() else sorted(at.rglob("test_*.py"))
    results: dict[str, dict[str, Any]] = {}
    if asked.results and asked.results.exists():
        results = json.loads(asked.results.read_text())
    for place in [] if asked.table else places:
        file = place.relative_to(root / "test").as_posix()
        text = place.read_text()
        if asked.only and not re.search(rf"skip_unless_1n{asked.ranks}d", text):
            continue
        if file in results and not asked.files:
            failed = any(kind == "fail" for kind, _ in results[file].values())
            if not (asked.again and failed):
                continue
        if time.monotonic() - begin > asked.limit:
            print("stopped at the limit")
            break
        results[file] = outcomes(root, place, asked.ranks, asked.seconds, asked.show)
        count = Counter(kind for kind, _ in results[file].values())
        print(f"{time.monotonic() - begin:6.0f} s  {file:60} {dict(count)}", flush=True)
        if asked.results:
            asked.results.write_text(json.dumps(results, indent=1))
    print(table(results, "file"))
    print(table(results, "folder"))
    said: Counter[str] = Counter()
    for methods in results.values():
        for kind, text in methods.values():
            if kind == "fail":
                said[re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:160]] += 1
    for text, times in said.most_common(60):
        print(f"{times:5d}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
