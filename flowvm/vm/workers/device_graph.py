"""A Plan on a device as a CUDA graph: the driver launches all of its kernels by one call.

A graph has addresses in it, so it has memory of its own (a tensor that the Plan holds): its chunk,
and a place for each input and output.  What a launch is given is copied there, and what it makes is
copied from there; variables are where they are.  A launch whose variables lay elsewhere captures
anew and updates the graph; when that happens again and again it would only cost, and from then on
tasks are launched one by one.  G_MODE says which:

    G_SETTLING   not captured yet; the first launch runs its tasks one by one, as a rehearsal
    G_READY      there is a graph
    G_DIRECT     one by one, for good; G_CODE says why: the driver's error, or one of ours below 0

Its memory goes by the order of one stream, so a launch on another goes task by task.

It is captured on the stream's *twin*, a CUDA stream with a block of its own that nothing else runs
on, for other workers may record events on the stream itself at any time.  A Plan whose nodes were
issued to several streams has *branches*, its actors (`flowvm.graph.plan.actors`): each is captured
on the lane of its stream, forked from the twin by an event and joined by one, and waits for events
of the branches it needs, so the device may run them beside each other.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, address_in, load_word, store_word, words_at
from flowvm.vm.machine.layout import (
    A_BLOCK,
    ARG,
    ARG_WORDS,
    B_STREAM,
    B_TWIN,
    B_WAIT_EVENT,
    B_WORDS,
    BF_BEGIN_CAPTURE,
    BF_COPY,
    BF_DESTROY_EXEC,
    BF_DESTROY_GRAPH,
    BF_END_CAPTURE,
    BF_INSTANTIATE,
    BF_LAUNCH_GRAPH,
    BF_RECORD,
    BF_UPDATE,
    BF_WAIT_EVENT,
    BRANCH_BLOCK,
    BRANCH_COUNT,
    BRANCH_EVENT,
    BRANCH_FIRST,
    BRANCH_HEAD,
    BRANCH_WAITS,
    BRANCH_WORDS_AT,
    E_LAYOUT,
    E_SCRATCH,
    G_BRANCHES,
    G_BRANCHES_AT,
    G_CHANGES,
    G_CHUNK,
    G_CODE,
    G_DIRECT,
    G_EXEC,
    G_INPUTS,
    G_LANES,
    G_LANES_AT,
    G_LAUNCHES,
    G_LISTS,
    G_MADE,
    G_MODE,
    G_OPERANDS,
    G_READY,
    G_SETTLING,
    G_STORAGE,
    G_STREAM,
    S_POINTER,
    STO,
    STO_WORDS,
    STR,
    STR_WORDS,
    T_ARENA,
    T_TASK,
)
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
from flowvm.vm.workers.owning import OUT_OF_MEMORY, out_of_memory
from flowvm.vm.workers.steps import call_driver, result_of

PATIENCE = 8  # launches in a row that differ from the one before
NEVER_ALIKE = -1  # G_CODE: addresses differ at every launch
TOO_LARGE = -2  # its inputs and outputs are too much to be copied at each launch
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads' calls are no matter of the capture


def run_plan(m: Words, stream: int, slot: int, entry: int, block: Words) -> int:
    """LaunchPlan on a device: its status as far as it is known."""
    plan = m[entry + E_LAYOUT]
    g = graph_of(plan)
    m[STR + stream * STR_WORDS + T_TASK] = -1
    if g[G_MODE] != G_DIRECT and g[G_LAUNCHES] > 0 and stream == g[G_STREAM]:
        table = m[STR + stream * STR_WORDS + T_ARENA]
        if not place_operands(m, stream, slot, entry, table):
            return OUT_OF_MEMORY
        if prepare(m, stream, block, g, plan, table):
            return launch_graph(m, stream, block, g, table, scalars_of(m, slot, entry))
        return run_placed(m, stream, slot, entry, block, table)
    g[G_LAUNCHES] += 1
    chunk = take_chunk(m, stream, slot, entry)
    if chunk == 0:
        return OUT_OF_MEMORY
    table = table_of(m, stream, chunk)
    status = run_all(m, stream, block, g, plan, table, scalars_of(m, slot, entry))
    release(m, stream, chunk, class_of(m[entry + E_SCRATCH]))
    return status


def run_placed(m: Words, stream: int, slot: int, entry: int, block: Words, table: int) -> int:
    """The graph was given up, and the operands have their places: the rest of `run_plan`."""
    chunk = allocate(m, stream, m[entry + E_SCRATCH])
    if chunk == 0:
        return out_of_memory(m, stream, m[entry + E_SCRATCH])
    store_word(table, chunk)
    plan = m[entry + E_LAYOUT]
    scalars = scalars_of(m, slot, entry)
    status = run_all(m, stream, block, graph_of(plan), plan, table, scalars)
    release(m, stream, chunk, class_of(m[entry + E_SCRATCH]))
    return status


def prepare(m: Words, stream: int, block: Words, g: Words, plan: int, table: int) -> bool:
    """Have a graph that fits the launch; False when it was given up."""
    base = m[STO + g[G_STORAGE] * STO_WORDS + S_POINTER]
    own = G_LISTS + 2 * g[G_OPERANDS]
    alike = remember(g, own, base, table)
    g[G_CHANGES] = 0 if alike else g[G_CHANGES] + 1
    code = 0
    if g[G_STORAGE] == 0:
        code = TOO_LARGE
    elif g[G_CHANGES] > PATIENCE:
        code = NEVER_ALIKE
    elif g[G_MODE] == G_SETTLING or not alike:
        code = capture(m, stream, block, g, address_in(g, own))
    if code != 0:
        give_up(block, g, code)
    return code == 0


# --- the graph ------------------------------------------------------------------------------------


def remember(g: Words, own: int, base: int, table: int) -> bool:
    """Write the table of the graph's own, whose words begin at `own`; whether it is what the graph
    was captured with.
    """
    alike = keep(g, own, base + g[G_CHUNK])
    for k in range(g[G_OPERANDS]):
        offset = g[G_LISTS + 2 * k]
        address = load_word(table + 8 + 8 * k) if offset < 0 else base + offset
        alike = keep(g, own + 1 + k, address) and alike
    return alike


def keep(g: Words, at: int, value: int) -> bool:
    """Set a word; whether it was that already."""
    same = g[at] == value
    g[at] = value
    return bool(same)


def capture(m: Words, stream: int, block: Words, g: Words, table: int) -> int:
    """Make the graph of the tasks as they are given now, or update it: 0, or why not."""
    if g[G_MODE] == G_SETTLING:
        code = clear_lines(block, g, load_word(table))
        if code != 0:
            return code
    twin = words_at(block[B_TWIN], B_WORDS)
    code = call_driver(twin, BF_BEGIN_CAPTURE, twin[B_STREAM], RELAXED, 0, 0)
    if code != 0:
        return code
    status = fork(twin, g)
    for k in range(g[G_BRANCHES]):
        if status == 0:
            status = run_branch(m, stream, g, g[g[G_BRANCHES_AT] + k], table)
    m[ARG + stream * ARG_WORDS + A_BLOCK] = address_in(block, 0)
    if status == 0:
        status = join(twin, g)
    code = call_driver(twin, BF_END_CAPTURE, twin[B_STREAM], result_of(twin), 0, 0)
    graph = load_word(result_of(twin))
    if code == 0 and status != 0:
        code = status
    if code == 0:
        code = renew(block, g, graph)
    if graph != 0:
        call_driver(block, BF_DESTROY_GRAPH, graph, 0, 0, 0)
    return code


def fork(twin: Words, g: Words) -> int:
    """Let the other lanes be captured, too."""
    code = 0
    if g[G_LANES] > 0:
        code = call_driver(twin, BF_RECORD, twin[B_WAIT_EVENT], twin[B_STREAM], 0, 0)
    for k in range(g[G_LANES]):
        lane = words_at(g[g[G_LANES_AT] + k], B_WORDS)
        if code == 0:
            code = call_driver(twin, BF_WAIT_EVENT, lane[B_STREAM], twin[B_WAIT_EVENT], 0, 0)
    return code


def join(twin: Words, g: Words) -> int:
    """Let the twin wait for the other lanes."""
    code = 0
    for k in range(g[G_LANES]):
        lane = words_at(g[g[G_LANES_AT] + k], B_WORDS)
        if code == 0:
            code = call_driver(twin, BF_RECORD, lane[B_WAIT_EVENT], lane[B_STREAM], 0, 0)
        if code == 0:
            code = call_driver(twin, BF_WAIT_EVENT, twin[B_STREAM], lane[B_WAIT_EVENT], 0, 0)
    return code


def run_branch(m: Words, stream: int, g: Words, at: int, table: int) -> int:
    """Capture the tasks of the branch whose words are at `at`, on its lane."""
    lane = words_at(g[at + BRANCH_BLOCK], B_WORDS)
    for k in range(g[at + BRANCH_WAITS]):
        code = call_driver(lane, BF_WAIT_EVENT, lane[B_STREAM], g[at + BRANCH_HEAD + k], 0, 0)
        if code != 0:
            return code
    m[ARG + stream * ARG_WORDS + A_BLOCK] = g[at + BRANCH_BLOCK]
    status = run_tasks(
        m, stream, g[at + BRANCH_WORDS_AT], g[at + BRANCH_FIRST], g[at + BRANCH_COUNT], table, 0
    )
    if status == 0 and g[at + BRANCH_EVENT] != 0:
        status = call_driver(lane, BF_RECORD, g[at + BRANCH_EVENT], lane[B_STREAM], 0, 0)
    return status


def renew(block: Words, g: Words, graph: int) -> int:
    """Make what is launched from a captured graph, by an update if there is one already."""
    if g[G_EXEC] != 0:
        if call_driver(block, BF_UPDATE, g[G_EXEC], graph, result_of(block) + 8, 0) == 0:
            return 0
        call_driver(block, BF_DESTROY_EXEC, g[G_EXEC], 0, 0, 0)
        g[G_EXEC] = 0
    code = call_driver(block, BF_INSTANTIATE, result_of(block), graph, 0, 0)
    if code == 0:
        g[G_EXEC] = load_word(result_of(block))
        g[G_MODE] = G_READY
    return code


def launch_graph(m: Words, stream: int, block: Words, g: Words, table: int, scalars: int) -> int:
    """Copy the inputs and the numbers to where the graph reads them, launch it, copy what it made
    to where that belongs, and let the instruction have what kernels reported.
    """
    made, ends, on = g[G_MADE], g[G_MADE] + g[G_INPUTS], block[B_STREAM]
    own = G_LISTS + 2 * g[G_OPERANDS] + 1
    chunk = g[own - 1]
    status = put_numbers(m, stream, g, chunk, scalars)
    if status != 0:
        return status
    code = 0
    for k in range(made, ends):
        if code == 0 and g[G_LISTS + 2 * k + 1] > 0:
            given = load_word(table + 8 + 8 * k)
            code = call_driver(block, BF_COPY, g[own + k], given, g[G_LISTS + 2 * k + 1], on)
    if code == 0:
        code = call_driver(block, BF_LAUNCH_GRAPH, g[G_EXEC], on, 0, 0)
    for k in range(made):
        if code == 0 and g[G_LISTS + 2 * k + 1] > 0:
            wanted = load_word(table + 8 + 8 * k)
            code = call_driver(block, BF_COPY, wanted, g[own + k], g[G_LISTS + 2 * k + 1], on)
    g[G_LAUNCHES] += 1
    return collect_lines(m, stream, g, chunk) if code == 0 else failed(m, stream, code)


def give_up(block: Words, g: Words, code: int) -> None:
    """From now on tasks are launched one by one."""
    if g[G_EXEC] != 0:
        call_driver(block, BF_DESTROY_EXEC, g[G_EXEC], 0, 0, 0)
        g[G_EXEC] = 0
    g[G_MODE], g[G_CODE] = G_DIRECT, code
