"""Every op that takes float16 takes bfloat16."""

import bfloat16_checks
import pytest


@pytest.mark.parametrize("op", bfloat16_checks.EACH)
@pytest.mark.product(4)
def test_bfloat16(op, seed):
    bfloat16_checks.check(op, seed)
