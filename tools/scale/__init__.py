"""A recorded training step on many ranks, played: `python -m tools.scale` (`__main__`).

    recording   a Plan with the times of one of its replays: a `Work`
    splitting   which stage a task belongs to, and what tensor parallelism cuts
    links       what an exchange costs
    playing     actors in simulated time, by the rules of `flowvm.vm.workers.actors`
    ranks       the actors of a rank of each stage, and what they give: a step's time
    memory      what a rank holds
    real        the same step on real ranks, to compare with

Nothing here runs on a rank but `real`.
"""
