"""The model scripts: their loss curves agree, eager, as graphs, and with PyTorch where it is."""

import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "tutorials" / "models"
SHOWN = {
    "gpt": ("curves agree over 20 steps", "the same without the cache"),
    "lstm_language_model": ("curves agree over 20 steps",),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_model_trains_as_it_should(name: str) -> None:
    process = subprocess.run(
        [sys.executable, str(MODELS / f"{name}.py")], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    for shown in SHOWN[name]:
        assert shown in process.stdout
