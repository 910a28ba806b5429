"""A call that follows a course: what an earlier call of the function, with such metas and such
arguments, came to (`flowvm.eager.native.courses`), step by step, without a Python frame.

All steps make new tensors.  So whatever a step cannot do is a miss of the whole call: what was made
is dropped, and the function makes the call from its beginning.  Only where an operator's call is
out of the ordinary its twin makes that, and the course goes on.
"""

from __future__ import annotations

from flowvm.eager.native.call import changed_into, drop, issued_into, tuple_of
from flowvm.eager.native.cpython import (
    as_int,
    decref,
    dict_item,
    incref,
    int_of,
    put_word,
    scratch,
    tuple_item,
    tuple_size,
    vectorcall,
    word,
)
from flowvm.eager.native.keys import is_fixed, key_of
from flowvm.eager.native.lines import gradient_line_of, line_of
from flowvm.eager.native.making import give
from flowvm.eager.native.reading import all_whole, class_of, departs, is_whole
from flowvm.eager.native.regions import records
from flowvm.eager.native.viewing import bare_node, pieces_step, view_step
from flowvm.eager.native.ways import known, see
from flowvm.eager.native.words import (
    CALL,
    COURSE,
    FAILED,
    FRONT,
    INTO,
    LEARN,
    MISS,
    MOST_VALUES,
    PIECES,
    RECORD,
    REFUSED,
    SHARED,
    SITE,
    STEP,
)
from flowvm.vm.machine.lang import load_word


def by_course(site: int, args: int, count: int, names: int) -> int:
    """What a call gives that follows a course; LEARN where there may be one next time; MISS where
    there is none; FAILED.
    """
    shared = word(site, SITE.SHARED)
    if departs(shared, site):
        return MISS
    values, line = scratch(), scratch()
    if word(site, SITE.KIND) == FRONT:
        total = count if names == 0 else count + int(tuple_size(names))
        length = line_of(shared, args, total, names, line, values)
    else:
        length = gradient_line_of(shared, args, count if names == 0 else 0, line, values)
    if length <= FAILED:
        return length
    kept = known(shared, site, line, length)
    if kept != 0:
        incref(kept)
        return by_known(shared, site, kept, values)
    key = key_of(shared, line, length)
    if key <= FAILED:
        return key
    kept = dict_item(word(site, SITE.CACHE), key)
    incref(kept)
    decref(key)
    if kept == 0:
        return LEARN
    if as_int(tuple_item(kept, 0)) > LEARN and is_fixed(shared, line, length):
        see(shared, site, line, length, kept)
    return by_known(shared, site, kept, values)


def by_known(shared: int, site: int, kept: int, values: int) -> int:
    """The same, with what is kept of such calls, whose reference is stolen."""
    course = int(as_int(tuple_item(kept, 0)))
    result = course
    if course > LEARN:
        result = followed(shared, course, values)
    elif course == REFUSED:
        result = MISS
    if result > LEARN:
        put_word(site, SITE.HITS, word(site, SITE.HITS) + 1)
    decref(kept)
    return result


def followed(shared: int, course: int, values: int) -> int:
    """What the call gives, a new reference; MISS or FAILED.  `values` begins with its tensors."""
    given = word(course, COURSE.TENSORS)
    made, done, changes = given, 1, 0
    if word(course, COURSE.APART) != 0 and not are_apart(shared, values, given):
        return MISS
    for k in range(given):  # a list, or a Node, may let go of them meanwhile
        incref(word(values, k))
    for k in range(word(course, COURSE.STEPS)):
        step = course + 8 * (COURSE.WORDS + k * STEP.WORDS)
        kind = word(step, STEP.KIND)
        if kind == CALL:
            done = call_step(shared, step, values, made)
            if done == 1:
                made += word(word(step, STEP.SITE), SITE.OUTPUTS)
        elif kind == RECORD:
            done = record_step(shared, step, values)
        elif kind == INTO:
            done = into_step(shared, step, values)
            if done == MISS and changes != 0:
                done = copied(shared, step, values)
            changes = 1
        elif kind == PIECES:
            done = pieces_step(shared, step, values)
        else:
            done = view_step(shared, step, values, made)
            made += 1 if done == 1 else 0
        if done != 1:
            break
    if done == 1:
        done = given_back(shared, course, values)
    drop(values, made)
    return done


def are_apart(shared: int, values: int, count: int) -> bool:
    """Whether no two tensors are one, or on one Storage."""
    at, none = word(shared, SHARED.TENSOR_STORAGE), word(shared, SHARED.NONE)
    for k in range(1, count):
        storage = load_word(word(values, k) + at)
        for j in range(k):
            same = storage != none and storage == load_word(word(values, j) + at)
            if same or word(values, j) == word(values, k):
                return False
    return True


def given_back(shared: int, course: int, values: int) -> int:
    """The result, a new reference; FAILED."""
    place = word(course, COURSE.RESULT)
    if place >= 0:
        incref(word(values, place))
        return word(values, place)
    count, results = word(course, COURSE.RESULTS), scratch()
    for k in range(count):
        place = word(course, COURSE.GIVEN + k)
        x = word(shared, SHARED.NONE) if place < 0 else word(values, place)
        incref(x)
        put_word(results, k, x)
    made = tuple_of(results, count)
    kind = word(course, COURSE.CLASS)
    if made == 0 or kind == word(shared, SHARED.TUPLE):
        return made
    put_word(results, 0, kind)
    put_word(results, 1, made)
    named = vectorcall(word(shared, SHARED.NEW_TUPLE), results, 2, 0)
    decref(made)
    return int(named)


def fill(step: int, values: int, args: int) -> None:
    """The arguments of a step, borrowed."""
    for k in range(word(step, STEP.ARGUMENTS)):
        x = word(step, STEP.GIVEN + k)
        put_word(args, k, word(values, x) if x < MOST_VALUES else x)


def call_step(shared: int, step: int, values: int, at: int) -> int:
    """Call an operator: 1, and its outputs are the values from `at` on; FAILED."""
    site, call = word(step, STEP.SITE), scratch()
    args, outs, done = call + 8, values + 8 * at, MISS
    fill(step, values, args)
    if all_whole(shared, site, args):
        done = issued_into(shared, site, args, 0, word(step, STEP.MADE), outs)
    if done != MISS:
        return done
    put_word(site, SITE.MISSES, word(site, SITE.MISSES) + 1)
    put_word(call, 0, word(site, SITE.TWIN))
    result = vectorcall(word(shared, SHARED.THROUGH), call, word(step, STEP.ARGUMENTS) + 1, 0)
    count = word(site, SITE.OUTPUTS)
    if count == 1 or result == 0:
        put_word(outs, 0, result)
        return 1 if result != 0 else FAILED
    if class_of(shared, result) != word(shared, SHARED.TUPLE) or tuple_size(result) != count:
        decref(result)
        return MISS
    for k in range(count):
        x = tuple_item(result, k)
        incref(x)
        put_word(outs, k, x)
    decref(result)
    return 1


def into_step(shared: int, step: int, values: int) -> int:
    """Change a tensor that the call was given in place: 1; MISS, and it was not changed; FAILED."""
    site, args, last = word(step, STEP.SITE), scratch(), word(step, STEP.ARGUMENTS) - 1
    fill(step, values, args)
    target = word(args, last)
    if not all_whole(shared, site, args) or not is_whole(shared, target):
        return MISS
    storage = load_word(target + word(shared, SHARED.TENSOR_STORAGE))
    for k in range(word(site, SITE.INPUTS)):
        x = word(args, k)
        same = storage == load_word(x + word(shared, SHARED.TENSOR_STORAGE))
        if same and x != target and storage != word(shared, SHARED.NONE):
            return MISS  # in what arrangement is Python's to see
    return changed_into(shared, site, args, word(step, STEP.MADE), args + 8 * last)


def copied(shared: int, step: int, values: int) -> int:
    """Let Python make a change that is a copy: 1 or FAILED."""
    call = scratch()
    put_word(call, 0, word(shared, SHARED.COPY))
    put_word(call, 1, word(values, word(step, STEP.GIVEN + word(step, STEP.ARGUMENTS) - 1)))
    put_word(call, 2, word(values, word(step, STEP.GIVEN)))
    answer = vectorcall(word(shared, SHARED.THROUGH), call, 3, 0)
    decref(answer)
    return 1 if answer != 0 else FAILED


def record_step(shared: int, step: int, values: int) -> int:
    """Give a finished tensor its Node: 1; MISS or FAILED."""
    args, inputs, wanted = scratch(), word(step, STEP.INPUTS), 0
    fill(step, values, args)
    for k in range(inputs):
        edge = load_word(word(args, k) + word(shared, SHARED.TENSOR_NODE))
        if edge != word(shared, SHARED.NONE):
            wanted = 1
    if wanted == 0:
        return 1
    recorded = records(shared)
    if recorded != 1:
        return 1 if recorded == 0 else FAILED if recorded < 0 else MISS
    out = word(values, word(step, STEP.MADE))
    saves = word(step, STEP.ARGUMENTS) - inputs
    at = word(shared, SHARED.TENSOR_NODE)
    meta = load_word(out + word(shared, SHARED.TENSOR_META))
    node = bare_node(shared, step, args, inputs, saves, meta)
    if node <= FAILED:
        return node
    number = int_of(word(shared, SHARED.LAST))
    if number == 0 or load_word(out + at) != word(shared, SHARED.NONE):
        decref(number)
        decref(node)
        return FAILED if number == 0 else MISS
    give(node, word(shared, SHARED.NODE_SEQ), number)
    decref(word(shared, SHARED.NONE))
    give(out, at, node)
    return 1
