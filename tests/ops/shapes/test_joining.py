"""Tensors put together by one instruction, of many pieces and large planes, against NumPy."""

import numpy as np
import pytest

import flowvm as flow


def tensors(rng, *shapes, dtype="float32"):
    arrays = [rng.integers(-99, 99, s).astype(dtype) for s in shapes]
    return arrays, [flow.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("count", [1, 2, 25, 26, 130])
def test_any_number(rng, count):
    for dim in (0, 1):
        shapes = [(3, 4) if i % 3 else ((2, 4), (3, 5))[dim] for i in range(count)]
        arrays, parts = tensors(rng, *shapes)
        np.testing.assert_array_equal(flow.cat(parts, dim).numpy(), np.concatenate(arrays, dim))
        same, parts = tensors(rng, *[(2, 3)] * count)
        for at in (0, 1, -1):
            np.testing.assert_array_equal(flow.stack(parts, at).numpy(), np.stack(same, at))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float32", "int64"])
def test_strided_parts_of_any_size(rng, dtype):
    arrays, parts = tensors(rng, (70, 90), (90, 70), (140, 90), (1, 90), dtype=dtype)
    arrays[1:3] = arrays[1].T, arrays[2][::2]
    parts[1:3] = parts[1].t(), parts[2][::2]
    for list_, other in ((arrays[:3], parts[:3]), (arrays, parts)):
        np.testing.assert_array_equal(flow.cat(other).numpy(), np.concatenate(list_))
    spread = [parts[3].expand(70, 90), parts[0]]
    expected = np.stack([np.broadcast_to(arrays[3], (70, 90)), arrays[0]], -1)
    np.testing.assert_array_equal(flow.stack(spread, -1).numpy(), expected)


def test_empty_parts_and_mixed_dtypes(rng):
    a = flow.from_numpy(rng.standard_normal((2, 3)))
    empty = flow.zeros(0, dtype=flow.float64)
    assert flow.cat([empty, a, empty], 1).shape == (2, 3)
    assert flow.cat([empty, empty]).shape == (0,)
    assert flow.cat([a, flow.zeros(0, 3), a]).shape == (4, 3)
    mixed = [flow.tensor([1, 2]), flow.tensor([0.5]), flow.tensor([True])]
    assert flow.cat(mixed).tolist() == [1, 2, 0.5, 1]
    many = [flow.tensor([i]) for i in range(40)]
    assert flow.cat([empty.to(flow.int64), *many]).tolist() == list(range(40))


def test_gradients_of_many_parts(rng):
    parts = [flow.from_numpy(rng.standard_normal((2, 2))).requires_grad_() for _ in range(30)]
    weights = flow.from_numpy(rng.standard_normal((60, 2)))
    (flow.cat(parts) * weights).sum().backward()
    for i, p in enumerate(parts):
        np.testing.assert_array_equal(p.grad.numpy(), weights[2 * i : 2 * i + 2].numpy())


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", MODES)
def test_borders(rng, mode):
    """Planes of many elements, few, and none that could be told apart; and the gradient, which is
    the adjoint: <pad(x), g> is <x, gradient>.
    """
    for shape in ((2, 3, 40, 50), (5, 2, 8, 9), (1, 1, 7, 200)):
        array = rng.integers(-9, 9, shape).astype(np.float64)
        for widths in ((1, 2, 3, 2), (0, 3, 1, 0), (0, 0, 0, 0), (-1, 2, 3, -2)):
            x = flow.from_numpy(array.copy()).requires_grad_()
            out = flow.pad(x, widths, mode)
            cut = tuple(
                slice(max(0, -a), n - max(0, -b))
                for n, a, b in zip(shape[2:], widths[2::-2], widths[3::-2], strict=True)
            )
            pairs = [(0, 0), (0, 0), *zip(widths[2::-2], widths[3::-2], strict=True)]
            pairs = [(max(0, a), max(0, b)) for a, b in pairs]
            expected = np.pad(array[:, :, *cut], pairs, MODES[mode])
            np.testing.assert_array_equal(out.detach().numpy(), expected)
            g = flow.from_numpy(rng.integers(-9, 9, expected.shape).astype(np.float64))
            (out * g).sum().backward()
            assert (expected * g.numpy()).sum() == (array * x.grad.numpy()).sum()


def test_rolls_and_turns(rng):
    x = rng.integers(0, 99, (30, 40, 50)).astype(np.int32)
    t = flow.from_numpy(x)
    for shifts, dims in (((7, -3), (0, 2)), (5, 1), (-1234, None), ((3, 4), (1, 1)), (40, 1)):
        np.testing.assert_array_equal(t.roll(shifts, dims).numpy(), np.roll(x, shifts, dims))
    for k in range(-1, 5):
        for dims in ((0, 1), (2, 0), (1, 2)):
            np.testing.assert_array_equal(t.rot90(k, dims).numpy(), np.rot90(x, k, dims))
    np.testing.assert_array_equal(t.permute(2, 0, 1).flip((0, 2)).numpy(),
                                  np.flip(x.transpose(2, 0, 1), (0, 2)))  # fmt: skip
