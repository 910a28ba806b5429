"""`flow.backends`: what flowvm does not use says so, and switches keep what was set."""

import pytest

from flowvm.backends import mkl, mkldnn, mps, nnpack, openmp, opt_einsum, quantized
from flowvm.backends._switches import SwitchModule


@pytest.mark.parametrize("module", [mkl, mkldnn, mps, nnpack, openmp, opt_einsum])
def test_mkl_mkldnn_mps_nnpack_openmp_and_opt_einsum_are_not_used(module):
    assert module.is_available() is False


def test_mps_has_no_macos():
    assert not mps.is_built()
    assert not mps.is_macos_or_newer(14, 0)


def test_quantized_has_no_engine():
    assert quantized.engine == "none"
    assert quantized.supported_engines == ["none"]
    assert opt_einsum.get_opt_einsum() is None
    assert not mkldnn.is_acl_available()


def test_switches_of_a_module_are_its_attributes():
    assert isinstance(mkldnn, SwitchModule)
    before = mkldnn.deterministic
    with mkldnn.flags(deterministic=not before):
        assert mkldnn.deterministic is not before
    assert mkldnn.deterministic is before
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = mkldnn.nothing_of_that_name
