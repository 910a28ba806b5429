"""Tutorial 04: training.

A small network on the 8x8 digits, eager.  `python -m flowvm demo` is the same with a convolutional
network and a progress bar.
"""

# %% Data: 1,797 images of handwritten digits, shipped with flowvm.
import flowvm as flow
from flowvm import nn
from flowvm.datasets import load_digits
from flowvm.utils.data import DataLoader, TensorDataset

flow.manual_seed(0)
train_x, train_y = load_digits("train")
test_x, test_y = load_digits("test")
print("train", tuple(train_x.shape), "test", tuple(test_x.shape))

# %% A model, a loss, an optimizer: PyTorch's names.
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
print(model)
loss_of = nn.CrossEntropyLoss()
optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# %% The loop.  Issuing runs ahead of computing: nothing in it waits until `.item()` does, once an
# epoch.
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=32, shuffle=True)
for epoch in range(10):
    total = flow.zeros(())
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"epoch {epoch}: mean loss {total.item() / len(loader):.4f}")

# %% Evaluation.
model.eval()
with flow.no_grad():
    right = (model(test_x).argmax(1) == test_y).float().mean().item()
print(f"test accuracy {right:.1%}")
assert right > 0.9

# %% What one step is made of: forward, backward, the fused update of each parameter, and the
# releases in between.


def one_step() -> None:
    optimizer.zero_grad()
    loss_of(model(train_x[:8]), train_y[:8]).backward()
    optimizer.step()


run = flow.vm.trace(one_step)
print(run)
print(flow.vm.verify(run))

# %% Keep it, and load it again.
import pathlib
import tempfile

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "digits.safetensors"
    flow.save(model.state_dict(), path)
    model.load_state_dict(flow.load(path))
print("saved and loaded")
