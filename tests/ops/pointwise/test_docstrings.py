"""An op's docstring has the shapes, dtypes and errors of its declaration, and they are true."""

import pytest

import flowvm as flow


@pytest.mark.parametrize("name", ["abs", "erf", "exp", "floor", "neg", "sign"])
def test_a_docstring_says_which_dtypes_there_are(name: str) -> None:
    op = getattr(flow, name)
    text, _, errors = op.__doc__.partition("A tensor of x's shape")[2].partition("DTypeError for")
    errors = errors.partition(".")[0]
    for kind, x in (("bools", flow.tensor([True])), ("complex numbers", flow.tensor([1j]))):
        if kind in errors:
            with pytest.raises(flow.errors.DTypeError):
                op(x)
        else:
            result = op(x)
            assert result.shape == x.shape
            same = ("default dtype" if kind == "bools" else "real for complex") not in text
            assert (result.dtype is x.dtype) == same
