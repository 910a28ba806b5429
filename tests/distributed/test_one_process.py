"""Collectives, messages of objects and works in a group of one process."""

import pytest

import flowvm as flow
from flowvm import distributed as dist
from flowvm.distributed import collectives, functional, nn, objects
from flowvm.distributed.works import Work


@pytest.fixture(autouse=True)
def group():
    if dist.is_initialized():  # another test's, in this process
        dist.destroy_process_group()
    dist.init_process_group()
    yield
    dist.destroy_process_group()


def test_collectives_of_one_process_keep_its_values():
    x = flow.tensor([1.0, 2.0])
    work = collectives.all_reduce(x, async_op=True)
    assert isinstance(work, Work)
    assert work.wait() is True
    assert work.is_completed()
    collectives.broadcast(x, 0)
    gathered = [flow.zeros(2)]
    collectives.all_gather(gathered, x)
    assert gathered[0].tolist() == x.tolist() == [1.0, 2.0]


def test_functional_and_nn_collectives_return_their_result():
    x = flow.tensor([1.0, 2.0], requires_grad=True)
    (3 * nn.all_reduce(x)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    y = flow.ones(2)
    assert functional.wait_tensor(functional.all_reduce(y, "sum", [0])).tolist() == [1.0, 1.0]


def test_objects_of_one_process_are_its_own():
    whole = [None]
    objects.all_gather_object(whole, {"rank": 0})
    assert whole == [{"rank": 0}]
    values = ["a", 2]
    objects.broadcast_object_list(values, 0)
    assert values == ["a", 2]
