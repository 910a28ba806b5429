"""Profiles against the truth: random programs keep their own accounts of what each step reads and
writes, and the profile, its columns and its trace are held against those.

The accounts know nothing of flowvm's edges: they follow from the names of tensors alone.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler.export import trace_rules

STEPS, PROGRAMS, WIDTH = 40, 4, 16
# a step: op, operands read, operands written, by the names of memories
STEP_OPS = ("matmul", "add", "tanh", "add_", "mul_", "view", "masked_select", "forget")


class Program:
    """Random tensors on random streams, with the same in NumPy and an account of each step."""

    def __init__(self, rng, streams):
        self.rng, self.streams = rng, streams
        self.tensors, self.values, self.memory = {}, {}, {}
        self.steps: list[tuple[str, set[str], set[str]]] = []
        self.outputs = []
        self.numbers = itertools.count()
        for _ in range(4):
            value = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH
            self.add(flow.tensor(value), value.copy())

    def add(self, tensor, value, memory=None):
        name = f"v{next(self.numbers)}"  # of no other tensor, also of one that is gone
        self.tensors[name], self.values[name] = tensor, value
        self.memory[name] = memory or name
        return self.memory[name]

    def step(self):
        rng, T, V, M = self.rng, self.tensors, self.values, self.memory
        names = sorted(T)
        a, b = rng.choice(names), rng.choice(names)
        kind = STEP_OPS[rng.integers(len(STEP_OPS))]
        if kind in ("matmul", "add", "add_") and T[a].shape != T[b].shape:
            return
        if (kind in ("matmul", "view") and tuple(T[a].shape) != (WIDTH, WIDTH)) or (
            kind == "add_" and M[a] == M[b]
        ):
            return
        with flow.stream(self.streams[rng.integers(len(self.streams))]):
            if kind == "matmul":
                new = self.add(T[a] @ T[b], V[a] @ V[b])
                self.steps.append(("matmul", {M[a], M[b]}, {new}))
            elif kind == "add":
                new = self.add(T[a] + T[b], V[a] + V[b])
                self.steps.append(("add", {M[a], M[b]}, {new}))
            elif kind == "tanh":
                new = self.add(flow.tanh(T[a]), np.tanh(V[a]))
                self.steps.append(("tanh", {M[a]}, {new}))
            elif kind == "add_":
                T[a].add_(T[b])
                V[a] += V[b]
                self.steps.append(("add", {M[a], M[b]}, {M[a]}))
            elif kind == "mul_":
                T[a].mul_(0.5)
                V[a] *= np.float32(0.5)
                self.steps.append(("mul", {M[a]}, {M[a]}))
            elif kind == "view":  # no instruction
                self.add(T[a][: WIDTH // 2], V[a][: WIDTH // 2], M[a])
            elif kind == "masked_select":  # whose shape is known when it has run: mut2
                mask, result = f"mask{len(self.steps)}", f"made{len(self.steps)}"
                self.outputs.append(flow.masked_select(T[a], T[a] > 0.0))
                self.steps.append(("gt", {M[a]}, {mask}))
                self.steps.append(("masked_select", {M[a], mask}, {result}))
            elif len(T) > 5:
                del T[a], V[a]

    def edges(self):
        """Return the steps that wait for each other, by hazard: (before, after) -> hazards."""
        edges = defaultdict(set)
        writer: dict[str, int] = {}
        readers = defaultdict(list)
        for k, (_, reads, writes) in enumerate(self.steps):
            for memory in reads - writes:
                if memory in writer:
                    edges[writer[memory], k].add("RAW")
            for memory in writes:
                for reader in readers.pop(memory, ()):
                    edges[reader, k].add("WAR")
                if memory in writer:
                    edges[writer[memory], k].add("WAW")
                writer[memory] = k
            for memory in reads - writes:
                readers[memory].append(k)
        return edges


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_the_record_is_what_the_program_did(seed, number, tmp_path):
    rng = np.random.default_rng([seed, number])
    streams = [flow.Stream(f"truth {k}") for k in range(number)] or [flow.Stream("truth")]
    program = Program(rng, streams)
    flow.vm.sync()
    with flow.profiler.profile() as p:
        for _ in range(STEPS):
            program.step()
        actual = {name: tensor.numpy() for name, tensor in program.tensors.items()}
    for name, value in actual.items():
        np.testing.assert_allclose(value, program.values[name], rtol=1e-3, atol=1e-4)
    run, steps = p.run, program.steps
    ops = [i for i in range(len(run)) if run.names[run.op[i]] in {op for op, *_ in steps}]
    assert [run.names[run.op[i]] for i in ops] == [op for op, *_ in steps]
    # operands: so many are read, so many written
    for i, (_, reads, writes) in zip(ops, steps, strict=True):
        of = slice(run.offsets[i], run.offsets[i + 1])
        written = set(run.tensor[of][(run.access[of] & 3) != 0].tolist())
        read = set(run.tensor[of].tolist()) - written
        assert (len(read), len(written)) == (len(reads - writes), len(writes))
    # edges: these and no others
    expected = program.edges()
    place = {i: k for k, i in enumerate(ops)}
    pairs = zip(run.source.tolist(), run.target.tolist(), strict=True)
    assert {(place[a], place[b]) for a, b in pairs if a in place and b in place} == set(expected)
    # times: nothing began before what it had to wait for was over
    started, ended = run.time("started")[ops], run.time("ended")[ops]
    assert all(started[b] >= ended[a] for a, b in expected)
    # the floor is the longest path of these
    finish = [0] * len(ops)
    for k in range(len(ops)):
        front = [finish[a] for a, b in expected if b == k]
        finish[k] = int(ended[k] - started[k]) + max(front, default=0)
    assert p.floor.length == max(finish, default=0)
    assert sum(s.end - s.begin for s in p.observed) == run.wall
    p.verify()
    # the trace: arrows in which every wait is, and rules that viewers ask for
    path = p.export(tmp_path / "run.json", edges="all")
    trace = json.loads(path.read_text())
    assert trace_rules.problems(trace) == []
    assert exported(trace, [int(run.seq[i]) for i in ops]) >= set(expected)


def exported(trace, ids):
    """Pairs of which one follows from the other by the trace's arrows, by numbers in `ids`."""
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and "operands" in e["args"]]
    begins = {(e["pid"], e["tid"], e["ts"]): e["args"]["id"] for e in events}
    tracks = defaultdict(list)
    for e in events:
        tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["args"]["id"]))
    flows = defaultdict(dict)
    for e in trace["traceEvents"]:
        if e["ph"] in "sf" and e["cat"] != "message":
            flows[e["id"]][e["ph"]] = e
    after = defaultdict(set)
    for both in flows.values():
        target = both["f"]
        for begin, end, source in tracks[both["s"]["pid"], both["s"]["tid"]]:
            if begin <= both["s"]["ts"] < end or begin == both["s"]["ts"]:
                after[source].add(begins[target["pid"], target["tid"], target["ts"]])
    place = {seq: k for k, seq in enumerate(ids)}
    reach: dict[int, set[int]] = {}
    for e in sorted((e["args"]["id"] for e in events), reverse=True):
        reach[e] = set(after[e]).union(*(reach.get(other, ()) for other in after[e]))
    return {(place[a], place[b]) for a in ids for b in reach[a] if b in place}
