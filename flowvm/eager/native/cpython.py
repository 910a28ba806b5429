"""The functions of CPython's and NumPy's C APIs that native calls use, and words in memory.

References are int64 numbers, the addresses of objects; which of them are new, borrowed or stolen
is CPython's to say, and is said once more below.  All need the GIL, which a native call has, being
called by the interpreter.

Compiled code knows them by names of flowvm's own, which `provide_api` says the addresses of: so it
does not matter which of its names the interpreter's file exports, and kernels, which run without
the GIL, can never call them by mistake.
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial

from flowvm.compiler.jit import provide
from flowvm.compiler.native import Intrinsic
from flowvm.loading.lazy import lazy
from flowvm.private.numpy import PLACES, array_function
from flowvm.private.objects import api_address, api_function
from flowvm.vm.machine import texts
from flowvm.vm.machine.lang import load_word, store_word

PREFIX = "flowvm_api_"
_names: list[str] = []  # of all that are declared below
words = lazy("flowvm.compiler.words")  # LLVM, for a compilation only


def _external(name: str, signature: str) -> Intrinsic:
    def python(*values: int) -> object:
        return api_function(name, signature, _address(name))(*values)

    def text(result: str, *values: str) -> str:
        returns, takes = words.signature_of(signature)
        call = texts.c_call(PREFIX + name, returns, takes, result, values)
        return call.replace("sext", "zext") if signature.startswith("uint32") else call

    _names.append(name)
    python.__name__ = python.__qualname__ = name
    gives = "double" if signature.startswith("float64") else "i64"
    return Intrinsic(python, None, text=text, gives=gives)


def provide_api() -> None:
    """Let compiled code call the functions below; VMError if this CPython lacks one."""
    for name in _names:
        provide(PREFIX + name, _address(name))


def _address(name: str) -> int:
    return array_function(name) if name in PLACES else api_address(name)


# references: 0 is allowed
incref = _external("Py_IncRef", "void(int64)")
decref = _external("Py_DecRef", "void(int64)")
# new: an instance whose slots are empty; 0 and an exception if there is no memory
allocate = _external("PyType_GenericAlloc", "int64(int64, int64)")
# errors; `error_occurred` gives a borrowed reference
error_occurred = _external("PyErr_Occurred", "int64()")
error_matches = _external("PyErr_ExceptionMatches", "int32(int64)")
clear_error = _external("PyErr_Clear", "void()")
# at three addresses: takes the error from there, whole; and gives it back
fetch_error = _external("PyErr_Fetch", "void(int64, int64, int64)")
make_error = _external("PyErr_NormalizeException", "void(int64, int64, int64)")
error_is = _external("PyErr_GivenExceptionMatches", "int32(int64, int64)")
set_traceback = _external("PyException_SetTraceback", "int32(int64, int64)")
traceback_of = _external("PyException_GetTraceback", "int64(int64)")  # new, or 0
set_error = _external("PyErr_SetObject", "void(int64, int64)")
restore_error = _external("PyErr_Restore", "void(int64, int64, int64)")
# numbers; new references, or -1 and maybe an exception
int_of = _external("PyLong_FromLongLong", "int64(int64)")
as_int = _external("PyLong_AsLongLong", "int64(int64)")
as_float = _external("PyFloat_AsDouble", "float64(int64)")
float_of = _external("PyFloat_FromDouble", "int64(float64)")
unsigned_of = _external("PyLong_FromUnsignedLongLong", "int64(int64)")
int_as_float = _external("PyLong_AsDouble", "float64(int64)")
is_true = _external("PyObject_IsTrue", "int32(int64)")
# bytes; new, with what is in the memory if the first is 0; the address of the first
new_bytes = _external("PyBytes_FromStringAndSize", "int64(int64, int64)")
bytes_at = _external("PyBytes_AsString", "int64(int64)")
# tuples; new: `new_tuple`; borrowed: `tuple_item`; stolen: what `set_tuple_item` is given
new_tuple = _external("PyTuple_New", "int64(int64)")
tuple_size = _external("PyTuple_Size", "int64(int64)")
tuple_item = _external("PyTuple_GetItem", "int64(int64, int64)")
set_tuple_item = _external("PyTuple_SetItem", "int32(int64, int64, int64)")
list_as_tuple = _external("PyList_AsTuple", "int64(int64)")
# lists likewise, dicts (borrowed), sets, strings, sequences (new)
new_list = _external("PyList_New", "int64(int64)")
list_size = _external("PyList_Size", "int64(int64)")
list_item = _external("PyList_GetItem", "int64(int64, int64)")
append = _external("PyList_Append", "int32(int64, int64)")
set_list_item = _external("PyList_SetItem", "int32(int64, int64, int64)")
set_list_slice = _external("PyList_SetSlice", "int32(int64, int64, int64, int64)")
dict_size = _external("PyDict_Size", "int64(int64)")
dict_next = _external("PyDict_Next", "int32(int64, int64, int64, int64)")
dict_item = _external("PyDict_GetItemWithError", "int64(int64, int64)")
dict_set = _external("PyDict_SetItem", "int32(int64, int64, int64)")
dict_contains = _external("PyDict_Contains", "int32(int64, int64)")
dict_delete = _external("PyDict_DelItem", "int32(int64, int64)")
new_dict = _external("PyDict_New", "int64()")
set_size = _external("PySet_Size", "int64(int64)")
set_contains = _external("PySet_Contains", "int32(int64, int64)")
set_add = _external("PySet_Add", "int32(int64, int64)")
set_discard = _external("PySet_Discard", "int32(int64, int64)")
character = _external("PyUnicode_ReadChar", "uint32(int64, int64)")
sequence_item = _external("PySequence_GetItem", "int64(int64, int64)")
# attributes; new
attribute = _external("PyObject_GetAttr", "int64(int64, int64)")
# calls and iterators; new
call_nothing = _external("PyObject_CallNoArgs", "int64(int64)")
call_one = _external("PyObject_CallOneArg", "int64(int64, int64)")
call_method = _external("PyObject_VectorcallMethod", "int64(int64, int64, int64, int64)")
vectorcall = _external("PyObject_Vectorcall", "int64(int64, int64, int64, int64)")
iterator = _external("PyObject_GetIter", "int64(int64)")
next_item = _external("PyIter_Next", "int64(int64)")
weak_reference = _external("PyWeakref_NewRef", "int64(int64, int64)")
# arrays, of NumPy's C API; its ints are numbers whose high half is not looked at.  New, and steals
# the dtype, the second; steals what shall be the base
new_array = _external(
    "PyArray_NewFromDescr", "int64(int64, int64, int64, int64, int64, int64, int64, int64)"
)
set_base = _external("PyArray_SetBaseObject", "int32(int64, int64)")
# threads: the state of this one, and a number that no other has
this_thread = _external("PyThreadState_Get", "int64()")
thread_number = _external("PyThreadState_GetID", "int64(int64)")
save_thread = _external("PyEval_SaveThread", "int64()")  # lets go of the GIL
restore_thread = _external("PyEval_RestoreThread", "void(int64)")
thread_ident = _external("PyThread_get_thread_ident", "int64()")  # threading.get_ident()
# frames; borrowed: `this_frame`; new: `frame_code`, `frame_before`, 0 where there is none
this_frame = _external("PyEval_GetFrame", "int64()")
frame_code = _external("PyFrame_GetCode", "int64(int64)")
frame_before = _external("PyFrame_GetBack", "int64(int64)")
frame_last = _external("PyFrame_GetLasti", "int32(int64)")


def _bits_of(value: float) -> int:
    """The 64 bits of a float."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def _double_of(bits: int) -> float:
    """The float of these 64 bits."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def _single_of(bits: int) -> float:
    """The 32-bit float of the low bits of a number, as a float."""
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFFFFFF))[0])


def _single_bits(value: float) -> int:
    """The 32 bits of the 32-bit float that is nearest to a float."""
    return int(struct.unpack("I", ctypes.c_float(value))[0])


def _put_int32(address: int, bits: int) -> None:
    """Set the 4 bytes at an address."""
    ctypes.c_int32.from_address(address).value = bits


def _put_int16(address: int, bits: int) -> None:
    """Set the 2 bytes at an address."""
    ctypes.c_int16.from_address(address).value = bits


def _put_int8(address: int, bits: int) -> None:
    """Set the byte at an address."""
    ctypes.c_int8.from_address(address).value = bits


def _scratch() -> int:
    raise NotImplementedError("there is a stack where code is compiled")


def _bits_text(result: str, value: str) -> str:
    return f"{result} = bitcast double {value} to i64"


def _double_text(result: str, bits: str) -> str:
    return f"{result} = bitcast i64 {bits} to double"


def _single_text(result: str, bits: str) -> str:
    return f"""
{result}.low = trunc i64 {bits} to i32
{result}.f = bitcast i32 {result}.low to float
{result} = fpext float {result}.f to double
"""


def _single_bits_text(result: str, value: str) -> str:
    return f"""
{result}.f = fptrunc double {value} to float
{result}.low = bitcast float {result}.f to i32
{result} = zext i32 {result}.low to i64
"""


def _put_text(size: int, result: str, address: str, bits: str) -> str:
    return f"""
{result}.low = trunc i64 {bits} to i{8 * size}
{result}.p = inttoptr i64 {address} to ptr
store i{8 * size} {result}.low, ptr {result}.p
"""


def _scratch_text(result: str) -> str:
    return f"""
{result}.at = alloca [{SCRATCH} x i64], align 8
{result} = ptrtoint ptr {result}.at to i64
"""


SCRATCH = 40  # words
bits_of: Intrinsic = Intrinsic(_bits_of, None, text=_bits_text)
double_of: Intrinsic = Intrinsic(_double_of, None, text=_double_text, gives="double")
single_of: Intrinsic = Intrinsic(_single_of, None, text=_single_text, gives="double")
single_bits: Intrinsic = Intrinsic(_single_bits, None, text=_single_bits_text)
put_int32: Intrinsic = Intrinsic(_put_int32, None, text=partial(_put_text, 4))
put_int16: Intrinsic = Intrinsic(_put_int16, None, text=partial(_put_text, 2))
put_int8: Intrinsic = Intrinsic(_put_int8, None, text=partial(_put_text, 1))
scratch: Intrinsic = Intrinsic(_scratch, None, text=_scratch_text)


def word(table: int, k: int) -> int:
    """Word `k` of the table at an address."""
    return load_word(table + 8 * k)


def put_word(table: int, k: int, value: int) -> None:
    """Set it."""
    store_word(table + 8 * k, value)
