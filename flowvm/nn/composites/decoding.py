"""Labels out of what a network says of each step: `ctc_greedy_decoder`."""

from __future__ import annotations

from collections.abc import Sequence

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.meta.dtype import bool_, int64
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.rows.ctc_loss import lengths_of


# public: F
def ctc_greedy_decoder(
    log_probs: Tensor, input_lengths: Tensor | Sequence[int] | int, merge_repeated: bool = True
) -> tuple[Tensor, Tensor]:
    """OneFlow's: the labels along the most probable path, that of the best class of each step
    (Graves et al., 2006).  The last class is the blank, which is left out.

    log_probs       (T, N, C), floats, such as log_softmax gives
    input_lengths   (N), integers: how many steps of each sample count
    merge_repeated  whether a label that the step before has, too, is left out

    Gives (decoded, neg_sum_logits): int64 (N, T), the labels of a sample and then zeros; and
    (N, 1), minus the sum of the best log_probs, through which gradients go.  OutOfRangeError when a
    result is read, for a length below 0 or above T.

    >>> path = flow.tensor([0, 0, 2, 0, 1])  # of three classes; 2 is the blank
    >>> log_probs = F.one_hot(path, 3).float().log_softmax(-1).unsqueeze(1)
    >>> F.ctc_greedy_decoder(log_probs, (5,))[0]
    tensor([[0, 0, 1, 0, 0]])
    """
    name = "ctc_greedy_decoder"
    meta = need_tensor(name, "log_probs", log_probs)._meta
    if meta.ndim != 3 or meta.shape[2] == 0:
        raise ShapeError(f"{name}: log_probs are (T, N, C), C at least 1, got {tuple(meta.shape)}")
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"{name}: log_probs are floating point, got {meta.dtype.name}")
    t, n, classes = meta.shape
    count = ops.arange(t + 1, device=log_probs.device)
    checked_lengths = lengths_of(name, "input_lengths", input_lengths, n, log_probs)
    lengths = ops.index_select(count, 0, checked_lengths)  # which finds those that are none
    best, labels = (each.t() for each in log_probs.max(-1))
    inside = count[:t] < lengths.unsqueeze(1)
    is_shown = inside.logical_and(labels != classes - 1)
    if merge_repeated:
        first = ops.ones((n, min(t, 1)), dtype=bool_, device=log_probs.device)
        is_shown = is_shown.logical_and(ops.cat((first, labels[:, 1:] != labels[:, :-1]), 1))
    # what is left out goes behind
    places = ops.where(is_shown, is_shown.to(int64).cumsum(1) - 1, t)
    room = ops.zeros((n, t + 1), dtype=int64, device=log_probs.device)
    decoded = room.scatter(1, places, labels)[:, :t].contiguous()
    return decoded, -ops.where(inside, best, 0.0).sum(1, keepdim=True)
