"""The tables of `docs/reference/programs.md`: what programs do under flowvm, from recorded runs.

    python -m tools.programs                                  write the tables
    python -m tools.programs --check                          say if they are not what is recorded
    python -m tools.programs --run tutorials/models/ppo.py    run models, and record what they say
    python -m tools.programs --suite functorch r.json         record the results of another tool

`tools/programs.json` has the records.  Each has a kind, how many of how many agree with PyTorch,
and what was run; models also have the milliseconds of a step, the lowest of each way, and the load
of the machine.  A model agrees if it ends well: its losses are PyTorch's, and it does what it says.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tools" / "programs.json"
PAGE = ROOT / "docs" / "reference" / "programs.md"
# the kinds of the scripts in tutorials/models
KINDS = {
    "bert_tiny": "language", "citations": "graphs", "dcgan": "generative",
    "diffusion": "generative", "dqn": "reinforcement learning", "gpt": "language",
    "graph_attention": "graphs", "lbfgs_sine": "numbers", "lstm_language_model": "language",
    "mamba": "language", "mlp": "numbers", "ppo": "reinforcement learning",
    "private": "privacy", "resnet18": "vision", "speculative": "language", "unet": "vision",
    "vae": "generative", "vit": "vision",
}  # fmt: skip
Record = dict[str, Any]


def shares(records: list[Record]) -> list[str]:
    """The share of each kind that agrees, of those that were counted."""
    agree: Counter[str] = Counter()
    of: Counter[str] = Counter()
    for record in records:
        if record["of"]:
            agree[record["kind"]] += record["agree"]
            of[record["kind"]] += record["of"]
    lines = ["| kind | agree | of | share |", "| --- | --- | --- | --- |"]
    for kind in sorted(of):
        share = f"{100 * agree[kind] / of[kind]:.1f} %"
        lines.append(f"| {kind} | {agree[kind]:,} | {of[kind]:,} | {share} |")
    return lines


def programs(records: list[Record]) -> list[str]:
    """The tests that ran, and their outcomes."""
    lines = ["| kind | what | run | outcome |", "| --- | --- | --- | --- |"]
    for r in records:
        if "ms" not in r:
            lines.append(f"| {r['kind']} | {r['what']} | {r['run']} | {r['outcome']} |")
    return lines


def models(records: list[Record]) -> list[str]:
    """The models of our own, and their times beside PyTorch's."""
    lines = ["| model | kind | eager | graph | PyTorch | date, load |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for r in records:
        for i, times in enumerate(r.get("ms", ())):
            name = f"`{r['what']}`" + (f", part {i + 1}" if len(r["ms"]) > 1 else "")
            shown = " | ".join(f"{t:.2f}" for t in times)
            lines.append(f"| {name} | {r['kind']} | {shown} | {r['date']}, {r['load']:.0f} |")
    return lines


TABLES = {"shares": shares, "programs": programs, "models": models}


def page(text: str, records: list[Record]) -> str:
    """Return the page with the tables of these records between their marks."""
    for name, table in TABLES.items():
        first, last = f"<!-- {name}: made by tools.programs -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(first)
        _, _, after = rest.partition(last)
        if not rest or not after:
            raise SystemExit(f"{PAGE.name} has no marks of the table {name}")
        text = before + first + "\n".join(["", *table(records), "", ""]) + last + after
    return text


def run(script: Path) -> Record:
    """Run a model's script on one thread; the record of it."""
    name = script.stem
    if name not in KINDS:
        raise SystemExit(f"{script} is none of {', '.join(KINDS)}: give it a kind")
    load = os.getloadavg()[0]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FLOWVM_WORKERS": "1", "MPLBACKEND": "agg"}
    process = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    rows = re.findall(r"^ +ms +([\d.]+) +([\d.]+) +([\d.]+)$", process.stdout, re.M)
    lines = process.stdout.strip().splitlines() or [process.stderr.strip()[-200:]]
    doc = ast.get_docstring(ast.parse(script.read_text())) or ""
    return {
        "kind": KINDS[name],
        "what": name,
        "run": f"`python {script.resolve().relative_to(ROOT)}`",
        "agree": int(process.returncode == 0 and bool(rows)),
        "of": 1,
        "outcome": lines[-1] if process.returncode else doc.splitlines()[0],
        "ms": [[float(t) for t in row] for row in rows],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": load,
    }


def suite(name: str, results: Path) -> Record:
    """Return the record of another project's tests, from the results of the tool that ran them."""
    count: Counter[str] = Counter()
    for methods in json.loads(results.read_text()).values():
        count += Counter(kind for kind, _ in methods.values())
    rest = {
        "words": "have other words in an error", "more": "want an error where there is a result",
        "without": "need inner parts of PyTorch or what is not here", "skip": "skip themselves",
    }  # fmt: skip
    apart = ", ".join(f"{count[kind]} {text}" for kind, text in rest.items() if count[kind])
    return {
        "kind": "tests",
        "what": f"the tests of {name}",
        "run": f"`python -m tools.{name}_tests`",
        "agree": count["pass"],
        "of": count["pass"] + count["fail"],
        "outcome": f"{count['pass']} pass, {count['fail']} fail; apart: {apart}",
    }


def replaced(records: list[Record], record: Record) -> list[Record]:
    """Return the records with this one in the place of what was of its name."""
    at = next((i for i, r in enumerate(records) if r["what"] == record["what"]), len(records))
    return [*records[:at], record, *records[at + 1 :]]


def main() -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--run", nargs="+", type=Path, default=[], help="scripts of models")
    parser.add_argument("--suite", nargs=2, metavar=("NAME", "RESULTS"), help="results of a tool")
    options = parser.parse_args()
    records: list[Record] = json.loads(RECORDS.read_text())
    for script in options.run:
        record = run(script)
        print(f"{record['what']}: {'agrees' if record['agree'] else record['outcome']}", flush=True)
        records = replaced(records, record)
        RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    if options.suite:
        records = replaced(records, suite(options.suite[0], Path(options.suite[1])))
    text = PAGE.read_text()
    whole = page(text, records)
    if options.check:
        if whole != text:
            print(f"{PAGE.name} is not what is recorded: python -m tools.programs")
        return int(whole != text)
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    PAGE.write_text(whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
