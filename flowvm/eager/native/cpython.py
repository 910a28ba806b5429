"""The functions of CPython's and NumPy's C APIs that native calls use, and words in memory.

References are int64 numbers, the addresses of objects; which of them are new, borrowed or stolen
is CPython's to say, and is said once more below.  All need the GIL, which a native call has, being
called by the interpreter.

Compiled code knows them by names of flowvm's own, which `provide_api` says the addresses of: so it
does not matter which of its names the interpreter's file exports, and kernels, which run without
the GIL, can never call them by mistake.
"""

from __future__ import annotations

import struct
from typing import Any

from flowvm.compiler.jit import provide
from flowvm.compiler.native import Intrinsic
from flowvm.loading.lazy import lazy
from flowvm.private.numpy import PLACES, array_function
from flowvm.private.objects import api_address, api_function
from flowvm.vm.machine.lang import load_word, store_word

PREFIX = "flowvm_api_"
_names: list[str] = []  # of all that are declared below
intrinsics = lazy("flowvm.eager.native.intrinsics")  # Numba, for a compilation only


def _external(name: str, signature: str) -> Any:
    def python(*values: int) -> Any:
        return api_function(name, signature, _address(name))(*values)

    def define() -> Any:
        return intrinsics.external(PREFIX + name, signature)

    _names.append(name)
    python.__name__ = python.__qualname__ = name
    return Intrinsic(python, define)


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


def _scratch() -> int:
    raise NotImplementedError("there is a stack where code is compiled")


bits_of: Any = Intrinsic(_bits_of, lambda: intrinsics.bits_of)
double_of: Any = Intrinsic(_double_of, lambda: intrinsics.double_of)
single_of: Any = Intrinsic(_single_of, lambda: intrinsics.single_of)
scratch: Any = Intrinsic(_scratch, lambda: intrinsics.scratch)


def word(table: int, k: int) -> int:
    """Word `k` of the table at an address."""
    return load_word(table + 8 * k)


def put_word(table: int, k: int, value: int) -> None:
    """Set it."""
    store_word(table + 8 * k, value)
