"""A training step on 8 to 4,096 ranks, predicted from one replay on one rank.

    python -m tools.scale
    python -m tools.scale --model mlp --width 512 --ranks 8,64 --strong
    python -m tools.scale --mix tensor=8,stages=4,micro=16,zero=1 --latency-us 2 --bandwidth-gbs 25
    python -m tools.scale --model mypackage.train:step    # gives (nn.Graph, *inputs)
    python -m tools.scale --real 2,4                      # launches ranks here, and compares

The step is captured, its Plan replayed and recorded; the actors of the ranks are then played in
simulated time.  docs/reference/scale.md says what is assumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import flowvm as flow
from flowvm.errors import ArgumentError, CaptureError, CommunicationError
from flowvm.graph.logical.printer import size_text
from flowvm.graph.passes.buckets import BUCKET
from tools.scale.links import ALGORITHMS, BANDWIDTH_GBS, LATENCY_US, Link, Network
from tools.scale.memory import Held, held
from tools.scale.models import MODELS, program
from tools.scale.ranks import Mix, Prediction, predict
from tools.scale.real import Compared, compare
from tools.scale.recording import Work, record

RANKS = (8, 64, 512, 4096)
MOST = 8  # tensor-parallel ranks and stages of the mixes that are shown unasked
FIELDS = ("data", "tensor", "stages", "zero", "micro")
HEAD = ("ranks", "mix", "step ms", "compute", "exchange", "idle", "efficiency", "a rank holds",
        "parameters", "gradients", "states", "activations", "buckets")  # fmt: skip


def mixes(ranks: int, forward: int, weak: bool) -> list[Mix]:
    """Return the mixes of `ranks` ranks that are worth a look; `forward` tasks can make stages."""
    few = next(k for k in range(min(MOST, ranks), 0, -1) if ranks % k == 0)
    staged = next(k for k in range(min(few, forward), 0, -1) if ranks % k == 0)
    both = next(k for k in range(min(staged, ranks // few), 0, -1) if ranks // few % k == 0)
    mixes_of_ranks = [Mix(ranks, zero=zero, weak=weak) for zero in range(4)]
    mixes_of_ranks.append(Mix(ranks // few, tensor=few, weak=weak))
    mixes_of_ranks.append(Mix(ranks // staged, stages=staged, micro=4 * staged if staged > 1 else 1,
                     weak=weak))  # fmt: skip
    data = ranks // few // both
    micro = 4 * both if both > 1 else 1
    mixes_of_ranks.append(Mix(data, few, both, int(data > 1), micro, weak))
    return list(dict.fromkeys(mixes_of_ranks))


def mix_of(text: str, ranks: int, weak: bool) -> Mix:
    """Return the mix of `data=2,tensor=4`; data-parallel ranks are the rest of `ranks`."""
    sizes: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name not in FIELDS or not value.isdecimal() or name in sizes:
            raise ArgumentError(f"--mix is {', '.join(f'{f}=N' for f in FIELDS)}, got {text!r}")
        sizes[name] = int(value)
    zero, micro = sizes.get("zero", 0), sizes.get("micro", 1)
    mix = Mix(
        sizes.get("data", 1), sizes.get("tensor", 1), sizes.get("stages", 1), zero, micro, weak
    )
    if "data" not in sizes:
        others = mix.tensor * mix.stages
        if ranks % others:
            raise ArgumentError(f"--mix {text}: {ranks} ranks are not a multiple of {others}")
        mix = replace(mix, data=ranks // others)
    return mix


def row(prediction: Prediction, memory: Sequence[Held]) -> list[str]:
    """A line of the table; memory of the stage that holds most."""
    p, most = prediction, max(memory, key=lambda h: h.total)
    sizes = (most.total, most.parameters, most.gradients, most.states, most.activations,
             most.buckets)  # fmt: skip
    return [
        f"{p.mix.ranks:,}", str(p.mix), f"{1e3 * p.seconds:.3f}", f"{1e3 * p.compute:.3f}",
        f"{1e3 * p.exchange:.3f}", f"{100 * p.idle:.0f} %", f"{100 * p.efficiency:.0f} %",
        *map(size_text, sizes),
    ]  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines in columns: the mix to the left, all else to the right."""
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    lines = []
    for cells in rows:
        shown = [
            cell.ljust(width) if k == 1 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)


def simulated(args: argparse.Namespace) -> int:
    """Record, play, print."""
    inside = Link(1e-6 * args.latency_us, 1e9 * args.bandwidth_gbs)
    network = Network(inside, inside, 0, args.algorithm)
    if args.host_ranks:
        host = Link(1e-6 * args.host_latency_us, 1e9 * args.host_bandwidth_gbs)
        network = Network(inside, host, args.host_ranks, args.algorithm)
    weak, bucket = not args.strong, round(args.bucket_mb * (1 << 20))
    mixes_to_run = [mix_of(text, ranks, weak) for text in args.mix for ranks in args.ranks]
    graph, inputs = program(args.model, args.width, args.layers, args.batch)
    work = record(graph, *inputs, launches=args.launches)
    forward = sum(task.phase == "forward" for task in work.tasks)
    if not mixes_to_run:
        mixes_to_run = [mix for ranks in args.ranks for mix in mixes(ranks, forward, weak)]
    mixes_to_run = list(dict.fromkeys([Mix(weak=weak), *mixes_to_run]))
    rows = [
        (predict(work, m, network, bucket, 1e-6 * args.handover_us), held(work, m, bucket))
        for m in mixes_to_run
    ]
    if args.json:
        print(json.dumps({
            "plan": work.name, "tasks": len(work.tasks), "seconds": work.seconds,
            "rest": work.rest, "network": asdict(network), "bucket": bucket,
            "mixes": [{**asdict(p), "ranks": p.mix.ranks, "memory": [asdict(h) for h in memory]}
                      for p, memory in rows],
        }, indent=1))  # fmt: skip
        return 0
    print(said_of(work, network, weak))
    print(table([HEAD, *(row(p, memory) for p, memory in rows)]))
    return 0


def said_of(work: Work, network: Network, weak: bool) -> str:
    """Return a description of the table's data."""
    batch = "each data-parallel rank has the recorded batch" if weak else "the batch is cut"
    links = _link(network.between)
    if network.host_ranks:
        links += f" between hosts, {_link(network.inside)} among {network.host_ranks} of a host"
    return (
        f"{work.name}: {len(work.tasks)} tasks, {1e3 * work.seconds:.3f} ms on one rank, of which "
        f"{1e3 * work.rest:.3f} between tasks; {batch}\n{links}; {network.algorithm} algorithm"
    )


def _link(link: Link) -> str:
    return f"{1e6 * link.latency:.3g} us, {link.bandwidth / 1e9:.3g} GB/s"


def real(args: argparse.Namespace) -> int:
    """Launch ranks here, and compare."""
    comparisons: list[tuple[int, Compared]] = [
        (n, compare(args.model, args.width, args.layers, args.batch, n, args.launches))
        for n in args.real
    ]
    if args.json:
        listed = [
            {"ranks": n, "measured": c.measured, "predicted": c.predicted.seconds,
             "alone": c.work.seconds, "link": asdict(c.link), "handover": c.handover}
            for n, c in comparisons
        ]  # fmt: skip
        print(json.dumps(listed, indent=1))
        return 0
    rows = []
    for n, c in comparisons:
        times = (c.work.seconds, c.predicted.seconds, c.measured)
        link = f"{_link(c.link)}, {1e6 * c.handover:.3g} us"
        ratio = f"{c.predicted.seconds / c.measured:.2f}x"
        rows.append([str(n), "data parallel", *(f"{1e3 * t:.3f}" for t in times), ratio, link])
    head = ["ranks", "mix", "alone ms", "predicted", "measured", "ratio", "link, hand-over"]
    print(table([head, *rows]))
    return 0


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"numbers above 0 with commas between them, got {text!r}")
    return [int(word) for word in words]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        "python -m tools.scale", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = arguments.add_argument
    add("--model", default=MODELS[0], help=f"{', '.join(MODELS)}, or module:function")
    add("--width", type=int, default=128, help="of the model's layers (default: 128)")
    add("--layers", type=int, default=4, help="layers of the model (default: 4)")
    add("--batch", type=int, default=8, help="sequences, or rows (default: 8)")
    add("--launches", type=int, default=20, help="replays; the median counts (default: 20)")
    add("--ranks", type=_numbers, default=list(RANKS), help="default: 8,64,512,4096")
    add("--mix", action="append", default=[], metavar="data=N,tensor=N,stages=N,zero=N,micro=N",
        help="instead of the usual ones; may be given again")  # fmt: skip
    add("--strong", action="store_true", help="the recorded batch is cut among data ranks")
    add("--latency-us", type=float, default=LATENCY_US, help=f"of a message: {LATENCY_US}, as "
        "measured on one host (docs/reference/scale.md)")  # fmt: skip
    add("--bandwidth-gbs", type=float, default=BANDWIDTH_GBS, help=f"GB/s of a rank: "
        f"{BANDWIDTH_GBS}, as measured on one host")  # fmt: skip
    add("--host-ranks", type=int, default=0, help="ranks of a host, which are linked by:")
    add("--host-latency-us", type=float, default=LATENCY_US)
    add("--host-bandwidth-gbs", type=float, default=BANDWIDTH_GBS)
    add("--algorithm", choices=ALGORITHMS, default="best", help="of collectives")
    add("--bucket-mb", type=float, default=BUCKET / (1 << 20), help="MiB of gradients that are "
        "summed together (default: the pass's)")  # fmt: skip
    add("--handover-us", type=float, default=0.0, help="in which a worker that sleeps wakes "
        "(default: 0; --real measures it)")  # fmt: skip
    add("--real", type=_numbers, default=None, metavar="2,4", help="launch so many ranks here, and "
        "compare with what is predicted of them")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 2 for bad arguments, 1 if ranks failed."""
    args: Any = parser().parse_args(argv)
    try:
        for name in ("width", "layers", "batch", "launches"):
            if getattr(args, name) < 1:
                raise ArgumentError(f"--{name} is 1 or more, got {getattr(args, name)}")
        flow.set_num_threads(1)
        return real(args) if args.real else simulated(args)
    except ArgumentError as error:
        print(f"python -m tools.scale: {error}", file=sys.stderr)
        return 2
    except (CaptureError, CommunicationError) as error:
        print(f"python -m tools.scale: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
