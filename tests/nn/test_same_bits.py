"""Training gives the same bits however often and by however many workers: see
`tools.campaign.bits`, which does the same for as long as it is told.
"""

from __future__ import annotations

import pytest

from tools.campaign import bits

REPETITIONS = 5


@pytest.mark.parametrize("by", ["eager", "graph"])
@pytest.mark.parametrize("model", bits.MODELS)
def test_a_training_run_has_the_same_bits_whoever_computes_it(model, by):
    for _ in range(REPETITIONS):
        for workers in bits.WORKERS:
            assert bits.check([model, workers, by]) == "the same"


def test_another_seed_has_other_bits(monkeypatch):
    expected = bits.reference("mlp")
    monkeypatch.setattr(bits, "STEPS", 2)
    assert bits.trained("mlp", 1, "eager")[-1] != expected[-1]
