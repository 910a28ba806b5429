"""A private name that is gone is reported; flowvm does without one that is only for speed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from flowvm.commands.doctor import FAIL, INFO, OK, private_names
from flowvm.compiler import jit, native, shortcuts
from flowvm.errors import CompileError, DeviceError, VMError
from flowvm.private import cpython, scipy
from flowvm.private.cpython import CPYTHON
from flowvm.private.llvmlite import LLVMLITE
from flowvm.private.numba import NUMBA
from flowvm.private.numba_cuda import NUMBA_CUDA, SIMULATOR
from flowvm.private.numpy import NUMPY
from flowvm.private.scipy import SCIPY
from flowvm.private.table import MISSING, SKIPPED, Package, Use, found_at

QUICK = [use.name for use in NUMBA.uses.values() if use.replaces]


@pytest.fixture
def anew():
    """Numba's names are looked for anew, in the test and behind it."""

    def forget():
        NUMBA.forget()
        shortcuts._replacements.cache_clear()
        shortcuts.pipeline.cache_clear()

    forget()
    yield
    forget()


def change(monkeypatch, name):
    """Numba's own function behind a shortcut means the same, but reads otherwise."""
    place, attribute = re.fullmatch(r"(.*)[.:](\w+)", NUMBA.uses[name].replaces[0]).groups()
    owner = found_at(place)
    plain = getattr(owner, attribute)

    def changed(*args, **kwargs):
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, changed)


# --- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table", [CPYTHON, LLVMLITE, NUMBA, NUMPY, SCIPY], ids=lambda t: t.distribution
)
def test_all_is_as_tested_here(table):
    assert [s for s in table.report() if s.verdict != OK] == []


def test_numba_cuda_is_as_tested_here():
    pytest.importorskip("numba.cuda")
    from numba import config

    table = SIMULATOR if config.ENABLE_CUDASIM else NUMBA_CUDA
    assert [s for s in table.report() if s.verdict != OK] == []


def test_a_name_that_no_table_has_is_a_mistake_of_ours():
    with pytest.raises(AttributeError, match="not a private name of numba"):
        NUMBA.require("something")


def test_nothing_is_looked_for_before_it_is_used():
    program = (
        "import sys, flowvm.private.numba, flowvm.private.numba_cuda, flowvm.private.scipy\n"
        "print('numba' in sys.modules or 'scipy' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.stdout == "False\n", process.stderr


# --- essential --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "attribute"),
    [
        ("numba.core.registry", "CPUDispatcher"),
        ("numba.core.dispatcher", "_FunctionCompiler"),
        ("numba.core.codegen:CPUCodeLibrary", "_get_module_for_linking"),
        ("numba.core.sigutils", "normalize_signature"),
    ],
)
def test_what_kernels_need_and_is_gone_is_an_error_that_says_so(
    anew, monkeypatch, where, attribute
):
    monkeypatch.delattr(found_at(where), attribute)
    monkeypatch.setattr(native, "_frontend", native._Frontend)

    def twice(x):
        return helped(x) * 2

    with pytest.raises(CompileError) as raised:
        jit.native(twice, "int64(int64)", facts=(where, attribute))
    text = str(raised.value)
    assert where in text
    assert attribute in text
    assert f"numba {NUMBA.version}" in text
    assert NUMBA.versions in text
    (bad,) = [check for check in private_names() if check.verdict == FAIL]
    assert where in bad.text
    assert "missing" in bad.text
    assert "pip install 'numba==" in bad.fix


def helped(x):
    return x + 1


def test_every_package_raises_its_own_error():
    for table, error in ((SIMULATOR, DeviceError), (CPYTHON, VMError), (SCIPY, CompileError)):
        broken = Package(
            table.distribution, table.tested, (Use("gone", "os:nothing", "is not there"),),
            error=table.error,
        )  # fmt: skip
        with pytest.raises(error, match="os:nothing, which is not there, is not what it was"):
            broken.require("gone")
        assert [s.verdict for s in broken.report()] == [MISSING]


# --- shortcuts --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_a_shortcut_whose_target_changed_is_skipped_with_one_warning(anew, monkeypatch, name):
    change(monkeypatch, name)
    with pytest.warns(RuntimeWarning, match=rf"without 1 of its shortcuts .*: {name} ") as caught:
        assert not NUMBA.usable(name)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(NUMBA.usable(other) for other in QUICK if other != name)
        shortcuts._replacements()
    (skipped,) = [check for check in private_names() if "skipped" in check.text]
    assert skipped.verdict == INFO
    assert NUMBA.uses[name].where in skipped.text


def test_a_shortcut_whose_target_is_gone_is_skipped(anew, monkeypatch):
    from numba.core.runtime.context import NRTContext

    def places():
        NUMBA.forget()
        shortcuts._replacements.cache_clear()
        return [(owner, name) for owner, name, _ in shortcuts._replacements()]

    counts = [(NRTContext, "incref"), (NRTContext, "decref")]
    others = [place for place in places() if place not in counts]
    assert len(others) == len(places()) - 2
    monkeypatch.delattr(NRTContext, "decref")
    with pytest.warns(RuntimeWarning, match="without 1 of its shortcuts"):
        assert places() == others
    assert [s.use.name for s in NUMBA.report() if s.verdict == SKIPPED] == ["counts"]


def test_what_is_compiled_without_shortcuts_is_the_same(anew, monkeypatch):
    from tests.compiler.test_shortcuts import code

    quick = code()
    # without "function_passes" functions are simplified twice: other code, which means the same
    for name in QUICK:
        if name != "function_passes":
            change(monkeypatch, name)
    NUMBA.forget()
    shortcuts._replacements.cache_clear()
    shortcuts.pipeline.cache_clear()
    with pytest.warns(RuntimeWarning, match="results are the same") as caught:
        slow = code()
    assert len(caught) == 1
    assert [name for _, name, _ in shortcuts._replacements()] == ["_optimize_functions"]
    assert slow.splitlines() == quick.splitlines()


def test_the_key_of_a_kernel_is_the_same_without_shortcuts(anew, monkeypatch):
    from flowvm.compiler.dependencies import source_key

    key = source_key(native.lower, shortcuts.shortcuts)
    change(monkeypatch, "variables")
    with pytest.warns(RuntimeWarning):
        assert not NUMBA.usable("variables")
    assert source_key(native.lower, shortcuts.shortcuts) == key


# --- the other packages -----------------------------------------------------------------------


def test_a_routine_that_lapack_has_not_is_an_error():
    with pytest.raises(CompileError, match=r"scipy .* has no routine dnothing"):
        scipy.lapack_routine("dnothing")


def test_a_scipy_without_openblas_is_told_by_doctor_alone(monkeypatch):
    monkeypatch.setattr(scipy, "openblas_threads", lambda: None)
    (skipped,) = [check for check in private_names() if "skipped" in check.text]
    assert skipped.verdict == INFO
    assert "no OpenBLAS of its own" in skipped.text


UNFOUND = """
import sys
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == "numba.cuda":
            raise RuntimeError("no libcudart.so")
sys.meta_path.insert(0, Fails())
import flowvm as flow
from flowvm.commands.doctor import private_names
print(*private_names(), sep="\\n")
try:
    flow.ones(2, device="cuda")
except flow.errors.DeviceError as error:
    print(error)
"""


def test_a_numba_cuda_without_cuda_is_told_of_in_a_line():
    """The import may raise anything where CUDA's runtime is missing, in the simulator too."""
    environment = {**os.environ, "FLOWVM_CUDA_DRIVER": "simulator"}
    output = subprocess.run(
        [sys.executable, "-c", UNFOUND],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    lines = [line for line in output.stdout.splitlines() if "libcudart" in line]
    assert [INFO in line for line in lines] == [True, False], output
    assert "cannot be imported (no libcudart.so)" in lines[1]


@pytest.mark.skipif(np.__version__.startswith("1."), reason="Numba itself asks for it there")
def test_numpy_keeps_its_names_while_numba_cuda_is_imported():
    """Numba's arrays ask for np.row_stack, which NumPy 2.5 no longer has."""
    pytest.importorskip("numba.cuda")
    program = """
import importlib, sys, types
import numpy as np
vars(np).pop("row_stack", None)
class Watched(types.ModuleType):
    def __setattr__(self, name, value):
        assert name != "row_stack"
        super().__setattr__(name, value)
np.__class__ = Watched
from flowvm.private.numba_cuda import ARRAYS, NUMBA_CUDA
arrays = NUMBA_CUDA.arrays
assert arrays is sys.modules[ARRAYS]
assert not hasattr(np, "row_stack")
assert arrays.np is np
assert arrays.make_array.__globals__ is vars(arrays)
def imports():
    import numpy
    return numpy
assert types.FunctionType(imports.__code__, vars(arrays))() is np
assert importlib.import_module(ARRAYS) is arrays
print("well")
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.stdout == "well\n", process.stderr


# --- CPython ----------------------------------------------------------------------------------


def test_references_that_are_not_counted_hold_for_ever(monkeypatch):
    monkeypatch.setattr(cpython, "_SOLE", cpython._SOLE + 1)
    assert "getrefcount says" in cpython._counting()
    (status,) = [s for s in CPYTHON.report() if s.verdict != OK]
    assert (status.use.name, status.verdict) == ("refcounts", SKIPPED)


def test_a_counter_is_read_without_taking_a_number():
    import itertools

    counter = itertools.count(41)
    assert next(counter) == 41
    assert [cpython.next_of(counter), cpython.next_of(counter), next(counter)] == [42, 42, 42]


@pytest.mark.parametrize(
    ("probe", "broken"),
    [
        ("_counter", ("next_of", lambda counter: 7)),
        ("_loads", ("loads_of", lambda code, first: iter(()))),
        ("_imports", ("imports_of", lambda code: iter(()))),
        ("_raises", ("raises", lambda code: False)),
        ("_signals", ("checks_for_signals", lambda *args: ["CALL"])),
    ],
)
def test_probes_see_what_is_wrong(monkeypatch, probe, broken):
    assert getattr(cpython, probe)() == ""
    monkeypatch.setattr(cpython, *broken)
    assert getattr(cpython, probe)() != ""
