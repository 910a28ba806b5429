"""The VM on devices: values are the CPU's, in every order that events allow a simulated GPU.

Memory is reused and given back; a failed instruction poisons the results that depend on it.
"""

import random

import numpy as np
import pytest

import flowvm as flow
from flowvm.cuda.driver.streams import streams
from flowvm.errors import DeviceError, OutOfMemoryError, OutOfRangeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL


def run_program(rng, place, lanes):
    """Updates whose order shows, on tensors that are moved, replaced, viewed and dropped; with the
    same numbers on every device.
    """
    tensors = [flow.full((2, 3), float(k + 1)).to(place) for k in range(4)]
    calls = []
    for step in range(40):
        a, b = (rng.randrange(len(tensors)) for _ in range(2))
        what = rng.randrange(7)
        lane = lanes[rng.randrange(len(lanes))]
        with lane:
            if what == 0:
                tensors[a].mul_(0.5).add_(step)
            elif what == 1:
                tensors[a] = tensors[a] * 0.25 + tensors[b]
            elif what == 2:
                tensors[a].t()[0].sub_(tensors[b].t()[1])
            elif what == 3:
                tensors[a] = tensors[a].cpu().add(1.0).to(place)
            elif what == 4:
                tensors[b].copy_(tensors[a].flip(0))
            elif what == 5:
                calls.append(tensors[a].cpu().clone())
            else:
                tensors[a] = flow.full((2, 3), float(step), device=place) + tensors[b]
    return [t.numpy() for t in (*calls, *tensors)]


class Here:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@pytest.mark.parametrize("case", range(3))
def test_random_programs_on_several_streams(device, seed, case):
    other = flow.cuda.Stream()

    def elsewhere():
        return flow.cuda.stream(other)

    class Lane:
        def __enter__(self):
            self.inner = elsewhere()
            return self.inner.__enter__()

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    expected = run_program(random.Random(seed + case), "cpu", [Here(), Here()])
    results = run_program(random.Random(seed + case), device, [Here(), Lane()])
    for k, (a, b) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_array_equal(a, b, f"result {k}")


def test_the_sequential_engine_agrees(device, seed):
    expected = run_program(random.Random(seed), "cpu", [Here()])
    with flow.vm.sequential():
        results = run_program(random.Random(seed), device, [Here()])
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_is_reused_and_given_back(device):
    count = streams(0).counters
    flow.vm.sync()
    engine.storages.release_dead()
    engine.waits.wait_idle()
    before = count[CTL.PEAK_BYTES] = int(count[CTL.LIVE_BYTES])
    x = flow.ones(1 << 19, device=device)
    for _ in range(8):
        x = x.reshape(1 << 9, -1)[:, :8].contiguous().expand(8, -1, -1).clone()  # little work
        x = x.reshape(-1)
    assert int(count[CTL.PEAK_BYTES]) - before < 50 << 20, "blocks were not reused"
    del x
    engine.storages.release_dead()
    engine.waits.wait_idle()
    assert int(count[CTL.LIVE_BYTES]) == before
    reserved = int(count[CTL.RESERVED_BYTES])
    flow.cuda.empty_cache()
    assert int(count[CTL.RESERVED_BYTES]) < reserved


def test_a_copy_to_the_host_that_nobody_wants_harms_nothing(device):
    """The copy's memory is free again before the device writes to it: no list of free blocks is in
    it.
    """
    x = flow.full((256,), 7.0, device=device)
    for _ in range(100):
        x.cpu()
    copies = [x.cpu() for _ in range(20)]
    assert [int(k.sum().item()) for k in copies] == [7 * 256] * 20


def test_large_copies_go_through_the_pinned_buffers(device):
    big = flow.arange(5_000_000).to(flow.float32)  # 20 MB: more than all buffers hold
    on_device = big.to(device)
    big.add_(1)  # after the copy in program order, so it must not be seen there
    assert (on_device.cpu() == flow.arange(5_000_000)).all().item()


def test_what_fails_poisons_what_depends_on_it_on_every_stream(device):
    x = flow.ones(4, 3, device=device)
    bad = x[flow.tensor([1, 9], device=device)]
    with flow.cuda.stream(flow.cuda.Stream()):
        far = bad * 2 + x[:2]
    home = far.cpu() + 1
    fine = x + 1
    for lost in (home, far, bad):
        with pytest.raises(OutOfRangeError, match=r"index 9 is out of bounds .* size 4"):
            lost.numpy()
    assert fine.sum().item() == 24


def test_more_memory_than_there_is(device):
    total = flow.cuda.mem_get_info()[1]
    large = flow.empty(total // 4 + 1024, device=device).sum()  # float32
    with pytest.raises(OutOfMemoryError, match="could not get"):
        large.item()
    assert flow.ones(3, device=device).sum().item() == 3
    assert flow.ones(3).sum().item() == 3


@pytest.mark.parametrize("how", ["memory", "index"])
def test_what_a_failed_step_leaves_of_parameters(device, how):
    """Without memory, parameters stay as they were.

    An index error that only the device sees comes late: updates before it are named, everything
    else stays.
    """
    model = flow.nn.Sequential(flow.nn.Linear(3, 4), flow.nn.Linear(4, 2)).to(device)
    sgd = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        return loss

    x = flow.ones(5, 3, device=device)
    step(x).item()
    before = {name: p.detach().cpu().numpy() for name, p in model.named_parameters()}
    if how == "memory":
        bad = x * flow.empty(flow.cuda.mem_get_info()[1] // 4 + 1024, device=device).sum()
    else:
        bad = x[flow.tensor([1, 9], device=device)]
    loss = step(bad)
    with pytest.raises(OutOfMemoryError if how == "memory" else OutOfRangeError):
        loss.item()
    lost = {one.name for one in flow.vm.restore().lost if one.begun}
    assert not lost or how == "index"
    for name, p in model.named_parameters():
        if name in lost:
            with pytest.raises(OutOfRangeError):
                p.cpu().numpy()
        else:
            np.testing.assert_array_equal(p.detach().cpu().numpy(), before[name])
    if not lost:
        assert np.isfinite(step(x).item())


def test_tensors_of_two_devices_do_not_mix(device):
    with pytest.raises(DeviceError, match=r"all tensors must be on one device, got .*cuda:0"):
        flow.ones(3, device=device) + flow.ones(3)
    if flow.cuda.device_count() < 2:
        pytest.skip("there is one device")
    on_device = flow.arange(6, device="cuda:1")
    assert on_device.to("cuda:0").device == flow.device("cuda:0")
    assert on_device.to("cuda:0").tolist() == list(range(6))


def test_new_tensors_on_a_default_device(device):
    last = flow.device("cuda", flow.cuda.device_count() - 1)
    with last:
        x = flow.zeros(3)
        assert (x.device, flow.randn(2).device) == (last, last)
        assert flow.zeros_like(flow.ones(2, device="cpu")).device.type == "cpu"
    assert flow.zeros(3).device.type == "cpu"
    for tensor in (
        flow.arange(4, device=device),
        flow.linspace(0, 1, 4, device=device),
        flow.eye(2, device=device),
        flow.tensor([1, 2], device=device),
        flow.full((2,), 7, device=device),
        flow.empty(2, device=device),
        flow.randint(0, 9, (3,), device=device),
        flow.randperm(4, device=device),
        flow.tril_indices(2, 2, device=device),
    ):
        assert tensor.device.type == "cuda"
        assert "device='cuda:0'" in repr(tensor)
