"""PyTorch's switches of the process: questions are answered, settings are remembered."""

import pytest

import flowvm as flow
from flowvm.eager.autocast import autocast_mode


def test_deterministic_algorithms():
    flow.use_deterministic_algorithms(True, warn_only=True)
    assert flow.are_deterministic_algorithms_enabled()
    assert flow.is_deterministic_algorithms_warn_only_enabled()
    flow.set_deterministic_debug_mode("error")
    assert flow.get_deterministic_debug_mode() == 2
    flow.use_deterministic_algorithms(False)
    assert not flow.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="loud"):
        flow.set_deterministic_debug_mode("loud")
    with pytest.raises(TypeError, match="mode"):
        flow.use_deterministic_algorithms("yes")


def test_threads_and_warnings():
    flow.set_num_interop_threads(2)
    assert flow.get_num_interop_threads() == 2
    flow.set_num_interop_threads(1)
    with pytest.raises(ValueError, match="positive"):
        flow.set_num_interop_threads(0)
    flow.set_warn_always(True)
    assert flow.is_warn_always_enabled()
    flow.set_warn_always(False)
    assert flow.set_flush_denormal(True) is False


def test_autocast_is_set():
    x = flow.ones(2, 2)
    try:
        flow.set_autocast_dtype("cpu", flow.float16)
        assert flow.get_autocast_cpu_dtype() is flow.float16
        with flow.autocast("cpu"):
            assert (x @ x).dtype is flow.float16
            flow.set_autocast_cpu_dtype(flow.bfloat16)  # of this region
            assert (x @ x).dtype is flow.bfloat16
        assert (x @ x).dtype is flow.float32
        flow.set_autocast_enabled("cpu", True)
        assert flow.is_autocast_enabled("cpu")
        assert (x @ x).dtype is flow.float16
        with flow.autocast("cpu", enabled=False):
            assert (x @ x).dtype is flow.float32
        assert (x @ x).dtype is flow.float16
    finally:
        flow.set_autocast_enabled("cpu", False)
        flow.set_autocast_dtype("cpu", flow.bfloat16)
    assert not flow.is_autocast_enabled("cpu")
    assert (x @ x).dtype is flow.float32
    assert flow.get_autocast_dtype("cpu") is flow.bfloat16
    flow.set_autocast_enabled(True)
    assert flow.get_autocast_gpu_dtype() is flow.float16
    flow.set_autocast_enabled(False)
    assert not flow.is_autocast_enabled()
    for call in (
        lambda: flow.set_autocast_dtype("cpu", flow.float32),
        lambda: flow.set_autocast_dtype("tpu", flow.float16),
        lambda: flow.set_autocast_enabled("tpu", True),
        lambda: flow.set_autocast_cache_enabled(False),
    ):
        with pytest.raises(ValueError, match="set_autocast"):
            call()
    flow.set_autocast_cache_enabled(True)
    assert flow.is_autocast_cache_enabled()


def test_autocast_forgets():
    w = flow.ones(2, 2, requires_grad=True)
    with flow.autocast("cpu"):
        first = w @ w
        flow.clear_autocast_cache()
        assert not autocast_mode().now().casts.of(None)
        assert flow.equal(w @ w, first)
        assert autocast_mode().now().casts.of(None)
    flow.clear_autocast_cache()


def test_autocast_is_seen():
    assert not flow.is_autocast_enabled()
    assert flow.get_autocast_dtype("cpu") is flow.bfloat16
    with flow.autocast("cpu", flow.float16):
        assert flow.is_autocast_enabled("cpu")
        assert flow.get_autocast_cpu_dtype() is flow.float16
    flow.set_anomaly_enabled(True)
    assert flow.is_anomaly_enabled()
    flow.set_anomaly_enabled(False)
    assert not flow.is_anomaly_enabled()
