"""Object files put into memory without LLVM, against LLVM's own loader."""

import ctypes
import platform
import struct
import subprocess
import sys

import pytest

from flowvm.compiler import jit, objects
from flowvm.compiler.objects import UnknownForm, place_object
from flowvm.errors import CompileError

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        platform.machine() != "x86_64" or sys.platform != "linux", reason="object files of x86-64"
    ),
]
# constants of several alignments, a table of jumps, a variable, C's and a provided function
PROGRAM = """
@table = internal constant [4 x i64] [i64 11, i64 22, i64 33, i64 44], align 32
@calls = internal global i64 5, align 8
@zeros = internal global [9 x i64] zeroinitializer, align 64
declare i32 @abs(i32)
declare i64 @flowvm_test_twice(i64)
define i64 @entry(i64 %x) {
  %small = and i64 %x, 7
  switch i64 %small, label %other [
    i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e i64 5, label %f
  ]
a:
  br label %join
b:
  %vb = call i64 @inner(i64 %x)
  br label %join
c:
  %narrow = trunc i64 %x to i32
  %minus = sub i32 0, %narrow
  %vc32 = call i32 @abs(i32 %minus)
  %vc = sext i32 %vc32 to i64
  br label %join
d:
  %vd = call i64 @flowvm_test_twice(i64 %x)
  br label %join
e:
  %fx = sitofp i64 %x to double
  %fy = fmul double %fx, 0x3FF4CCCCCCCCCCCD
  %ve = fptosi double %fy to i64
  br label %join
f:
  %at = getelementptr [9 x i64], ptr @zeros, i64 0, i64 8
  %vf = load volatile i64, ptr %at
  br label %join
other:
  br label %join
join:
  %v = phi i64 [-1, %a], [%vb, %b], [%vc, %c], [%vd, %d], [%ve, %e], [%vf, %f], [7, %other]
  %n = load i64, ptr @calls
  %m = add i64 %n, 1
  store i64 %m, ptr @calls
  %scaled = mul i64 %v, 1000
  %r = add i64 %scaled, %m
  ret i64 %r
}
define internal i64 @inner(i64 %x) noinline {
  %k = and i64 %x, 3
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %k
  %v = load i64, ptr %at
  ret i64 %v
}
"""
_TWICE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 2 * x)


def object_of(text, symbol):
    from llvmlite import binding

    module = jit._linked(jit.Lowered([], "entry", written=(binding.parse_assembly(text),)), symbol)
    return jit._target_machine(3).emit_object(module)


def function_at(address):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


@pytest.fixture
def twice():
    jit.provide("flowvm_test_twice", ctypes.cast(_TWICE, ctypes.c_void_p).value)


def test_the_same_file_in_both_ways(twice):
    code = object_of(PROGRAM, "flowvm_both")
    addresses = place_object(code, jit._address_of)
    assert list(addresses) == ["flowvm_both"]
    ours = function_at(addresses["flowvm_both"])
    theirs = function_at(jit._loaded_by_llvm("both", code))
    numbers = [*range(40), 1 << 20, (1 << 20) + 1]
    assert [ours(x) for x in numbers] == [theirs(x) for x in numbers]
    # the 1st call of `inner` and of the provided function, by hand: calls are 43 and 44 by now
    assert ours(1) == 22_000 + 5 + len(numbers) + 1
    assert ours(11) == 22_000 + 5 + len(numbers) + 2


def test_two_copies_have_variables_of_their_own(twice):
    code = object_of(PROGRAM, "flowvm_own")
    first, second = (
        function_at(place_object(code, jit._address_of)["flowvm_own"]) for _ in range(2)
    )
    assert [first(0), first(0), second(0)] == [-994, -993, -994]


def test_code_and_constants_cannot_be_written(twice):
    address = place_object(object_of(PROGRAM, "flowvm_pages"), jit._address_of)["flowvm_pages"]
    with open("/proc/self/maps") as file:
        for line in file:
            pages, rights = line.split()[:2]
            begin, end = (int(number, 16) for number in pages.split("-"))
            if begin <= address < end:
                assert rights == "r-xp"
                return
    pytest.fail("the code lies in no page")


PROGRAM_OF_KERNELS = """
import sys
import flowvm as flow
x = flow.ones(17, 5).requires_grad_()
(flow.softmax(x @ flow.ones(5, 4), -1).sum() + x.to(flow.float16).sum()).backward()
assert x.grad.tolist() == [[1.0] * 5] * 17, x.grad
print("llvmlite" in sys.modules)
"""


def test_no_kernel_of_a_warm_process_needs_llvm():
    for _ in range(2):  # the first may compile
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM_OF_KERNELS], capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == "False", done.stderr


def test_other_files_are_refused(twice):
    code = object_of(PROGRAM, "flowvm_other")
    wrong = {
        "not ELF": b"x" + code[1:],
        "32 bits": code[:4] + b"\x01" + code[5:],
        "another machine": code[:18] + struct.pack("<H", 183) + code[20:],
        "a whole program": code[:16] + struct.pack("<H", 2) + code[18:],
    }
    for data in wrong.values():
        with pytest.raises(UnknownForm):
            place_object(data, jit._address_of)
    changed = bytearray(code)
    for section in objects._sections(code):
        if section.kind == objects._RELOCATIONS:
            kind = section.offset + 8
            changed[kind : kind + 4] = struct.pack("<I", 2)  # R_X86_64_PC32
    with pytest.raises(UnknownForm, match="relocation of kind 2"):
        place_object(bytes(changed), jit._address_of)


def test_a_thread_local_variable_is_left_to_llvm():
    text = """
    @mine = thread_local global i64 3
    define i64 @entry(i64 %x) {
      %v = load i64, ptr @mine
      %r = add i64 %v, %x
      ret i64 %r
    }
    """
    with pytest.raises(UnknownForm):
        place_object(object_of(text, "flowvm_local"), jit._address_of)


def test_a_symbol_that_is_nowhere_is_named():
    text = "declare i64 @no_such_thing(i64)\n" + PROGRAM.replace(
        "@flowvm_test_twice", "@no_such_thing"
    ).replace("declare i64 @no_such_thing(i64)\n", "")
    with pytest.raises(UnknownForm, match="no_such_thing"):
        place_object(object_of(text, "flowvm_nowhere"), jit._address_of)


def test_an_object_file_without_its_function(twice):
    with pytest.raises(CompileError, match="defines no function"):
        jit._load_object("0" * 40, object_of(PROGRAM, "flowvm_another"))
