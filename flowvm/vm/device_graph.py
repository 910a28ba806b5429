"""A Plan on a device as a CUDA graph: the driver launches all of its kernels by one call.

A graph has addresses in it, so it has memory of its own (a tensor that the Plan holds): its chunk,
and a place for each input and output.  What a launch is given is copied there, and what it makes is
copied from there; variables are where they are.  A launch whose variables lay elsewhere, or that
brings other numbers, captures anew and updates the graph; when that happens again and again it
would only cost, and from then on tasks are launched one by one.  G_MODE says which:

    G_SETTLING   not captured yet; the first launch runs its tasks one by one, as a rehearsal
    G_READY      there is a graph
    G_DIRECT     one by one, for good; G_CODE says why: the driver's error, or one of ours below 0

Its memory goes by the order of one stream, so a launch on another goes task by task.

It is captured on the stream's *twin*, a CUDA stream with a block of its own that nothing else runs
on, for other workers may record events on the stream itself at any time.

What kernels write to an instruction's line they write, in a graph, to a line of the graph's own,
because that is the same at each launch; it is copied to the instruction's, and cleared, behind it.
"""

from __future__ import annotations

from flowvm.vm.allocator import allocate, class_of, release
from flowvm.vm.lang import Words, address_in, call_address, load_word, store_word, words_at
from flowvm.vm.launch import place_operands, run_tasks, scalars_of, table_of, take_chunk
from flowvm.vm.layout import (
    A_BLOCK,
    ARG,
    ARG_WORDS,
    B_CALL,
    B_LINE,
    B_STREAM,
    B_TWIN,
    B_WORDS,
    BF_BEGIN_CAPTURE,
    BF_CLEAR,
    BF_COPY,
    BF_COPY_OUT,
    BF_DESTROY_EXEC,
    BF_DESTROY_GRAPH,
    BF_END_CAPTURE,
    BF_INSTANTIATE,
    BF_LAUNCH_GRAPH,
    BF_UPDATE,
    E_LAYOUT,
    E_SCRATCH,
    G_CHANGES,
    G_CHUNK,
    G_CODE,
    G_DIRECT,
    G_EXEC,
    G_INPUTS,
    G_LAUNCHES,
    G_LINE,
    G_LISTS,
    G_MADE,
    G_MODE,
    G_OPERANDS,
    G_READY,
    G_REPORTS,
    G_SCALARS,
    G_SETTLING,
    G_STORAGE,
    G_STREAM,
    LINE_WORDS,
    P_FIRST,
    P_GRAPH,
    P_TASKS,
    S_POINTER,
    STO,
    STO_WORDS,
    STR,
    STR_WORDS,
    T_ARENA,
    T_TASK,
)
from flowvm.vm.owning import OUT_OF_MEMORY, out_of_memory
from flowvm.vm.steps import CALL_AREA, DEVICE_FAILED

PATIENCE = 8  # launches in a row that differ from the one before
NEVER_ALIKE = -1  # G_CODE: addresses or numbers differ at every launch
TOO_LARGE = -2  # its inputs and outputs are too much to be copied at each launch
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads' calls are no matter of the capture
LINE_BYTES = 8 * LINE_WORDS


def run_plan(m: Words, stream: int, slot: int, entry: int, block: Words) -> int:
    """LaunchPlan on a device: its status as far as it is known."""
    plan = m[entry + E_LAYOUT]
    g = words_at(load_word(plan + 8 * P_GRAPH), 1 << 20)
    m[STR + stream * STR_WORDS + T_TASK] = -1
    if g[G_MODE] != G_DIRECT and g[G_LAUNCHES] > 0 and stream == g[G_STREAM]:
        table = m[STR + stream * STR_WORDS + T_ARENA]
        if not place_operands(m, stream, slot, entry, table):
            return OUT_OF_MEMORY
        if prepare(m, stream, block, g, plan, table, scalars_of(m, slot, entry)):
            return launch_graph(m, stream, block, g, table)
        return run_placed(m, stream, slot, entry, table)
    g[G_LAUNCHES] += 1
    chunk = take_chunk(m, stream, slot, entry)
    if chunk == 0:
        return OUT_OF_MEMORY
    table = table_of(m, stream, chunk)
    status = run_all(m, stream, plan, table, scalars_of(m, slot, entry))
    release(m, stream, chunk, class_of(m[entry + E_SCRATCH]))
    return status


def run_placed(m: Words, stream: int, slot: int, entry: int, table: int) -> int:
    """The graph was given up, and the operands have their places: the rest of `run_plan`."""
    chunk = allocate(m, stream, m[entry + E_SCRATCH])
    if chunk == 0:
        return out_of_memory(m, stream, m[entry + E_SCRATCH])
    store_word(table, chunk)
    status = run_all(m, stream, m[entry + E_LAYOUT], table, scalars_of(m, slot, entry))
    release(m, stream, chunk, class_of(m[entry + E_SCRATCH]))
    return status


def prepare(
    m: Words, stream: int, block: Words, g: Words, plan: int, table: int, scalars: int
) -> bool:
    """Have a graph that fits the launch; False when it was given up."""
    base = m[STO + g[G_STORAGE] * STO_WORDS + S_POINTER]
    own = G_LISTS + 2 * g[G_OPERANDS]
    alike = remember(g, own, base, table, scalars)
    g[G_CHANGES] = 0 if alike else g[G_CHANGES] + 1
    code = 0
    if g[G_STORAGE] == 0:
        code = TOO_LARGE
    elif g[G_CHANGES] > PATIENCE:
        code = NEVER_ALIKE
    elif g[G_MODE] == G_SETTLING or not alike:
        code = capture(m, stream, block, g, plan, address_in(g, own), scalars, base)
    if code != 0:
        give_up(block, g, code)
    return code == 0


def run_all(m: Words, stream: int, plan: int, table: int, scalars: int) -> int:
    """All tasks, one by one."""
    first = plan + 8 * load_word(plan + 8 * P_FIRST)
    return run_tasks(m, stream, first, 0, load_word(plan + 8 * P_TASKS), table, scalars)


def remember(g: Words, own: int, base: int, table: int, scalars: int) -> bool:
    """Write the table of the graph's own, whose words begin at `own`, and keep the scalars; whether
    they are what the graph was captured with.
    """
    alike = keep(g, own, base + g[G_CHUNK])
    for k in range(g[G_OPERANDS]):
        offset = g[G_LISTS + 2 * k]
        address = load_word(table + 8 + 8 * k) if offset < 0 else base + offset
        alike = keep(g, own + 1 + k, address) and alike
    for k in range(g[G_SCALARS]):
        at = own + 1 + g[G_OPERANDS] + k
        alike = keep(g, at, load_word(scalars + 8 * k)) and alike
    return alike


def keep(g: Words, at: int, value: int) -> bool:
    """Set a word; whether it was that already."""
    same = g[at] == value
    g[at] = value
    return bool(same)


def call(block: Words, function: int, a: int, b: int, c: int, d: int) -> int:
    """Call one of the block's functions; the driver's answer."""
    words = words_at(block[B_CALL], CALL_AREA)
    words[0], words[1], words[2], words[3] = a, b, c, d
    return call_address(block[function], address_in(words, 0))


def result_of(block: Words) -> int:
    """Where a call leaves a handle: behind its arguments."""
    return address_in(words_at(block[B_CALL], CALL_AREA), 8)


def capture(
    m: Words, stream: int, block: Words, g: Words, plan: int, table: int, scalars: int, base: int
) -> int:
    """Make the graph of the tasks as they are given now, or update it: 0, or why not."""
    if g[G_MODE] == G_SETTLING and g[G_REPORTS] != 0:
        code = call(block, BF_CLEAR, base + g[G_LINE], 0, LINE_BYTES, block[B_STREAM])
        if code != 0:
            return code
    twin = words_at(block[B_TWIN], B_WORDS)
    code = call(twin, BF_BEGIN_CAPTURE, twin[B_STREAM], RELAXED, 0, 0)
    if code != 0:
        return code
    twin[B_LINE] = base + g[G_LINE]
    m[ARG + stream * ARG_WORDS + A_BLOCK] = block[B_TWIN]
    status = run_all(m, stream, plan, table, scalars)
    m[ARG + stream * ARG_WORDS + A_BLOCK] = address_in(block, 0)
    code = call(twin, BF_END_CAPTURE, twin[B_STREAM], result_of(twin), 0, 0)
    graph = load_word(result_of(twin))
    if code == 0 and status != 0:
        code = status
    if code == 0:
        code = renew(block, g, graph)
    if graph != 0:
        call(block, BF_DESTROY_GRAPH, graph, 0, 0, 0)
    return code


def renew(block: Words, g: Words, graph: int) -> int:
    """Make what is launched from a captured graph, by an update if there is one already."""
    if g[G_EXEC] != 0:
        if call(block, BF_UPDATE, g[G_EXEC], graph, result_of(block) + 8, 0) == 0:
            return 0
        call(block, BF_DESTROY_EXEC, g[G_EXEC], 0, 0, 0)
        g[G_EXEC] = 0
    code = call(block, BF_INSTANTIATE, result_of(block), graph, 0, 0)
    if code == 0:
        g[G_EXEC] = load_word(result_of(block))
        g[G_MODE] = G_READY
    return code


def launch_graph(m: Words, stream: int, block: Words, g: Words, table: int) -> int:
    """Copy the inputs to where the graph reads them, launch it, copy what it made to where that
    belongs, and let the instruction have what kernels reported.
    """
    made, ends, on = g[G_MADE], g[G_MADE] + g[G_INPUTS], block[B_STREAM]
    own = G_LISTS + 2 * g[G_OPERANDS] + 1
    code = 0
    for k in range(made, ends):
        if code == 0 and g[G_LISTS + 2 * k + 1] > 0:
            given = load_word(table + 8 + 8 * k)
            code = call(block, BF_COPY, g[own + k], given, g[G_LISTS + 2 * k + 1], on)
    if code == 0:
        code = call(block, BF_LAUNCH_GRAPH, g[G_EXEC], on, 0, 0)
    for k in range(made):
        if code == 0 and g[G_LISTS + 2 * k + 1] > 0:
            wanted = load_word(table + 8 + 8 * k)
            code = call(block, BF_COPY, wanted, g[own + k], g[G_LISTS + 2 * k + 1], on)
    if code == 0 and g[G_REPORTS] != 0:
        line = m[STO + g[G_STORAGE] * STO_WORDS + S_POINTER] + g[G_LINE]
        code = call(block, BF_COPY_OUT, block[B_LINE], line, LINE_BYTES, on)
        if code == 0:
            code = call(block, BF_CLEAR, line, 0, LINE_BYTES, on)
    g[G_LAUNCHES] += 1
    if code == 0:
        return 0
    m[ARG + stream * ARG_WORDS], m[ARG + stream * ARG_WORDS + 1] = code, -1
    return DEVICE_FAILED


def give_up(block: Words, g: Words, code: int) -> None:
    """From now on tasks are launched one by one."""
    if g[G_EXEC] != 0:
        call(block, BF_DESTROY_EXEC, g[G_EXEC], 0, 0, 0)
        g[G_EXEC] = 0
    g[G_MODE], g[G_CODE] = G_DIRECT, code
