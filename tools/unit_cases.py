"""Runs other projects' unit tests in processes of their own, and counts what passes.

A process appends a row to a log for each method it starts and ends, so that one that ends or hangs
costs a method.  All start anew behind it.  The outcomes are "pass", "fail", "skip", "words" (the
error came as it should and has other words) and "without" (the test needs an
inner part of the other project).
"""

from __future__ import annotations

import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.patience import patience

HERE = Path(__file__).resolve().parent.parent
Outcomes = dict[str, tuple[str, str]]


class InnerPartError(Exception):
    """The error of a test that uses an inner part of the other project."""


# --- inside a process -----------------------------------------------------------------------------


def cases(suite: Any) -> Iterator[unittest.TestCase]:
    """The methods of a suite."""
    for case in suite:
        if isinstance(case, unittest.TestSuite):
            yield from cases(case)
        else:
            yield case


def outcome(error: Any) -> tuple[str, str]:
    """Return an error's kind, "words" if it asserts an error's words, else "fail", and text."""
    kind, value, trace = error
    text = f"{kind.__name__}: {' '.join(str(value).split())[:300]}"
    if kind is InnerPartError or re.search(r"flowvm\S* has no \S*\b'?_|attribute '_", text):
        return "without", text
    if kind is AssertionError:
        if re.match(r'^".*" does not match ".*"$', str(value), re.DOTALL):
            return "words", text
        for frame in traceback.extract_tb(trace):
            first, last = frame.lineno or 0, frame.end_lineno or 0
            lines = (linecache.getline(frame.filename, k) for k in range(first, last + 1))
            if re.search(r"in str\(", " ".join(lines)):
                return "words", text
    return "fail", text


class Result(unittest.TestResult):
    """The outcome of one method."""

    outcome = ("pass", "")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.outcome = outcome(err)

    addFailure = addError  # noqa: N815

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.outcome = ("skip", reason)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.outcome = outcome(err)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcome = ("pass", "")


def run(
    load: Callable[[], Any], known: list[str], out: str, seconds: float, rank: int | None = None
) -> None:
    """Load a module and run its methods but those `known`; of several ranks, to the first failure.

    Each method has `seconds`; `out` is the log.
    """
    with open(f"{out}.{rank or 0}", "a", buffering=1) as log:

        def note(*row: str) -> None:
            log.write(json.dumps(row) + "\n")

        try:
            with patience(seconds):
                module = load()
        except unittest.SkipTest as error:
            note("whole file", "skip", str(error))
            return
        except BaseException as error:
            traceback.print_exc()
            note("whole file", *outcome(sys.exc_info()))
            raise SystemExit(1) from error
        for case in cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
            name = case.id().partition(".")[2]
            if name in known:
                continue
            note(name, "start", "")
            result = Result()
            with patience(seconds):
                case.run(result)
            note(name, *result.outcome)
            for _, text in (*result.errors, *result.failures):
                print(name, text, file=sys.stderr)
            if rank is not None and result.outcome[0] in ("fail", "words"):
                os._exit(1)
        note("all", "done", "")


# --- all files ------------------------------------------------------------------------------------


def outcomes(command: list[str], ranks: int, seconds: float, show: bool) -> Outcomes:
    """Run a file's methods by `command`; the outcome of each, and what was said."""
    known: Outcomes = {}
    for _ in range(60):
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/log"
            known_file = Path(folder) / "known"
            known_file.write_text("\n".join(known))
            launch = ["flowvm", "launch", "-n", str(ranks), "-m"] if ranks > 1 else []
            whole = [sys.executable, "-m", *launch, *command, "--inside", out]
            whole += ["--known", str(known_file), "--seconds", str(seconds)]
            env = {**os.environ, "PYTHONPATH": str(HERE), "ONEFLOW_TEST_DATASET_DIR": folder}
            process = subprocess.run(whole, cwd=folder, env=env, capture_output=True, text=True)
            if show:
                print(process.stdout, process.stderr)
            rows: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
            for rank in range(ranks):
                path = Path(f"{out}.{rank}")
                for line in path.read_text().splitlines() if path.exists() else ():
                    name, kind, text = json.loads(line)
                    rows[name][rank] = (kind, text)
        over = len(rows.pop("all", {})) == ranks
        before = len(known)
        for name, results in rows.items():
            kinds = {kind for kind, _ in results.values()}
            if kinds & {"fail", "words"}:
                known[name] = min(s for s in results.values() if s[0] in ("fail", "words"))
            elif kinds == {"start"} or (not over and "start" in kinds):
                known[name] = ("fail", _end(process.stderr))
            elif len(results) == ranks and len(kinds) == 1:
                known[name] = next(iter(results.values()))
        if over or "whole file" in known:
            return known
        if len(known) == before:
            known["whole file"] = ("fail", _end(process.stderr))
            return known
    return known | {"whole file": ("fail", "too many starts")}


def _end(text: str) -> str:
    if "no end within" in text:
        return "timeout"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "ended: " + next(
        (n for n in reversed(lines) if "Error" in n), lines[-1] if lines else ""
    )


def share(count: Counter[str]) -> str:
    """The share of passes, and what is counted apart."""
    all_of = count["pass"] + count["fail"]
    rest = ", ".join(f"{count[kind]} {kind}" for kind in ("skip", "words", "without", "more"))
    percent = 100 * count["pass"] / max(all_of, 1)
    return f"{count['pass']:5d} of {all_of:5d}  {percent:.1f} %; {rest}"


def causes(results: dict[str, Outcomes], most: int = 60) -> list[str]:
    """Return the messages of failures without numbers, the most frequent first."""
    counts: Counter[str] = Counter()
    for methods in results.values():
        for kind, text in methods.values():
            if kind == "fail":
                counts[re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:160]] += 1
    return [f"{times:5d}  {text}" for text, times in counts.most_common(most)]
