"""A memory soak on a device: training with shapes that change, copies both ways, dropped graphs.

After it, nothing is allocated that was not before, and what is reserved stays bounded.  Prints how
much work it was.
"""

from __future__ import annotations

import gc
import sys
import time

import flowvm as flow
from flowvm.nn import functional as F
from flowvm.vm.engine.engine import engine

SECONDS = 20.0
SLACK = 64 << 20  # bytes of what is held more: how far the host is ahead differs


def work(rng_seed: int) -> float:
    """Some steps of training on one shape, eager and replayed; the last loss."""
    size = 16 + rng_seed % 7 * 8
    flow.manual_seed(rng_seed)
    model = flow.nn.Sequential(flow.nn.Linear(size, 64), flow.nn.GELU(), flow.nn.Linear(64, 10)).to(
        "cuda"
    )
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-3)
    x = flow.randn(32, size).to("cuda")
    y = flow.randint(0, 10, (32,)).to("cuda")
    replayed = flow.compile(lambda t: model(t).softmax(1).max(1).values)
    loss = F.cross_entropy(model(x), y)
    for _ in range(4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replayed(x).cpu()
    return float(loss.item())


def settled() -> int:
    """Bytes allocated when all that was issued is over."""
    gc.collect()
    engine.storages.release_dead()
    flow.vm.sync()
    return int(flow.cuda.memory_allocated())


def main() -> int:
    """Work for SECONDS (or as many as are given); return exit code 1 if memory was lost."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    for seed in range(7):
        work(seed)
    before, held = settled(), flow.cuda.memory_reserved()
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        work(rounds)
        rounds += 1
    after = settled()
    reserved = flow.cuda.memory_reserved()
    print(
        f"{rounds} rounds; {before} bytes before, {after} after; {held >> 20} MiB reserved before, "
        f"{reserved >> 20} MiB after"
    )
    return int(after > before + (1 << 20) or reserved > held + SLACK)


if __name__ == "__main__":
    raise SystemExit(main())
