"""A Plan on a device as a CUDA graph: the driver launches all of its kernels by one call.

A graph has addresses in it, so it has memory of its own (a tensor that the Plan holds): its chunk,
and a place for each input and output.  What a launch is given is copied there, and what it makes is
copied from there; variables are where they are.  A launch whose variables lay elsewhere captures
anew and updates the graph; when that happens again and again it would only cost, and from then on
tasks are launched one by one.  GRAPH.MODE says which:

    SETTLING   not captured yet; the first launch runs its tasks one by one, as a rehearsal
    READY      there is a graph
    DIRECT     one by one, for good; GRAPH.CODE says why: the driver's error, or one of ours below 0

Its memory goes by the order of one stream, so a launch on another goes task by task.

It is captured on the stream's *twin*, a CUDA stream with a block of its own that nothing else runs
on, for other workers may record events on the stream itself at any time.  A Plan whose nodes were
issued to several streams has *branches*, its actors (`flowvm.graph.plan.actors`): each is captured
on the lane of its stream, forked from the twin by an event and joined by one, and waits for events
of the branches it needs, so the device may run them beside each other.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import BRANCH, DEV, GRAPH
from flowvm.vm.machine.lang import Words, address_in, load_word, store_word, words_at
from flowvm.vm.machine.words import ARG, ENT, STO, STR
from flowvm.vm.workers.allocation import OUT_OF_MEMORY, out_of_memory
from flowvm.vm.workers.allocator import allocate, class_of, release
from flowvm.vm.workers.device_tasks import (
    clear_lines,
    collect_lines,
    failed,
    graph_of,
    put_numbers,
    run_all,
)
from flowvm.vm.workers.launch import place_operands, run_tasks, scalars_of, table_of, take_chunk
from flowvm.vm.workers.steps import call_driver, result_of

PATIENCE = 8  # launches in a row that differ from the one before
NEVER_ALIKE = -1  # GRAPH.CODE: addresses differ at every launch
TOO_LARGE = -2  # its inputs and outputs are too much to be copied at each launch
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads' calls are no matter of the capture


def run_plan(m: Words, stream: int, slot: int, entry: int, block: Words) -> int:
    """Run a LaunchPlan on a device.  Return its status as far as it is known."""
    plan = m[entry + ENT.LAYOUT]
    g = graph_of(plan)
    m[STR.AT + stream * STR.WORDS + STR.TASK] = -1
    if g[GRAPH.MODE] != GRAPH.DIRECT and g[GRAPH.LAUNCHES] > 0 and stream == g[GRAPH.STREAM]:
        table = m[STR.AT + stream * STR.WORDS + STR.ARENA]
        if not place_operands(m, stream, slot, entry, table):
            return OUT_OF_MEMORY
        if prepare(m, stream, block, g, plan, table):
            return launch_graph(m, stream, block, g, table, scalars_of(m, slot, entry))
        return run_placed(m, stream, slot, entry, block, table)
    g[GRAPH.LAUNCHES] += 1
    chunk = take_chunk(m, stream, slot, entry)
    if chunk == 0:
        return OUT_OF_MEMORY
    table = table_of(m, stream, chunk)
    status = run_all(m, stream, block, g, plan, table, scalars_of(m, slot, entry))
    release(m, stream, chunk, class_of(m[entry + ENT.SCRATCH]))
    return status


def run_placed(m: Words, stream: int, slot: int, entry: int, block: Words, table: int) -> int:
    """Run the rest of `run_plan` after the graph was given up: the operands have their places."""
    chunk = allocate(m, stream, m[entry + ENT.SCRATCH])
    if chunk == 0:
        return out_of_memory(m, stream, m[entry + ENT.SCRATCH])
    store_word(table, chunk)
    plan = m[entry + ENT.LAYOUT]
    scalars = scalars_of(m, slot, entry)
    status = run_all(m, stream, block, graph_of(plan), plan, table, scalars)
    release(m, stream, chunk, class_of(m[entry + ENT.SCRATCH]))
    return status


def prepare(m: Words, stream: int, block: Words, g: Words, plan: int, table: int) -> bool:
    """Make a graph that fits the launch.  Return False if it was given up."""
    base = m[STO.AT + g[GRAPH.STORAGE] * STO.WORDS + STO.POINTER]
    own = GRAPH.LISTS + 2 * g[GRAPH.OPERANDS]
    alike = remember(g, own, base, table)
    g[GRAPH.CHANGES] = 0 if alike else g[GRAPH.CHANGES] + 1
    code = 0
    if g[GRAPH.STORAGE] == 0:
        code = TOO_LARGE
    elif g[GRAPH.CHANGES] > PATIENCE:
        code = NEVER_ALIKE
    elif g[GRAPH.MODE] == GRAPH.SETTLING or not alike:
        code = capture(m, stream, block, g, address_in(g, own))
    if code != 0:
        give_up(block, g, code)
    return code == 0


# --- the graph ------------------------------------------------------------------------------------


def remember(g: Words, own: int, base: int, table: int) -> bool:
    """Write the table of the graph's own, whose words begin at `own`.  Return True if the graph was
    captured with the same table.
    """
    alike = keep(g, own, base + g[GRAPH.CHUNK])
    for k in range(g[GRAPH.OPERANDS]):
        offset = g[GRAPH.LISTS + 2 * k]
        address = load_word(table + 8 + 8 * k) if offset < 0 else base + offset
        alike = keep(g, own + 1 + k, address) and alike
    return alike


def keep(g: Words, at: int, value: int) -> bool:
    """Set a word.  Return True if it had that value already."""
    same = g[at] == value
    g[at] = value
    return bool(same)


def capture(m: Words, stream: int, block: Words, g: Words, table: int) -> int:
    """Capture the graph of the present tasks, or update it.  Return 0, or the error."""
    if g[GRAPH.MODE] == GRAPH.SETTLING:
        code = clear_lines(block, g, load_word(table))
        if code != 0:
            return code
    twin = words_at(block[DEV.TWIN], DEV.WORDS)
    code = call_driver(twin, DEV.F_BEGIN_CAPTURE, twin[DEV.STREAM], RELAXED, 0, 0)
    if code != 0:
        return code
    status = fork(twin, g)
    for k in range(g[GRAPH.BRANCHES]):
        if status == 0:
            status = run_branch(m, stream, g, g[g[GRAPH.BRANCHES_AT] + k], table)
    m[ARG.AT + stream * ARG.WORDS + ARG.BLOCK] = address_in(block, 0)
    if status == 0:
        status = join(twin, g)
    code = call_driver(twin, DEV.F_END_CAPTURE, twin[DEV.STREAM], result_of(twin), 0, 0)
    graph = load_word(result_of(twin))
    if code == 0 and status != 0:
        code = status
    if code == 0:
        code = renew(block, g, graph)
    if graph != 0:
        call_driver(block, DEV.F_DESTROY_GRAPH, graph, 0, 0, 0)
    return code


def fork(twin: Words, g: Words) -> int:
    """Begin the capture of the other lanes."""
    code = 0
    if g[GRAPH.LANES] > 0:
        code = call_driver(twin, DEV.F_RECORD, twin[DEV.WAIT_EVENT], twin[DEV.STREAM], 0, 0)
    for k in range(g[GRAPH.LANES]):
        lane = words_at(g[g[GRAPH.LANES_AT] + k], DEV.WORDS)
        if code == 0:
            code = call_driver(twin, DEV.F_WAIT_EVENT, lane[DEV.STREAM], twin[DEV.WAIT_EVENT], 0, 0)
    return code


def join(twin: Words, g: Words) -> int:
    """Let the twin wait for the other lanes."""
    code = 0
    for k in range(g[GRAPH.LANES]):
        lane = words_at(g[g[GRAPH.LANES_AT] + k], DEV.WORDS)
        if code == 0:
            code = call_driver(twin, DEV.F_RECORD, lane[DEV.WAIT_EVENT], lane[DEV.STREAM], 0, 0)
        if code == 0:
            code = call_driver(twin, DEV.F_WAIT_EVENT, twin[DEV.STREAM], lane[DEV.WAIT_EVENT], 0, 0)
    return code


def run_branch(m: Words, stream: int, g: Words, at: int, table: int) -> int:
    """Capture the tasks of the branch whose words are at `at`, on its lane."""
    lane = words_at(g[at + BRANCH.BLOCK], DEV.WORDS)
    for k in range(g[at + BRANCH.WAITS]):
        code = call_driver(lane, DEV.F_WAIT_EVENT, lane[DEV.STREAM], g[at + BRANCH.WORDS + k], 0, 0)
        if code != 0:
            return code
    m[ARG.AT + stream * ARG.WORDS + ARG.BLOCK] = g[at + BRANCH.BLOCK]
    status = run_tasks(
        m, stream, g[at + BRANCH.WORDS_AT], g[at + BRANCH.FIRST], g[at + BRANCH.COUNT], table, 0
    )
    if status == 0 and g[at + BRANCH.EVENT] != 0:
        status = call_driver(lane, DEV.F_RECORD, g[at + BRANCH.EVENT], lane[DEV.STREAM], 0, 0)
    return status


def renew(block: Words, g: Words, graph: int) -> int:
    """Make an executable graph from a captured graph, by an update if there is one already."""
    if g[GRAPH.EXEC] != 0:
        if call_driver(block, DEV.F_UPDATE, g[GRAPH.EXEC], graph, result_of(block) + 8, 0) == 0:
            return 0
        call_driver(block, DEV.F_DESTROY_EXEC, g[GRAPH.EXEC], 0, 0, 0)
        g[GRAPH.EXEC] = 0
    code = call_driver(block, DEV.F_INSTANTIATE, result_of(block), graph, 0, 0)
    if code == 0:
        g[GRAPH.EXEC] = load_word(result_of(block))
        g[GRAPH.MODE] = GRAPH.READY
    return code


def launch_graph(m: Words, stream: int, block: Words, g: Words, table: int, scalars: int) -> int:
    """Copy the inputs and the numbers to the graph's memory, launch the graph, and copy its outputs
    to their places.  Then pass the kernels' reports to the instruction.
    """
    outputs, ends, on = g[GRAPH.MADE], g[GRAPH.MADE] + g[GRAPH.INPUTS], block[DEV.STREAM]
    own = GRAPH.LISTS + 2 * g[GRAPH.OPERANDS] + 1
    chunk = g[own - 1]
    status = put_numbers(m, stream, g, chunk, scalars)
    if status != 0:
        return status
    code = 0
    for k in range(outputs, ends):
        if code == 0 and g[GRAPH.LISTS + 2 * k + 1] > 0:
            argument = load_word(table + 8 + 8 * k)
            code = call_driver(
                block, DEV.F_COPY, g[own + k], argument, g[GRAPH.LISTS + 2 * k + 1], on
            )
    if code == 0:
        code = call_driver(block, DEV.F_LAUNCH_GRAPH, g[GRAPH.EXEC], on, 0, 0)
    for k in range(outputs):
        if code == 0 and g[GRAPH.LISTS + 2 * k + 1] > 0:
            result = load_word(table + 8 + 8 * k)
            code = call_driver(
                block, DEV.F_COPY, result, g[own + k], g[GRAPH.LISTS + 2 * k + 1], on
            )
    g[GRAPH.LAUNCHES] += 1
    return collect_lines(m, stream, g, chunk) if code == 0 else failed(m, stream, code)


def give_up(block: Words, g: Words, code: int) -> None:
    """Give the graph up: tasks are launched one by one from now on."""
    if g[GRAPH.EXEC] != 0:
        call_driver(block, DEV.F_DESTROY_EXEC, g[GRAPH.EXEC], 0, 0, 0)
        g[GRAPH.EXEC] = 0
    g[GRAPH.MODE], g[GRAPH.CODE] = GRAPH.DIRECT, code
