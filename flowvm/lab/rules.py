"""From a policy of the lab to a rule of the VM's scheduler: see `flow.vm.schedule`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowvm.errors import ArgumentError, PolicyWarning
from flowvm.lab import loops
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Machine
from flowvm.lab.native_policy import compiled
from flowvm.lab.policies import Policy, adversarial, fifo, lifo, pct, policy_of, random
from flowvm.lab.simulation import Schedule
from flowvm.meta.arrays import Array
from flowvm.vm.callers.lines import warn
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.scheduling import Rule, lanes_of
from flowvm.vm.machine.words import POL

MANY = 1 << 16  # instructions that have a key of their own, where nobody says how many come
STEPS = 1 << 10  # the same of PCT's moments


def rule_of(policy: object, seed: int | None, like: object, streams: Sequence[int]) -> Rule:
    """The rule of a policy.  ArgumentError: there is none of that name, it takes no seed, or it
    wants the graph (`like`).
    """
    if seed is not None and isinstance(policy, str):
        policy = f"{policy}:{seed}"
    rule = policy_of(policy)
    if seed is not None and hasattr(rule, "seed"):
        rule.seed = seed
    elif seed is not None:
        raise ArgumentError(f"schedule: policy {rule.name} takes no seed")
    machine = Machine(max(1, len(streams)))
    dag = like if like is None or isinstance(like, Dag) else Dag.of(like)
    if rule.stepped:
        machine = Machine(len(lanes_of(engine, streams)))
        rule.begin(dag if dag is not None else Dag([]), machine)
        native = compiled(rule, MANY)
        if not native.why:
            state = (native.address, native.state)
            return Rule(rule.name, POL.ASKED, policy=(rule, native), native=state)
        if rule.is_compiled:
            warn(f"policy {rule.name} is asked in Python, 100 us an instruction: {native.why}",
                 PolicyWarning)  # fmt: skip
        return Rule(rule.name, POL.ASKED, policy=rule, why=native.why)
    if isinstance(rule, (fifo, lifo)):
        mode = POL.ARRIVAL if rule.mode == loops.ARRIVAL else POL.LATEST
        return Rule(rule.name, mode)
    if dag is None and isinstance(rule, (adversarial, pct, random)):
        return Rule(rule.name, POL.KEYED, _table(_keys_of_many(rule)), wraps=True)
    if dag is None:
        raise ArgumentError(
            f"schedule: policy {rule.name} looks at the whole graph: give it like=, a profile of "
            "the same work, or its Dag"
        )
    assignment = rule.plan(dag, machine)
    if assignment is not None:
        order = Schedule(dag, machine, *assignment).order
        place = np.empty(len(dag))
        place[order] = np.arange(len(dag))
        bound = np.array(streams, np.int64)[assignment.worker] if streams else None
        return Rule(rule.name, POL.KEYED, _table(place, bound))
    key = rule.key(dag, machine)
    if key is None:
        raise ArgumentError(f"policy {rule.name} has neither key, nor plan, nor ready and pick")
    return Rule(rule.name, POL.KEYED, _table(key))


def _keys_of_many(policy: Policy) -> Array:
    """Keys where the graph is not known: random ones, PCT's with each instruction a chain of its
    own; of the adversary what was issued last goes first.
    """
    if isinstance(policy, adversarial):
        return -np.arange(MANY, dtype=np.float64)
    if isinstance(policy, pct):
        keys = np.random.default_rng(policy.seed).permutation(STEPS).astype(np.float64)
        changed = np.random.default_rng([policy.seed, 1]).permutation(STEPS)[: policy.k - 1]
        keys[changed] = STEPS + np.arange(len(changed))
        return keys
    return np.random.default_rng(getattr(policy, "seed", 0)).random(MANY)


def _table(keys: Array, bound: Array | None = None) -> Array:
    """Keys as whole numbers in their order, and streams."""
    rank = np.empty(len(keys), np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    return np.column_stack((rank, np.full(len(keys), -1, np.int64) if bound is None else bound))
