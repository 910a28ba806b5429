"""Runs a campaign: batches of cases in processes of their own, so that a crash is a finding too.

A campaign is a module beside this one with

    case(seed)         the case of a seed, plain data (JSON)
    kind(case)         a word or two for the table of outcomes
    check(case)        runs it: the outcome in a word; whatever it raises is a finding
    parts(case)        what shrinking may leave out, one after the other
    without(case, k)   the case without part k
    AMOUNTS            (if it has one) a Counter that `check` adds to: instructions, interrupts, ...
    BATCH              (if it has one) cases a process, 200 else
    PATIENCE           (if it has one) seconds that a case may take, 180 else

A process prints each case's seed before it, so whoever dies or hangs has said of what.  A finding
is shrunk, each try in a process of its own, and written down as a test.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tools.patience import patience

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "build" / "campaign"
CAMPAIGNS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
BATCH = 200
PATIENCE = 180  # seconds for one case, which takes a few where nothing else runs
TRIES = 60  # of shrinking
LOG = 20_000  # characters that are shown of what a process that died had said: all threads' stacks


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign")
    parser.add_argument("name", choices=[*CAMPAIGNS, "all"])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="check this one case")
    parser.add_argument("--first", type=int, help="the seed to begin with; a random one else")
    parser.add_argument(
        "--once-more",
        action="store_true",
        help="run what fails once more alone; what passes then is named FLAKY, and is no finding",
    )
    parser.add_argument("--batch", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        return batch(options.name, *options.batch)
    if options.case:
        check_one(options.name, json.loads(Path(options.case).read_text()))
    if options.seed is not None:
        check_one(options.name, campaign(options.name).case(options.seed))
    names = CAMPAIGNS if options.name == "all" else [options.name]
    seconds, first, again = options.minutes * 60, options.first, options.once_more
    return max([run(name, seconds, first, again) for name in names])


def campaign(name: str) -> Any:
    """The module of a campaign."""
    return importlib.import_module(f"tools.campaign.{name}")


# --- in a process of its own ----------------------------------------------------------------------


def batch(name: str, first: int, count: int) -> int:
    """Check cases one after the other: a line in front of each and one behind."""
    faulthandler.enable()  # a crash leaves its stacks in the log
    module = campaign(name)
    for seed in range(first, first + count):
        case = module.case(seed)
        print(f"case {seed} {module.kind(case)}", flush=True)
        print("done " + json.dumps(checked(module, case)), flush=True)
    return 0


def checked(module: Any, case: Any) -> dict[str, Any]:
    """Run one case; return {"outcome": ..., "problem": ..., "amounts": {...}}."""
    amounts = getattr(module, "AMOUNTS", Counter())
    amounts.clear()
    outcome, problem = "failed", ""
    try:
        with patience(getattr(module, "PATIENCE", PATIENCE)):
            outcome = module.check(case)
    except BaseException:
        problem = traceback.format_exc()
    return {"outcome": outcome, "problem": problem, "amounts": dict(amounts)}


def check_one(name: str, case: Any) -> NoReturn:
    """Check one case, print its problem, and end the process."""
    outcome = checked(campaign(name), case)
    print(outcome["problem"] or outcome["outcome"], flush=True)
    os._exit(1 if outcome["problem"] else 0)  # errors that a case has left unread are its own


# --- the process that watches ---------------------------------------------------------------------


def run(name: str, seconds: float, first: int | None = None, once_more: bool = False) -> int:
    """Run batches until the time is up.  Return 1 if anything was found."""
    until = time.monotonic() + seconds
    seed = random.SystemRandom().randrange(1 << 30) if first is None else first
    outcomes: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    findings: list[int] = []

    def report(seed: int, problem: str) -> None:
        if once_more and not _fails(name, campaign(name).case(seed)):
            print(f"FLAKY campaign {name} --seed {seed}\n{problem}", flush=True)
        else:
            _report(name, seed, problem, findings)

    print(f"campaign {name}: seeds from {seed}", flush=True)
    while time.monotonic() < until and len(findings) < 20:
        seed = _watched(name, seed, until, outcomes, amounts, report)
    total = sum(outcomes.values())
    print(f"{total} cases: " + ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items())))
    if amounts:
        print(", ".join(f"{n:,} {what}" for what, n in sorted(amounts.items())))
    print(f"{len(findings)} findings" + "".join(f"\n  --seed {seed}" for seed in findings))
    return 1 if findings else 0


def _watched(
    name: str,
    first: int,
    until: float,
    outcomes: Counter[str],
    amounts: Counter[str],
    report: Callable[[int, str], None],
) -> int:
    """Watch one process; the seed to go on with."""
    count = getattr(campaign(name), "BATCH", BATCH)
    command = [sys.executable, "-m", "tools.campaign", name, "--batch", str(first), str(count)]
    log = FOUND / f"{name}-{os.getpid()}.log"
    FOUND.mkdir(parents=True, exist_ok=True)
    at, kind, over = first, "", True
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as own,
    ):
        assert own.stdout is not None
        for line in own.stdout:
            word, _, rest = line.partition(" ")
            if word == "case":
                seed, _, kind = rest.strip().partition(" ")
                at, over = int(seed), False
            elif word == "done":
                outcome, over = json.loads(rest), True
                outcomes[f"{kind} {outcome['outcome']}"] += 1
                amounts.update(outcome["amounts"])
                if outcome["problem"]:
                    report(at, outcome["problem"])
                at += 1
            if time.monotonic() > until:
                own.kill()
                return at
        code = own.wait()
    if code and not over:
        outcomes[f"{kind} crashed"] += 1
        text = log.read_text(errors="replace")[-LOG:]
        report(at, f"the process ended with {code}\n{text}")
        return at + 1
    if code < 0:  # and not 1, which errors make it that cases have left unread
        outcomes["crashed behind the cases"] += 1
        text = log.read_text(errors="replace")[-LOG:]
        report(at - 1, f"the process ended with {code}, behind its last case\n{text}")
    return at


def _report(name: str, seed: int, problem: str, findings: list[int]) -> None:
    findings.append(seed)
    print(f"\n--- seed {seed}\n{problem}", flush=True)
    case = campaign(name).case(seed)
    if _fails(name, case):
        case = shrunk(name, case)
    else:
        print("it does not fail alone, and so is not shrunk", flush=True)
    path = FOUND / f"test_{name}_{seed}.py"
    path.write_text(
        f'"""Found by `python -m tools.campaign {name} --seed {seed}`."""\n\n'
        f"from tools.campaign import {name}\n\n\n"
        f"def test_{name}_{seed}():\n    {name}.check({case!r})\n"
    )
    print(f"the case is {json.dumps(case)[:1000]}\nwritten to {path}", flush=True)


def shrunk(name: str, case: Any) -> Any:
    """The case without the parts that it fails without, too."""
    module, tries = campaign(name), 0
    k = 0
    while k < len(module.parts(case)) and tries < TRIES:
        fewer = module.without(case, k)
        tries += 1
        if _fails(name, fewer):
            case = fewer
        else:
            k += 1
    return case


def _fails(name: str, case: Any) -> bool:
    path = FOUND / f"try-{name}-{os.getpid()}.json"
    path.write_text(json.dumps(case))
    command = [sys.executable, "-m", "tools.campaign", name, "--case", str(path)]
    patience = getattr(campaign(name), "PATIENCE", PATIENCE)  # the process ends itself then
    process = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=2 * patience)
    return process.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
