"""Kernels lowered for this machine can be lowered for aarch64: `tools.check_aarch64`, on a few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = """
from flowvm.compiler import jit
from tools import check_aarch64
text = '''
declare void @llvm.x86.sse2.lfence()
define i32 @entry() {
  call void @llvm.x86.sse2.lfence()
  ret i32 0
}'''
for text in (text, text.replace("llvm.x86.sse2.", "").replace("@lfence", "@elsewhere")):
    try:
        print(check_aarch64.crossed(jit.Lowered([jit.llvm.parse_assembly(text)], "entry"), "f"))
    except ValueError as error:
        print(error)
"""


def test_a_loop_and_a_kernel_compile_for_it():
    command = [sys.executable, "-m", "tools.check_aarch64", "loops: settle", "exp"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "aarch64-unknown-linux-gnu" in process.stdout
    assert "0 failures" in process.stdout


def test_code_for_one_processor_is_refused_by_name():
    process = subprocess.run(
        [sys.executable, "-c", FENCE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, second = process.stdout.splitlines()
    assert "one processor alone" in first
    assert "llvm.x86.sse2.lfence" in first
    assert second == "f"
