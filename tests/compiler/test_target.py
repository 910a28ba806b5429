"""Targets: how wide the vectors of loops are."""

import platform

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
