"""Errors and memory of a device that goes on: also on a real one."""

import traceback

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, OutOfMemoryError

MIB = 1 << 20


@pytest.fixture
def little(device):
    """The VM may hold 64 MiB more of the device than it does."""
    flow.cuda.synchronize()
    flow.cuda.empty_cache()
    total = flow.cuda.get_device_properties().total_memory
    held = flow.cuda.memory_reserved()
    flow.cuda.set_per_process_memory_fraction((held + 64 * MIB) / total)
    yield device
    flow.cuda.set_per_process_memory_fraction(1.0)
    flow.cuda.empty_cache()


def block(mib):
    """A tensor that has so much memory, once the device is told of it."""
    return flow.empty(mib * MIB, dtype=flow.uint8, device="cuda")


def test_mixed_devices_are_said_on_the_callers_line(device):
    x, y = flow.ones(3, device=device), flow.ones(3)
    for call in (
        lambda: flow.add(x, y),
        lambda: x.reshape(3, 1) @ y.reshape(1, 3),
        lambda: flow.cat([x, y]),
        lambda: flow.where(x > 0, x, y),
        lambda: flow.nn.functional.linear(x, y.reshape(1, 3)),
    ):
        with pytest.raises(DeviceError, match=r"one device, got .*c(uda:0|pu)") as caught:
            call()
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert last.filename == __file__, last
    assert (x + 1).sum().item() == 6


def test_an_index_of_no_device(device):
    count = flow.cuda.device_count()
    for call in (
        lambda: flow.ones(1, device=f"cuda:{count}"),
        lambda: flow.ones(1).to(f"cuda:{count + 6}"),
        lambda: flow.cuda.set_device(count),
        lambda: flow.cuda.Stream(f"cuda:{count}"),
        lambda: flow.cuda.synchronize(count),
    ):
        with pytest.raises(DeviceError, match=rf"{count} CUDA device|1 CUDA device here"):
            call()


def test_out_of_memory_shows_who_holds_it_and_the_rest_goes_on(little):
    held = block(30)
    flow.cuda.synchronize()
    bad = block(50)
    with pytest.raises(OutOfMemoryError, match=r"could not get 52428800 bytes") as caught:
        bad.sum().item()
    notes = "\n".join(caught.value.__notes__)
    assert "memory" in notes
    assert "cuda:0" in notes
    assert "30.0" in notes  # MiB of `held`, which is named
    assert held.numel() == 30 * MIB
    del held, bad, caught
    assert block(50).numel() == 50 * MIB
    flow.cuda.synchronize()


def test_what_other_streams_keep_is_given_back_for_one_that_needs_it(little, rng):
    mine = flow.cuda.Stream()
    with flow.cuda.stream(mine):
        tensor = flow.from_numpy(rng.integers(0, 255, 100)).to("cuda") + 1
        dead = [block(10) for _ in range(3)] + [block(1) for _ in range(12)]
        flow.cuda.synchronize()
    total = tensor.sum().item()
    del dead
    flow.cuda.synchronize()
    before = flow.cuda.memory_reserved()
    large = block(48)
    large[-3:].fill_(1)
    assert large[-3:].sum().item() == 3
    assert flow.cuda.memory_reserved() < before + 48 * MIB
    assert tensor.sum().item() == total


def test_the_fraction_of_a_device_is_checked_and_told(little):
    limit = flow.cuda.get_per_process_memory_fraction()
    assert 0 < limit < 1
    with pytest.raises(ArgumentTypeError, match="expected a float, got int"):
        flow.cuda.set_per_process_memory_fraction(1)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match="is not a fraction from 0 to 1"):
            flow.cuda.set_per_process_memory_fraction(wrong)
    assert flow.cuda.get_per_process_memory_fraction() == limit


def test_peaks_of_what_is_used_and_held(device):
    flow.cuda.synchronize()
    flow.cuda.empty_cache()
    flow.cuda.reset_peak_memory_stats()
    used, held = flow.cuda.memory_allocated(), flow.cuda.memory_reserved()
    assert (flow.cuda.max_memory_allocated(), flow.cuda.max_memory_reserved()) == (used, held)
    x = block(20)
    flow.cuda.synchronize()
    del x
    flow.cuda.synchronize()
    flow.cuda.empty_cache()
    stats = flow.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == flow.cuda.max_memory_allocated() == used + 20 * MIB
    assert stats["reserved_bytes.all.peak"] == flow.cuda.max_memory_reserved() == held + 20 * MIB
    assert stats["reserved_bytes.all.current"] == flow.cuda.memory_reserved() == held


def test_small_blocks_go_back_with_all_of_their_slab(device):
    flow.cuda.synchronize()
    flow.cuda.empty_cache()
    held = flow.cuda.memory_reserved()
    small = [flow.empty(1 << 16, device=device) for _ in range(40)]  # 10 MiB
    block = small[17]
    block[:3].fill_(17)
    flow.cuda.synchronize()
    assert flow.cuda.memory_reserved() >= held + 8 * MIB
    del small
    flow.cuda.synchronize()
    flow.cuda.empty_cache()
    assert flow.cuda.memory_reserved() <= held + 4 * MIB
    assert block.cpu().numpy()[:3].tolist() == [17.0] * 3
