"""A helper guesses the calls of a model's layers, and compiles their kernels."""

import os
import subprocess
import sys
from pathlib import Path
from threading import get_ident

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.compiler import helpers
from flowvm.nn import forecast


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2)])
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        forecast.foretell(get_ident())
        x = self.first(x)
        for block in self.blocks:
            x = block(x) + x
        return self.head(self.pool(x).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 16), nn.Embedding(5, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, words):
        forecast.foretell(get_ident())
        x = self.embed(words) + self.place(flow.arange(5))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out((q @ k.transpose(-2, -1)).softmax(-1) @ v)


@pytest.fixture(autouse=True)
def _ahead():
    """Guess, as a user's process does: tests have no helpers."""
    with flow.config(ahead=True):
        yield


def _jobs(monkeypatch, takes=lambda job: True):
    """The list of jobs about layers from now on."""
    jobs = []

    def ahead(job):
        if job.startswith(forecast.JOB):
            jobs.append(job)
        return takes(job)

    monkeypatch.setattr(helpers, "ahead", ahead)
    return jobs


@pytest.mark.parametrize(
    ("model", "x"), [(Images, flow.ones(2, 3, 16, 16)), (Words, flow.ones(3, 5, dtype=flow.int64))]
)
def test_guesses_are_the_inputs(model, x, monkeypatch):
    """Each layer's own input, the model's first one for a table of places."""
    jobs = _jobs(monkeypatch)
    inputs = {}
    net = model()
    for layer in net.modules():
        if not [*layer.children()]:
            layer.register_forward_pre_hook(
                lambda layer, args: inputs.update({repr(layer): tuple(args[0].shape)})
            )
    net(x)
    net(x)
    (job,) = jobs  # once a model
    layers, arguments = forecast._layers_of(job.split(":", 2)[2])
    assert arguments == (tuple(x.shape), x.dtype)
    guesses = [(repr(forecast._module(*pair[:1], forecast._valueless)), pair[1][0])
               for pair in forecast._inputs(layers, arguments)]  # fmt: skip
    if model is Words:
        inputs["Embedding(5, 16)"] = tuple(x.shape)
    assert dict(guesses) == inputs
    assert len(guesses) == len(inputs)


def test_a_layer_that_cannot_be_sent_is_no_error(monkeypatch):
    jobs = _jobs(monkeypatch)
    net = Words()
    net.norm.note = lambda: None
    net(flow.ones(3, 5, dtype=flow.int64))
    assert jobs == []


def test_a_long_model_is_told_of_in_part(monkeypatch):
    """The warning names the last layers: this process begins with the first ones."""
    jobs = _jobs(monkeypatch, lambda job: len(job) < 900)
    net = Words()
    for k in range(40):
        net.add_module(f"more{k}", nn.Linear(k + 1, 2 * k + 1))
    net(flow.ones(3, 5, dtype=flow.int64))
    lengths = [*map(len, jobs)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-2] >= 900 > lengths[-1]


AHEAD = """
from threading import get_ident
import flowvm as flow
from flowvm import nn
from flowvm.compiler import helpers, jit
from flowvm.nn import forecast
jobs = []
helpers.ahead = lambda job: forecast.JOB in job and not jobs.append(job)
class Net(nn.Module):
    told = False
    def __init__(self):
        super().__init__()
        self.pool, self.norm = nn.MaxPool1d(2), nn.LayerNorm(4)
    def forward(self, x):
        if not self.told:
            return forecast.foretell(get_ident())
        return self.norm(self.pool(x))
net, x = Net(), flow.ones(2, 3, 8)
net(x)
(job,) = jobs
before = jit.stats().compiled
helpers._do(job, helpers.AHEAD)
ahead = jit.stats().compiled
net.told = True
net(x).tolist()
print(ahead - before, jit.stats().compiled - ahead)
"""


def test_the_call_finds_what_was_compiled(tmp_path: Path) -> None:
    settings = {"FLOWVM_CACHE_DIR": str(tmp_path), "FLOWVM_CALLS": "python", "FLOWVM_AHEAD": "1"}
    process = subprocess.run(
        [sys.executable, "-c", AHEAD], env=os.environ | settings, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    ahead, missing = map(int, process.stdout.split())
    assert ahead >= 2
    assert missing == 0
