"""Estimates of kernels' speed without a GPU: from PTX, and how `tools.sass` reads listings."""

import re

import numpy as np
import pytest
from on_device import meta_of
from played import named

from flowvm.ops.declare.cuda.lowering import launch_of
from tools import sass
from tools.inspect_ptx import ENOUGH, flags, per_byte

GENERIC = re.compile(r"\b(?:ld|st)\.(?!global|shared|param|local|const)\w")
WIDE_DIVISION = re.compile(r"\b(?:div|rem)\.[su]64")
LISTING = """
        .section .text.k
k:
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.U16 R2, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E R8, desc[UR4][R2.64+0x10] ;
.L_x_2:
        /*0040*/                   DADD R10, R10, R12 ;
        /*0050*/              @!P0 STG.E.64 desc[UR4][R2.64], R10 ;
        /*0060*/              @P1 BRA `(.L_x_2) ;
        /*0070*/                   F2F.F64.F32 R14, R4 ;
        /*0080*/              @P2 BRA `(.L_x_1) ;
        /*0090*/                   LD.E R9, desc[UR4][R2.64] ;
        /*00a0*/                   EXIT ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
        /*00c0*/                   NOP;
$k$__cuda_sm20_div_s64:
        /*00d0*/                   LDG.E R4, desc[UR4][R2.64] ;
"""


def test_a_listing_is_read_loop_by_loop():
    lines = sass._instructions(LISTING)
    assert sum(kind != "label" for kind, _ in lines) == 12
    inner, straight = (sass._loop(*part) for part in sass._parts(lines))
    assert (inner.stores, inner.loads, inner.doubles, inner.branches) == ((8,), (), 1, 1)
    assert inner.instructions == 3
    assert straight.straight
    assert straight.loads == (2, 16, 4, 4)
    assert straight.ahead == straight.moved == 26
    assert straight.generic == 1


def test_what_is_flagged():
    loop = sass.Loop(100, (4,), (4,), 16, 0, 0, 0, 1, 0, 0, False)
    slow = sass.Found(40, 0, 0, 0, 100, (0, 0), (loop,))
    assert per_byte(slow) == 12.5 > ENOUGH
    assert flags(slow) == ["too many instructions"]
    fine = slow._replace(loops=(loop._replace(instructions=20),), spilled=8)
    assert flags(fine) == ["spills"]
    few = fine._replace(registers=250)
    assert flags(few) == ["spills", "little on its way"]


def launch(op, arrays, attrs=()):
    return launch_of(op, tuple(meta_of(a) for a in arrays), attrs)


X = np.zeros((40, 64), np.float32)
NORM = named("normalize", ("input", "weight", "bias"))
LAUNCHES = {
    "flat": lambda: launch(named("add"), [X, X]),
    "rows": lambda: launch(named("add"), [X, X[0]]),
    "strided": lambda: launch(named("add"), [X.T, X.T[:, ::-1]]),
    "softmax": lambda: launch(named("softmax"), [X], (1,)),
    "layer_norm": lambda: launch(NORM, [X, X[0], X[0]], ("layer", (64,), 1e-5, True)),
    "dropout": lambda: launch(named("dropout"), [X.reshape(-1)]),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_memory_is_global_and_nothing_is_divided(ptx_of, name):
    """Check that pointers are known to be global, and that no division is left.

    If a pointer was a number, NVVM does not know that it is global.  Then a load waits for every
    store to shared memory before it.
    """
    for text in ptx_of.launch(LAUNCHES[name](), ((9, 0),)):
        assert not GENERIC.findall(text)
        assert not WIDE_DIVISION.findall(text)
        if name in ("flat", "rows", "dropout"):
            assert "ld.global.v4" in text
            assert "st.global.v4" in text
