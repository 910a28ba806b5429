"""`torch._tensor_str`: the options of printing as PyTorch's record has them."""

import pytest

import flowvm as flow
from flowvm.compat import tensor_str


def test_options_are_those_that_hold():
    before = tensor_str.PRINT_OPTS.precision
    with flow.printoptions(precision=2, sci_mode=False):
        assert (tensor_str.PRINT_OPTS.precision, tensor_str.PRINT_OPTS.sci_mode) == (2, False)
        x = flow.tensor([1.23456])
        assert tensor_str._str(x) == tensor_str._tensor_str(x, 4) == repr(x) == "tensor([1.23])"
    assert tensor_str.PRINT_OPTS.precision == before
    with pytest.raises(AttributeError, match="other"):
        _ = tensor_str.PRINT_OPTS.other
