"""A Plan's tasks on a device, one by one, with the steps before and behind them.

Numbers that change (a learning rate, a step count, a seed) are no parameters of the tasks' kernels:
those read them from the chunk, to which each launch writes them first, graph or not, by a kernel
whose parameters they are (`flowvm.ops.declare.cuda.live_numbers`).  Each task that may find bad
data has a line of its own there, too.  Behind the tasks a kernel looks through the lines; the
first that has a status goes to the instruction's line with its number, so an error is that task's.
Nobody stops others to read what a failed task made: what they wrote of it is poisoned when the
launch is closed.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV, GRAPH, LINES, REPORTER
from flowvm.vm.machine.lang import Words, address_in, load_word, words_at
from flowvm.vm.machine.machine import operand_of
from flowvm.vm.machine.plan_words import PLAN
from flowvm.vm.machine.words import ARG, ENT, OPERAND, STO
from flowvm.vm.workers.launch import run_tasks
from flowvm.vm.workers.steps import DEVICE_FAILED, call_driver, take_steps

LINE_BYTES = 8 * LINES.WORDS


def graph_of(plan: int) -> Words:
    """Return the words of a Plan's graph."""
    return words_at(load_word(plan + 8 * PLAN.GRAPH), 1 << 20)


def run_all(
    m: Words, stream: int, block: Words, g: Words, plan: int, table: int, scalars: int
) -> int:
    """Run all tasks, one by one, with the steps before and behind them."""
    chunk = load_word(table)
    code = clear_lines(block, g, chunk)
    if code != 0:
        return failed(m, stream, code)
    status = put_numbers(m, stream, g, chunk, scalars)
    first = plan + 8 * load_word(plan + 8 * PLAN.FIRST)
    if status == 0:
        tasks = load_word(plan + 8 * PLAN.TASKS)
        status = run_tasks(m, stream, first, 0, tasks, table, scalars)
    if status == 0:
        status = collect_lines(m, stream, g, chunk)
    return status


def failed(m: Words, stream: int, code: int) -> int:
    """Note that a call of the driver has failed with this code.  Return the instruction's
    status.
    """
    m[ARG.AT + stream * ARG.WORDS], m[ARG.AT + stream * ARG.WORDS + 1] = code, -1
    return DEVICE_FAILED


def clear_lines(block: Words, g: Words, chunk: int) -> int:
    """Clear the status of all lines.  Return the driver's answer."""
    if g[GRAPH.LINES] == 0:
        return 0
    size = LINE_BYTES * g[GRAPH.LINES]
    return call_driver(block, DEV.F_CLEAR, chunk + g[GRAPH.LINES_AT], 0, size, block[DEV.STREAM])


def put_numbers(m: Words, stream: int, g: Words, chunk: int, scalars: int) -> int:
    """Run the steps that begin tasks, and write the launch's numbers to where tasks read them."""
    if g[GRAPH.PUT] == 0:
        return 0
    args = ARG.AT + stream * ARG.WORDS
    m[args + ARG.HEADER] = chunk + g[GRAPH.NUMBERS_AT]
    for k in range(g[GRAPH.SCALARS]):
        m[args + ARG.HEADER + 1 + k] = load_word(scalars + 8 * k)
    return take_steps(address_in(m, args), g[GRAPH.PUT], 0, 1, 0)


def collect_lines(m: Words, stream: int, g: Words, chunk: int) -> int:
    """Copy a task's report into the instruction's line."""
    if g[GRAPH.LINES] == 0:
        return 0
    args = ARG.AT + stream * ARG.WORDS
    m[args + ARG.HEADER] = chunk + g[GRAPH.LINES_AT]
    return take_steps(address_in(m, args), g[GRAPH.COLLECT], 0, 1, 0)


def reporter(m: Words, entry: int, line: Words) -> int:
    """Return the index, in the graph's words, of the task that a launch's line reports about."""
    g = graph_of(m[entry + ENT.LAYOUT])
    return g[GRAPH.REPORTERS_AT] + REPORTER.WORDS * line[LINES.WORDS - 1]


def failed_task(m: Words, entry: int, line: Words) -> int:
    """Return the number of the task that a launch's line reports about."""
    return graph_of(m[entry + ENT.LAYOUT])[reporter(m, entry, line) + REPORTER.TASK]


def poison_behind(m: Words, slot: int, entry: int, line: Words, cause: int) -> None:
    """Poison the variables computed from a failed task's outputs: no later task has stopped."""
    g, at = graph_of(m[entry + ENT.LAYOUT]), reporter(m, entry, line)
    first = g[at + REPORTER.FIRST]
    for k in range(first, first + g[at + REPORTER.COUNT]):
        storage = operand_of(m, slot, entry, g[k]) & OPERAND.STORAGE_MASK
        m[STO.AT + storage * STO.WORDS + STO.POISON] = cause
        m[STO.AT + storage * STO.WORDS + STO.TORN] = cause
