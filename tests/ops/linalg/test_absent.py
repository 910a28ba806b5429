"""Calls that need LAPACK on a device: an error that says what to do."""

import pytest

import flowvm as flow
from flowvm.errors import DeviceError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.linalg.cuda.absent import absent


def test_factorizations_are_the_cpus():
    metas = (TensorMeta.of((2, 3), flow.float32), TensorMeta.of((3,), flow.float32))
    with pytest.raises(DeviceError, match=r"of \(2, 3\), \(3,\)\) is LAPACK's.*x\.cpu\(\)"):
        absent(None, metas, ())
