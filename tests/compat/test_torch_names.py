"""Rooms of PyTorch's and OneFlow's names, on a machine of one process and without a GPU."""

import pytest

import flowvm as flow
from flowvm import accelerator, comm, cuda, env, futures, mps, xpu


def test_accelerator_is_cuda_or_none():
    assert accelerator.is_available() == cuda.is_available()
    expected = flow.device("cuda") if cuda.is_available() else None
    assert accelerator.current_accelerator() == expected
    assert accelerator.device_count() == (cuda.device_count() if cuda.is_available() else 0)


def test_env_and_comm_are_of_one_process():
    assert (env.get_rank(), env.get_local_rank(), env.get_world_size()) == (0, 0, 1)
    assert env.get_node_size() == 1
    x = flow.tensor([1.0, 2.0])
    comm.all_reduce(x)
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("module", [mps, xpu])
def test_mps_and_xpu_have_no_devices(module):
    assert not module.is_available()
    assert module.device_count() == 0
    with pytest.raises(flow.errors.FlowError):
        module.synchronize()


def test_futures_keep_a_value_or_an_error():
    future = futures.Future()
    assert not future.done()
    future.set_result(7)
    assert future.done()
    assert future.wait() == 7
    assert future.value() == 7
    failed = futures.Future()
    failed.set_exception(ValueError("no luck"))
    with pytest.raises(ValueError, match="no luck"):
        failed.wait()
