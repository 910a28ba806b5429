"""Targets: how wide the vectors of loops are."""

import platform
import sys
from types import SimpleNamespace

import pytest

from flowvm.compiler import jit, target
from flowvm.compiler.target import LEVELS, level

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")
LOOP = """
define void @entry(ptr noalias %x, ptr noalias %y, i64 %n) {
start:
  br label %loop
loop:
  %i = phi i64 [0, %start], [%next, %loop]
  %a = getelementptr float, ptr %x, i64 %i
  %b = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %a
  %w = fmul float %v, %v
  store float %w, ptr %b
  %next = add i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}
"""


def compiled_for(of, monkeypatch):
    """The assembly of LOOP for a target; any x86-64 can compile for any other."""
    from llvmlite import binding

    monkeypatch.setattr(jit, "target", lambda: of)
    machine = jit._target_machine.__wrapped__(3)
    monkeypatch.setattr(jit, "_target_machine", lambda optimized: machine)
    lowered = jit.Lowered([binding.parse_assembly(LOOP)], "entry", loops_only=True)
    module, _, _ = jit._object(lowered, "entry")
    return machine.emit_assembly(module)


@x86
@pytest.mark.parametrize(
    ("name", "register"), [("x86-64-v4", "zmm"), ("x86-64-v3", "ymm"), ("x86-64-v2", "xmm")]
)
def test_loops_fill_the_registers_of_a_level(name, register, monkeypatch):
    text = compiled_for(level(name), monkeypatch)
    multiplications = [line for line in text.splitlines() if "mulps" in line]
    assert multiplications, text
    assert all(f"%{register}" in line for line in multiplications[:4]), text
    wider = {"xmm": "ymm", "ymm": "zmm"}.get(register)
    assert wider is None or f"%{wider}" not in text


@x86
def test_loops_fill_the_registers_of_this_processor(monkeypatch):
    """Processors for which LLVM prefers half of a register are such, too."""
    if not target.host().has("avx512f"):
        pytest.skip("no AVX-512 here")
    assert "%zmm" in compiled_for(target.host(), monkeypatch)


def test_a_processor_without_such_registers_is_named_as_llvm_names_it():
    for name in LEVELS:
        assert ("-prefer-256-bit" in level(name).features) == (name == "x86-64-v4")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A list with an entry for each question to LLVM, and a cache of its own."""
    calls = []
    monkeypatch.setattr(target, "config", SimpleNamespace(cache_dir=tmp_path))
    ask = target._from_llvm
    monkeypatch.setattr(target, "_from_llvm", lambda: calls.append(1) or ask())
    return calls


@x86
@pytest.mark.skipif(sys.platform != "linux", reason="facts of Linux")
def test_llvm_is_asked_once_for_a_processor(asked, tmp_path, monkeypatch):
    of_llvm = target.host()
    assert target.host.__wrapped__() == of_llvm
    assert len(asked) == 1
    assert target.host.__wrapped__() == of_llvm
    assert len(asked) == 1
    (file,) = tmp_path.glob("*.cpu")
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"+avx", b"-avx", 1), b"0" * 64 + b"{}"):
        file.write_bytes(damaged)
        before = len(asked)
        assert target.host.__wrapped__() == of_llvm
        assert len(asked) == before + 1, damaged
        assert file.read_bytes() == whole
    monkeypatch.setattr(target, "version_of", lambda package: "0.0")
    before = len(asked)
    assert target.host.__wrapped__() == of_llvm
    assert len(asked) == before + 1
    assert len(list(tmp_path.glob("*.cpu"))) == 2


@x86
def test_where_linux_says_nothing_llvm_is_always_asked(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(target, "_facts", lambda: b"")
    of_llvm = target.host()
    assert target.host.__wrapped__() == target.host.__wrapped__() == of_llvm
    assert len(asked) == 2
    assert not list(tmp_path.glob("*.cpu"))
