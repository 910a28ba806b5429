"""Call: the operands and attributes of a node, as translations ask for them."""

import numpy as np
import pytest

import flowvm as flow

pytest.importorskip("onnx")

from flowvm.onnx.call import Call
from tests.onnx_files.calls import call, run


def test_attributes_and_numbers_go_by_name():
    c = call([((2, 3), flow.float32)], {"dim": 1}, [((2, 3), flow.float32)], {"alpha": 0.5})
    assert isinstance(c, Call)
    assert c.attrs == {"dim": 1, "alpha": 0.5}
    assert c.count == 1
    assert c.out is c.outs[0]


def test_what_is_written_stands_for_absent_outputs():
    c = call([((4,), flow.float32), ((2,), flow.int64)])
    assert c.outs == [c.metas[0]]


def test_outputs_that_nobody_reads_are_not_wanted():
    outs = [((2,), flow.float32), ((2,), flow.int64)]
    c = call([((2,), flow.float32)], {}, outs, read=[1])
    assert [c.wants(0), c.wants(1)] == [False, True]


def test_values_are_cut_cast_and_numbered():
    c = call([((2, 5), flow.float32)], {}, [((2, 2), flow.float64)])
    part = c.cut(c.x(), 1, 1, 3)
    wide = c.as_out(part, flow.float32)
    assert c.as_out(wide, flow.float64) == wide  # no cast to what it is
    out = c.w.op("Add", wide, c.number(0.5))  # of the output's dtype
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(run(c, out, [x]), x[:, 1:3] + 0.5)
