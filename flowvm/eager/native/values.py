"""Values read where they lie: `item()`, `tolist()`, a tensor as a bool, float or int, and arrays
on a tensor's memory.

Nothing is issued for that.  A value whose writers are done is there; one that is on its way is
waited for a moment without the GIL, in which this thread helps (`settle_soon` of
`flowvm.vm.workers.shell`).  What is not there then, is poisoned, is looked for by somebody (a
profiler, a capture), or is not on the CPU, is left to the Python function (`flowvm.eager.values`).
"""

from __future__ import annotations

from flowvm.eager.native.cpython import (
    allocate,
    as_int,
    clear_error,
    decref,
    dict_item,
    double_of,
    float_of,
    incref,
    int_of,
    new_array,
    new_list,
    put_word,
    restore_thread,
    save_thread,
    scratch,
    set_base,
    set_list_item,
    set_size,
    single_of,
    tuple_item,
    unsigned_of,
    word,
)
from flowvm.eager.native.module import counter_now
from flowvm.eager.native.record import has_room
from flowvm.eager.native.tensor import class_of, is_unrecorded, is_whole, lend, own_storage
from flowvm.eager.native.words import (
    AS_ARRAY,
    AS_BOOL,
    AS_FLOAT,
    AS_INT,
    AS_LIST,
    BOOLEAN,
    FAILED,
    FLOATING,
    MISS,
    SHARED,
    SIGNED,
    SITE,
)
from flowvm.vm.callers.hot import CALL_STREAM
from flowvm.vm.machine.lang import call_kernel, load_word, words_at
from flowvm.vm.machine.machine import is_settled
from flowvm.vm.machine.words import ARRAY, CTL, OPERAND, STO

BYTES = 15  # of a dtype's code: those of an element
MOST_DIMENSIONS = 32  # of an array
WRITEABLE = 0x400  # of NumPy's flags of arrays


def read_value(site: int, args: int, count: int) -> int:
    """Read the tensor's value in the way that the SITE's HOW names.  Return a new reference, MISS
    or FAILED.
    """
    shared, how = word(site, SITE.SHARED), word(site, SITE.HOW)
    if count != 1 or set_size(word(shared, SHARED.DEPARTED)) != 0:
        return MISS
    x = word(args, 0)
    if not is_whole(shared, x):
        return MISS
    meta = load_word(x + word(shared, SHARED.TENSOR_META))
    if class_of(shared, meta) != word(shared, SHARED.META):  # a global tensor
        return MISS
    if load_word(meta + word(shared, SHARED.META_DEVICE)) != word(shared, SHARED.CPU):
        return MISS
    known = dict_item(word(site, SITE.CACHE), load_word(meta + word(shared, SHARED.META_DTYPE)))
    if known == 0:
        clear_error()
        return MISS
    numel = as_int(load_word(meta + word(shared, SHARED.META_NUMEL)))
    if how == AS_ARRAY:
        return array(shared, x, meta, known) if numel > 0 else MISS
    code = as_int(known)
    if numel < 1 or (numel != 1 and how != AS_LIST):
        return MISS
    address = address_of(shared, x, 0)
    if address == 0 or address & ((code & BYTES) - 1) != 0:
        return MISS
    if how == AS_LIST:
        return listed(shared, x, meta, code, address)
    return number(shared, how, code, address)


def ref_of(shared: int, x: int) -> int:
    """The operand word of a whole tensor; -1."""
    ref = int(as_int(load_word(x + word(shared, SHARED.TENSOR_REF))))
    if ref == -1:
        clear_error()
    return ref


def address_of(shared: int, x: int, alone: int, waits: bool = True) -> int:
    """Return the address of a whole tensor's first element, once its writers are done and, if
    `alone` is 1, its readers; 0 before.  Other threads may run meanwhile if it `waits`.
    """
    ref, control = ref_of(shared, x), word(shared, SHARED.CONTROL)
    m, storage = words_at(control, ARRAY.WORDS), ref & OPERAND.STORAGE_MASK
    if ref == -1 or m[CTL.LEVEL] > 1 or not has_room(shared, 0):
        return 0
    counter = counter_now(shared)
    if counter == 0:  # a fork is made
        return 0
    before = load_word(counter + word(shared, SHARED.COUNTER_AT))
    if not is_settled(m, storage, before, alone != 0):
        if m[CTL.SETTLE] == 0 or not waits:
            return 0
        state = save_thread()  # others may run: a kernel that waits for one of them goes on
        settled = call_kernel(m[CTL.SETTLE], control, storage, before, alone, CALL_STREAM)
        restore_thread(state)
        if settled == 0 or not is_whole(shared, x) or ref_of(shared, x) != ref:
            return 0
    at = STO.AT + storage * STO.WORDS
    if m[at + STO.POISON] != 0 or m[at + STO.POINTER] == 0:
        return 0
    return m[at + STO.POINTER] + (ref >> OPERAND.STORAGE_BITS)


def bits_at(code: int, address: int) -> int:
    """The bits of an element, read as part of an aligned word: so never of a page beyond."""
    bits = load_word(address & -8) >> 8 * (address & 7)
    rest = 64 - 8 * (code & BYTES)
    if code & SIGNED != 0 or rest == 0:
        return bits << rest >> rest
    return bits & ((1 << (64 - rest)) - 1)


def float_at(code: int, address: int) -> float:
    """The element, of a dtype that is FLOATING, as a double."""
    bits = bits_at(code, address)
    return float(double_of(bits) if code & BYTES == 8 else single_of(bits))


def element(shared: int, code: int, address: int) -> int:
    """The element as `item()` has it: a new reference; FAILED."""
    if code & FLOATING != 0:
        return int(float_of(float_at(code, address)))
    bits = bits_at(code, address)
    if code & BOOLEAN != 0:
        return truth(shared, bits != 0)
    if code & SIGNED == 0 and bits < 0:
        return int(unsigned_of(bits))
    return int(int_of(bits))


def truth(shared: int, value: bool) -> int:
    """True or False, a new reference."""
    result = word(shared, SHARED.TRUE) if value else word(shared, SHARED.FALSE)
    incref(result)
    return result


def number(shared: int, how: int, code: int, address: int) -> int:
    """The element as the SITE's HOW says: a new reference; MISS or FAILED."""
    if how == AS_BOOL:
        if code & FLOATING != 0:
            return truth(shared, float_at(code, address) != 0.0)
        return truth(shared, bits_at(code, address) != 0)
    if how == AS_INT:
        if code & FLOATING != 0:
            return MISS
        code &= ~BOOLEAN
    if how == AS_FLOAT and code & FLOATING == 0:
        bits = bits_at(code, address)
        if code & SIGNED == 0 and bits < 0:
            return MISS
        return int(float_of(float(bits)))
    return element(shared, code, address)


def listed(shared: int, x: int, meta: int, code: int, address: int) -> int:
    """The elements of a tensor of up to two dimensions as lists: a new reference; MISS, FAILED."""
    shape = load_word(meta + word(shared, SHARED.META_SHAPE))
    stride = load_word(meta + word(shared, SHARED.META_STRIDE))
    ndim = as_int(load_word(meta + word(shared, SHARED.META_NDIM)))
    if ndim == 0:
        return element(shared, code, address)
    size = code & BYTES
    columns = as_int(tuple_item(shape, ndim - 1))
    step = as_int(tuple_item(stride, ndim - 1)) * size
    if ndim == 1:
        return row_of(shared, code, address, columns, step)
    if ndim != 2:
        return MISS
    rows, across = as_int(tuple_item(shape, 0)), as_int(tuple_item(stride, 0)) * size
    ref, rows_list = ref_of(shared, x), new_list(rows)
    if rows_list == 0:
        return FAILED
    for k in range(rows):
        row = row_of(shared, code, address + k * across, columns, step)
        if row == FAILED:
            decref(rows_list)
            return FAILED
        set_list_item(rows_list, k, row)
        # a collection may run what has given the tensor other memory
        if not is_whole(shared, x) or ref_of(shared, x) != ref:
            decref(rows_list)
            return MISS
    return int(rows_list)


def row_of(shared: int, code: int, address: int, count: int, step: int) -> int:
    """A list of `count` elements, `step` bytes apart; FAILED."""
    row = new_list(count)
    if row == 0:
        return FAILED
    for k in range(count):
        value = element(shared, code, address + k * step)
        if value == FAILED:
            decref(row)
            return FAILED
        set_list_item(row, k, value)
    return int(row)


def array(shared: int, x: int, meta: int, known: int) -> int:
    """An array on the memory of a tensor outside of the autograd graph, as `lent_array` of
    `flowvm.eager.values` makes it: a new reference; MISS or FAILED.
    """
    ndim = as_int(load_word(meta + word(shared, SHARED.META_NDIM)))
    if ndim > MOST_DIMENSIONS or not is_unrecorded(shared, x):
        return MISS
    status = own_storage(shared, x)
    if status != 1:
        return status
    loan = loan_of(shared, x)
    if loan == FAILED:
        return FAILED
    # on loan already: what another thread issues now waits for itself
    address = address_of(shared, x, 1)
    # others may have run, and a collection
    same = address != 0 and load_word(x + word(shared, SHARED.TENSOR_META)) == meta
    storage = load_word(loan + word(shared, SHARED.LOAN_STORAGE))
    if not same or load_word(x + word(shared, SHARED.TENSOR_STORAGE)) != storage:
        decref(loan)
        return MISS
    if not is_unrecorded(shared, x):
        decref(loan)
        return MISS
    shape = load_word(meta + word(shared, SHARED.META_SHAPE))
    stride = load_word(meta + word(shared, SHARED.META_STRIDE))
    dtype, size = tuple_item(known, 0), as_int(tuple_item(known, 1))
    lengths, steps = scratch(), scratch()
    for k in range(ndim):
        put_word(lengths, k, as_int(tuple_item(shape, k)))
        put_word(steps, k, as_int(tuple_item(stride, k)) * size)
    incref(dtype)
    result = new_array(
        word(shared, SHARED.ARRAY), dtype, ndim, lengths, steps, address, WRITEABLE, 0
    )
    if result == 0:
        decref(loan)
        return FAILED
    if set_base(result, loan) != 0:
        decref(result)
        return FAILED
    return int(result)


def loan_of(shared: int, x: int) -> int:
    """A Loan of the Storage of a tensor that has one: a new reference, or FAILED."""
    loan = allocate(word(shared, SHARED.LOAN), 0)
    if loan == 0:
        return FAILED
    storage = load_word(x + word(shared, SHARED.TENSOR_STORAGE))
    number = load_word(storage + word(shared, SHARED.STORAGE_ID))
    lend(loan, word(shared, SHARED.LOAN_STORAGE), storage)
    lend(loan, word(shared, SHARED.LOAN_ID), number)
    count_loan(shared, as_int(number), 1)
    return int(loan)


def count_loan(shared: int, storage: int, more: int) -> None:
    """Count one more or, by -1, one less who has the memory of a storage."""
    lent = word(shared, SHARED.LENT)
    put_word(lent, storage, word(lent, storage) + more)
    put_word(lent, 0, word(lent, 0) + more)


def end_loan(shared: int, loan: int) -> None:
    """Count a Loan no more that dies."""
    number = load_word(loan + word(shared, SHARED.LOAN_ID))
    if number != 0:  # else it had not begun
        count_loan(shared, as_int(number), -1)
