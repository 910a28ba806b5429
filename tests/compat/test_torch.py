"""Programs of PyTorch's, with `import torch` meaning flowvm; each in a process of its own."""

import subprocess
import sys

HEAD = "import flowvm.compat.torch as compat; compat.install()\n"
TRAINS = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from torch.optim.lr_scheduler import StepLR
import torch.backends.cudnn as cudnn

cudnn.benchmark = True
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))

x = torch.randn(64, 4)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
net = Net().to(device)
opt = optim.Adam(net.parameters(), lr=0.05)
schedule = StepLR(opt, 10)
for epoch in range(15):
    for a, b in loader:
        opt.zero_grad()
        loss = F.cross_entropy(net(a.to(device)), b.to(device))
        loss.backward()
        opt.step()
    schedule.step()
assert float(loss) < 0.4, loss
with torch.no_grad():
    assert (net(x).argmax(1) == y).float().mean() > 0.9
torch.save(net.state_dict(), PATH)
net.load_state_dict(torch.load(PATH, map_location="cpu"))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, text=True, check=False
    )


def test_a_program_trains(tmp_path: object) -> None:
    done = run(f"PATH = {str(tmp_path)!r} + '/net.pt'\n" + TRAINS)
    assert done.returncode == 0, done.stderr
    assert "has not" not in done.stderr


PIECES = """
import torch, math
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable, grad
from torch.autograd.graph import saved_tensors_hooks

# a gradient penalty, as every WGAN has it
critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
between = Variable(torch.randn(5, 4), requires_grad=True)
ones = Variable(torch.Tensor(5, 1).fill_(1.0), requires_grad=False)
(g,) = grad(outputs=critic(between), inputs=between, grad_outputs=ones, create_graph=True,
            retain_graph=True, only_inputs=True)
penalty = ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
penalty.backward()
assert critic[0].weight.grad is not None

# a compiled model that is trained from outside
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(compiled.parameters(), lr=0.05)
x = torch.randn(32, 4)
losses = []
for _ in range(20):
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = F.mse_loss(compiled(x), x.sum(1, keepdim=True))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses

i = torch.LongTensor(range(3))
a, b = torch.randn(2, 3), torch.randn(3, 2)
assert torch.allclose(torch.einsum(a, [0, 1], b, [1, 2], [0, 2]), a @ b)
_, back = torch.func.vjp(torch.sin, a)
assert torch.allclose(back(torch.ones(2, 3))[0], a.cos())
"""


def test_what_programs_are_made_of() -> None:
    done = run(PIECES)
    assert done.returncode == 0, done.stderr
    assert "has not" not in done.stderr


NAMES = [
    "import torch, flowvm; assert torch.nn.Module is flowvm.nn.Module",
    "import oneflow as flow; assert flow.ones(2).sum().item() == 2",
    "from torch.distributions.normal import Normal; Normal(0.0, 1.0).sample()",
    "from torch.nn.modules.batchnorm import BatchNorm2d",
    "from torch.optim.adamw import AdamW",
    "from torch.optim.lr_scheduler import _LRScheduler",
    "import torch; assert torch.__version__ >= '2.0' and torch.__version__.startswith('2.')",
    "import torch; assert not torch.distributed.is_initialized()",
    "from torch.distributed._composable.fsdp import fully_shard",
    "from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel",
    "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy",
    "from torch.distributed.checkpoint._consolidate_hf_safetensors import "
    "consolidate_safetensors_files",
    "from torch.distributed.checkpoint.filesystem import FileSystemWriter",
    "from torch.distributed.checkpoint.state_dict import get_state_dict",
    "import torch; assert torch._C._get_accelerator().type in ('cpu', 'cuda')",
    "from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE, create_block_mask",
    "import torch.multiprocessing as mp; assert mp.Queue",
    "import torch; assert torch.testing.assert_close(torch.ones(1), torch.ones(1)) is None",
    "import torch; torch.backends.cudnn.deterministic = True; import flowvm; "
    "assert flowvm.backends.cudnn.deterministic is True",
    "import torch; assert isinstance(torch.ones(1), torch.Tensor); torch.utils.data.Dataset",
    "import torch; torch.set_default_dtype(torch.float64)\n"
    "assert torch.ones(1).dtype == torch.float64",
]


def test_names() -> None:
    done = run(f"for program in {NAMES!r}:\n    print(program)\n    exec(program, {{}})")
    assert done.returncode == 0, done.stdout.splitlines()[-1] + done.stderr


def test_what_is_missing_is_listed() -> None:
    done = run(
        "import torch\n"
        "for _ in range(2):\n"
        "    try: torch.nn.functional.no_such_function\n"
        "    except AttributeError: pass\n"
        "try: import torch.fx.experimental\n"
        "except ModuleNotFoundError as e: assert 'torch.fx' in str(e)\n"
        "assert compat.missing()['torch.nn.functional.no_such_function'] == 2\n"
    )
    assert done.returncode == 0, done.stderr
    assert "2 names that flowvm has not" in done.stderr
    assert "torch.nn.functional.no_such_function  (2 times)" in done.stderr


def test_too_late_is_an_error_and_there_is_a_way_back() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, types\n"
            "import flowvm.compat.torch as compat\n"
            "sys.modules['torch'] = types.ModuleType('torch')\n"
            "try: compat.install()\n"
            "except ValueError as e: assert 'imported already' in str(e)\n"
            "else: raise SystemExit(1)\n"
            "del sys.modules['torch']\n"
            "compat.install(); import torch; torch.ones(1)\n"
            "compat.uninstall(); assert 'torch' not in sys.modules\n",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
