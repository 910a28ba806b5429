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
    process = run(f"PATH = {str(tmp_path)!r} + '/net.pt'\n" + TRAINS)
    assert process.returncode == 0, process.stderr
    assert "has not" not in process.stderr


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
    process = run(PIECES)
    assert process.returncode == 0, process.stderr
    assert "has not" not in process.stderr


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
    # what libraries name, of torchmetrics, kornia, MONAI, GPyTorch, PyG, Lightning, accelerate
    "import torch; assert torch.torch is torch and 'flowvm' in torch.__config__.show()",
    "import torch; assert torch.nn.modules.PReLU is torch.nn.PReLU",
    "import torch; assert torch.ones(1).layout not in (torch.sparse_coo, torch.sparse_csr)",
    "import torch; assert torch.ones(1).dtype not in (torch.complex32, torch.qint8)",
    "import torch; assert not isinstance(3, torch.SymInt)",
    "import torch; add = torch.ops.aten.add.Tensor; assert {add: 1}[torch.ops.aten.add.Tensor]\n"
    "assert add(torch.ones(1), torch.ones(1)).item() == 2",
    "import torch; assert not hasattr(torch.ops.torchvision, 'nms')",
    "import torch\nassert torch._C._nn._parse_to('cpu', torch.float64)[1] is torch.float64",
    "from torch.utils.dlpack import from_dlpack, to_dlpack; import torch\n"
    "assert from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]; to_dlpack(torch.ones(1))",
    "from torch.utils.hooks import RemovableHandle",
    "from torch.distributions.utils import _standard_normal, lazy_property",
    "from torch.serialization import DEFAULT_PROTOCOL; from torch.hub import _get_torch_home",
    "from torch.utils.data._utils.collate import default_collate, np_str_obj_array_pattern",
    "from torch.utils.data.dataloader import _BaseDataLoaderIter as B; import torch\n"
    "assert isinstance(iter(torch.utils.data.DataLoader([1, 2])), B)",
    "from torch.utils._pytree import SUPPORTED_NODES, _get_node_type\n"
    "assert list(SUPPORTED_NODES[_get_node_type([1, 2])].flatten_fn([1, 2])[0]) == [1, 2]",
    "from torch.distributed.constants import default_pg_timeout; from torch.distributed import rpc",
    "from torch.overrides import TorchFunctionMode; from torch._C import _TensorMeta",
    "from torch.autograd.forward_ad import unpack_dual; import torch\n"
    "assert unpack_dual(torch.ones(1)).tangent is None",
    "from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode; import torch\n"
    "real = torch.ones(3)\n"
    "with FakeTensorMode() as mode:\n"
    "    x = mode.from_tensor(torch.ones(2, 3)); y = x @ torch.randn(3, 4, device='cpu')\n"
    "    assert y.shape == (2, 4); assert isinstance(y, FakeTensor)\n"
    "    assert torch.nn.Linear(3, 5)(x).is_meta\n"
    "    try: x + real\n"
    "    except TypeError: pass\n"
    "    else: raise AssertionError",
    "from torch._subclasses.fake_tensor import is_fake; from torch.fx.experimental.proxy_tensor "
    "import get_proxy_mode; assert get_proxy_mode() is None",
    "from torch._higher_order_ops.associative_scan import associative_scan; import torch\n"
    "a, b = torch.rand(3, 7, 2, dtype=torch.float64), torch.rand(3, 7, 2, dtype=torch.float64)\n"
    "f = lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1])\n"
    "for back in (False, True):\n"
    "    _, y = associative_scan(f, (a, b), dim=1, reverse=back)\n"
    "    h = torch.zeros(3, 2, dtype=torch.float64)\n"
    "    for t in (range(6, -1, -1) if back else range(7)):\n"
    "        h = a[:, t] * h + b[:, t]\n"
    "        assert (y[:, t] - h).abs().max() < 1e-12",
    "import torch; assert not torch.onnx.is_in_onnx_export()",
    "import torch; torch.set_default_dtype(torch.float64)\n"
    "assert torch.ones(1).dtype == torch.float64",
]


def test_names() -> None:
    process = run(f"for program in {NAMES!r}:\n    print(program)\n    exec(program, {{}})")
    assert process.returncode == 0, process.stdout.splitlines()[-1] + process.stderr


PROFILED = """
import torch, tempfile, json, glob
from torch.profiler import ProfilerActivity, profile, record_function, schedule
import torch.profiler
folder = tempfile.mkdtemp()
x = torch.randn(20, 20)
seen = []
with profile(activities=[ProfilerActivity.CPU],
             schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
             on_trace_ready=lambda p: seen.append([(e.key, e.count) for e in p.key_averages()]),
             ) as prof:
    for step in range(9):
        with record_function("step"):
            x @ x
        prof.step()
assert len(seen) == 2 and all(("matmul", 2) in events for events in seen), seen
handler = torch.profiler.tensorboard_trace_handler(folder)
with profile(on_trace_ready=handler) as prof:
    (x @ x).relu()
assert "matmul" in prof.key_averages().table(sort_by="cpu_time_total", row_limit=5)
(file,) = glob.glob(folder + "/*.pt.trace.json")
assert json.load(open(file))["traceEvents"]
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    x @ x
assert counter.get_total_flops() == 2 * 20 ** 3
"""


def test_its_profiler() -> None:
    process = run(PROFILED)
    assert process.returncode == 0, process.stderr


WRITES_TABLES = """
import torch, copy, pickle
from torch import nn
m = nn.Linear(2, 3)
new = nn.Parameter(torch.zeros(3, 2))
m._parameters["weight"] = new                    # as accelerate, peft and others do
assert m.weight is new and m(torch.ones(1, 2)).tolist() == [m.bias.tolist()]
for other in (copy.deepcopy(m), copy.copy(m), pickle.loads(pickle.dumps(m))):
    other._parameters["bias"] = nn.Parameter(torch.ones(3))
    assert other.bias.tolist() == [1, 1, 1] and other.bias is not m.bias
del m._parameters["bias"]
assert not hasattr(m, "bias")
m._buffers.update(mean=torch.ones(1)); assert m.mean.item() == 1
assert m._buffers.pop("mean").item() == 1 and not hasattr(m, "mean")
seen = []
def register(self, name, value, usual=nn.Module.register_parameter):
    usual(self, name, value)
    seen.append(name)
nn.Module.register_parameter, usual = register, nn.Module.register_parameter
nn.Linear(1, 1)
nn.Module.register_parameter = usual
assert seen == ["weight", "bias"]
"""


def test_programs_write_the_tables_of_modules() -> None:
    process = run(WRITES_TABLES)
    assert process.returncode == 0, process.stderr


def test_what_is_missing_is_listed() -> None:
    process = run(
        "import torch\n"
        "for _ in range(2):\n"
        "    try: torch.nn.functional.no_such_function\n"
        "    except AttributeError: pass\n"
        "try: import torch.fx.no_such_room\n"
        "except ModuleNotFoundError as e: assert 'torch.fx' in str(e)\n"
        "assert compat.missing()['torch.nn.functional.no_such_function'] == 2\n"
        "from torch.optim.adamw import AdamW; from torch.distributions.studentT import StudentT\n"
        "assert not hasattr(torch.optim, 'NoSuchOptimizer')\n"
    )
    assert process.returncode == 0, process.stderr
    assert "3 names that flowvm has not" in process.stderr
    assert "torch.nn.functional.no_such_function  (2 times)" in process.stderr


def test_too_late_is_an_error_and_there_is_a_way_back() -> None:
    process = subprocess.run(
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
    assert process.returncode == 0, process.stderr
