"""The kernel of a device's instructions: it runs steps in their order on its stream.

It has the form of every kernel, so entries, Plans and the sequential engine know no difference:
`args` has the operands' addresses (device memory), scalars, scratch, and the address of the
stream's block; `layout` describes the steps (`STEP` of `flowvm.vm.machine.device_words`):

    launch of a kernel   the words of its parameters, as they are passed
    call of a function   cuBLAS's, or the driver's own (a copy, a fill); its arguments, as int64

Both are templates with *patches*: which word is the address of which operand, and so on.  Nothing
here waits for the device, except for a mut2 instruction's first call (lo = -1).  It runs the
counting steps, waits for them and leaves the rows in the details.

A kernel writes its errors to the instruction's line, which is read when the device has passed the
instruction (`flowvm.vm.workers.device`).
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import CALL, DEV, LINES, SOURCE, STEP
from flowvm.vm.machine.lang import Words, address_in, call_address, load_word, words_at
from flowvm.vm.machine.words import ARG

WORDS_ONLY = True
DEVICE_FAILED = 13  # flowvm.errors.Status.DEVICE_FAILED; a test pins that they agree
EXTRA = (
    CALL.WORDS
)  # in DEV.CALL's words: cuLaunchKernel's `extra`, the size it points at, parameters
EXTRA_SIZE = EXTRA + 5
PARAMS = EXTRA + 8
RESULT = 8  # behind the arguments of a function that is called
CALL_AREA = PARAMS + CALL.PARAM_WORDS  # words that DEV.CALL needs
BUFFER_POINTER, BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE


def take_steps(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """Run an instruction's steps.  Return 0, DEVICE_FAILED, or the result of counting steps."""
    a = words_at(args, ARG.WORDS)
    block = words_at(a[ARG.BLOCK], DEV.WORDS)
    steps = words_at(layout, 1 << 30)
    counts = 1 if lo < 0 else 0
    at = 1
    for number in range(steps[0]):
        if steps[at + STEP.COUNTS] == counts:
            code = take_step(a, block, steps, at)
            if code != 0:
                a[0], a[1], a[2] = code, number, steps[at + STEP.FUNCTION]
                return DEVICE_FAILED
        at += steps[at + STEP.LENGTH]
    return counted(a, block) if counts else 0


def take_step(a: Words, block: Words, steps: Words, at: int) -> int:
    """Launch a kernel or call a function.  Return the driver's or the library's answer."""
    call = words_at(block[DEV.CALL], CALL_AREA)
    if steps[at + STEP.KIND] == STEP.KERNEL:
        fill(a, block, steps, at, call, PARAMS)
        call[0] = steps[at + STEP.FUNCTION]
        for k in range(3):
            call[1 + k], call[4 + k] = steps[at + STEP.GRID + k], steps[at + STEP.BLOCK + k]
        call[7], call[8], call[9], call[10] = (
            steps[at + STEP.SHARED],
            block[DEV.STREAM],
            0,
            address_in(call, EXTRA),
        )
        call[EXTRA], call[EXTRA + 1] = BUFFER_POINTER, address_in(call, PARAMS)
        call[EXTRA + 2], call[EXTRA + 3] = BUFFER_SIZE, address_in(call, EXTRA_SIZE)
        call[EXTRA + 4], call[EXTRA_SIZE] = 0, 8 * steps[at + STEP.TEMPLATE_WORDS]
        return call_address(block[DEV.F_LAUNCH], address_in(call, 0))
    fill(a, block, steps, at, call, 0)
    return call_address(steps[at + STEP.FUNCTION], address_in(call, 0))


def call_driver(block: Words, function: int, a: int, b: int, c: int, d: int) -> int:
    """Call one of the block's functions, with at most four arguments.  Return its result."""
    call = words_at(block[DEV.CALL], CALL_AREA)
    call[0], call[1], call[2], call[3] = a, b, c, d
    return call_address(block[function], address_in(call, 0))


def result_of(block: Words) -> int:
    """Return the address of the word, behind the arguments, that functions called by `call_driver`
    may read or write.
    """
    return address_in(words_at(block[DEV.CALL], CALL_AREA), RESULT)


def fill(a: Words, block: Words, steps: Words, at: int, to: Words, first: int) -> None:
    """Write a step's template, with its patches, into the words from `first` on."""
    count = steps[at + STEP.TEMPLATE_WORDS]
    words = at + STEP.TEMPLATE
    for k in range(count):
        to[first + k] = steps[words + k]
    patch = words + count
    for _ in range(steps[at + STEP.PATCHES]):
        source = steps[patch + 1]
        k = source >> SOURCE.SHIFT
        source &= (1 << SOURCE.SHIFT) - 1
        if source == SOURCE.ARG:
            value = a[ARG.HEADER + k]
        elif source == SOURCE.SCRATCH:
            value = a[ARG.SCRATCH]
        elif source == SOURCE.LINE:
            value = block[DEV.LINE]
        elif source == SOURCE.BLOCK:
            value = block[k]
        elif source == SOURCE.HELD:
            value = load_word(steps[patch + 2]) - steps[patch + 2]
        else:
            value = address_in(steps, k)
        to[first + steps[patch]] = value + steps[patch + 2]
        patch += 3


def counted(a: Words, block: Words) -> int:
    """Wait for the stream's work, and leave the instruction's line in the details.  Return its
    status.
    """
    code = call_driver(block, DEV.F_SYNCHRONIZE, block[DEV.STREAM], 0, 0, 0)
    if code != 0:
        a[0], a[1] = code, -1
        return DEVICE_FAILED
    line = words_at(block[DEV.LINE], LINES.WORDS)
    for i in range(ARG.N_DETAILS):
        a[i] = line[i]
    return line[LINES.STATUS]
