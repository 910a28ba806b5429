"""Whole models: one process trains and saves its graphs, a fresh one loads them, captures nothing
and goes on with the same bits.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import numpy as np
import flowvm as flow
from flowvm.graph.capture.capture import Capture
from flowvm.nn.graph import build as graph_build

nn, F = flow.nn, flow.nn.functional


class Words(nn.Module):  # a small transformer of tokens
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = self.words(x) + self.places(flow.arange(x.shape[1]))
        return self.out(self.block(x, is_causal=True, src_mask=self.mask(x)).mean(1))

    def mask(self, x):
        return nn.Transformer.generate_square_subsequent_mask(x.shape[1])


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def images():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(24, 3),
    )


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x).softmax(-1)


def refuse(*args, **kwargs):
    raise AssertionError("captured, or optimized, in the second process")


Adam, SGD = flow.optim.Adam, flow.optim.SGD
rng = np.random.default_rng(0)
MODELS = {
    "images": (images, rng.standard_normal((4, 1, 9, 8), np.float32), Adam, {"lr": 0.01}),
    "images again": (images, rng.standard_normal((4, 1, 9, 8), np.float32), SGD,
                     {"lr": 0.01, "momentum": 0.9}),
    "words": (Words, rng.integers(0, 11, (4, 6)), Adam, {"lr": 0.01}),
    "sequence": (Sequence, rng.standard_normal((4, 7, 5), np.float32), SGD, {"lr": 0.1}),
}
which, folder = sys.argv[1:]
y = flow.tensor([0, 2, 1, 1])
record, optimize = Capture.record, graph_build.optimize
for name, (make, x, kind, options) in MODELS.items():
    Capture.record, graph_build.optimize = record, optimize
    flow.manual_seed(1)
    model, x = make(), flow.tensor(x)
    train = Train(model, kind(model.parameters(), **options))
    predict, path = Predict(model), f"{folder}/{name}"

    def predicted():
        model.eval()
        out = predict(x)
        model.train()
        return out

    if which == "first":
        train(x, y), train(x, y), predicted()
        train.save(path + ".train")
        predict.save(path + ".predict")
        flow.save({"state": train.state_dict(), "random": flow.get_rng_state()}, path)
    else:
        Capture.record = graph_build.optimize = refuse
        values = flow.load(path)
        train.load_state_dict(values["state"])
        flow.set_rng_state(values["random"])
        train.load(path + ".train")
        predict.load(path + ".predict")
    for _ in range(2):
        print(name, train(x, y).item().hex(), predicted().numpy().tobytes().hex())
    for key, t in model.state_dict().items():
        print(name, key, t.numpy().tobytes().hex())
"""


def test_models_of_images_words_and_sequences_go_on_in_a_fresh_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    results = []
    for which in ("first", "second"):
        process = subprocess.run(
            [sys.executable, str(program), which, str(tmp_path)], capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        results.append(process.stdout.splitlines())
    assert len(results[0]) > 40
    assert results[0] == results[1]
