"""The cases of `tools.others packages`: some of a package's functions, or a short training.

Weights and inputs are NumPy's numbers.  Each function returns the tensors to compare.

Nothing here knows flowvm: `torch` is whatever `import torch` gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Numbers:
    """Tensors of one seed."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.rng = torch, np.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        """Draw standard normal float32 numbers."""
        return self.torch.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def uniform(self, *shape: int) -> Any:
        """Draw float32 numbers from 0 to 1."""
        return self.torch.from_numpy(self.rng.random(shape).astype(np.float32))

    def below(self, most: int, *shape: int) -> Any:
        """Integers from 0 on, int64."""
        return self.torch.from_numpy(self.rng.integers(0, most, shape))

    def fill(self, module: Any, scale: float = 0.1) -> Any:
        """The module, with all parameters drawn anew."""
        with self.torch.no_grad():
            for p in module.parameters():
                p.copy_(self.normal(*p.shape) * scale)
        return module


def _gradients(module: Any) -> list[Any]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def einops(torch: Any, n: Numbers) -> list[Any]:
    from einops import einsum, reduce, repeat
    from einops.layers.torch import Rearrange

    x = n.normal(2, 3, 4)
    return [
        Rearrange("a b c -> (a c) b")(x), reduce(x, "a b c -> b", "max"),
        repeat(x, "a b c -> a b k c", k=2), einsum(x, n.normal(4, 5), "a b c, c d -> a b d"),
    ]  # fmt: skip


def torchdiffeq(torch: Any, n: Numbers) -> list[Any]:
    from torchdiffeq import odeint, odeint_adjoint

    class Field(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, time: Any, y: Any) -> Any:
            return torch.tanh(self.inner(y)) * torch.sin(time)

    field, y, times = n.fill(Field(), 1.0), n.normal(2, 3), torch.linspace(0, 1, 5)
    path = odeint_adjoint(field, y, times)
    path.sum().backward()
    return [path, odeint(field, y, times, method="rk4"), *_gradients(field)]


def torchmetrics(torch: Any, n: Numbers) -> list[Any]:
    import torchmetrics as tm
    import torchmetrics.functional as tf

    p, y = n.normal(20, 5).softmax(1), n.below(5, 20)
    accuracy = tm.Accuracy(task="multiclass", num_classes=5)
    accuracy.update(p, y)
    of_classes: dict[str, Any] = {"task": "multiclass", "num_classes": 5}
    return [
        accuracy.compute(), tf.f1_score(p, y, average="macro", **of_classes),
        tf.auroc(p, y, **of_classes), tf.average_precision(p, y, **of_classes),
        tf.confusion_matrix(p, y, **of_classes), tf.mean_squared_error(n.normal(5), n.normal(5)),
        tf.pearson_corrcoef(n.normal(9), n.normal(9)), tf.r2_score(n.normal(9), n.normal(9)),
        tf.spearman_corrcoef(n.normal(9), n.normal(9)),
        tf.cosine_similarity(n.normal(3, 4), n.normal(3, 4)),
        tf.peak_signal_noise_ratio(n.normal(1, 3, 8, 8), n.normal(1, 3, 8, 8)),
        tf.structural_similarity_index_measure(n.normal(1, 3, 16, 16), n.normal(1, 3, 16, 16)),
    ]  # fmt: skip


def kornia(torch: Any, n: Numbers) -> list[Any]:
    import kornia as k

    x, eye = n.uniform(2, 3, 16, 16), torch.eye(3)[None].repeat(2, 1, 1)
    return [
        k.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0)), k.filters.sobel(x),
        k.filters.median_blur(x, (3, 3)), k.filters.canny(x)[0], k.color.rgb_to_hsv(x),
        k.color.rgb_to_lab(x), k.geometry.rotate(x, torch.tensor([30.0, 40.0])),
        k.geometry.warp_perspective(x, eye, (16, 16)), k.geometry.resize(x, (8, 8)),
        k.losses.ssim_loss(x, x.flip(0), 5), k.morphology.dilation(x, torch.ones(3, 3)),
        k.feature.harris_response(x), k.enhance.equalize(x),
    ]  # fmt: skip


def x_transformers(torch: Any, n: Numbers) -> list[Any]:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True)
    model = n.fill(TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers))
    out = model(n.below(50, 2, 16))
    out.square().mean().backward()
    return [out, *_gradients(model)]


def torch_geometric(torch: Any, n: Numbers) -> list[Any]:
    import torch_geometric.nn as gnn

    x, edges = n.normal(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    outputs = [gnn.global_mean_pool(x, torch.tensor([0, 0, 0, 1, 1, 1]))]
    for layer in (
        gnn.GCNConv(4, 8), gnn.GATConv(4, 8, heads=2), gnn.GATv2Conv(4, 8), gnn.SAGEConv(4, 8),
        gnn.GINConv(torch.nn.Linear(4, 8)), gnn.TransformerConv(4, 8), gnn.ChebConv(4, 8, 2),
    ):  # fmt: skip
        out = n.fill(layer)(x, edges)
        out.square().sum().backward()
        outputs += [out, *_gradients(layer)]
    return outputs


def gpytorch(torch: Any, n: Numbers) -> list[Any]:
    import gpytorch as gp

    class Model(gp.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gp.means.ConstantMean()
            self.covar_module = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gp.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 10)
    y, likelihood = torch.sin(x * 6), gp.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = -marginal(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        return [*losses, likelihood(model(torch.linspace(0, 1, 7))).mean]


def monai(torch: Any, n: Numbers) -> list[Any]:
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet

    net = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))
    out = n.fill(net)(n.normal(1, 1, 16, 16))
    loss = DiceLoss(softmax=True, to_onehot_y=True)(out, n.below(2, 1, 1, 16, 16))
    loss.backward()
    return [out, loss, *_gradients(net)]


def _regression(torch: Any, n: Numbers) -> Any:
    data = torch.utils.data.TensorDataset(n.normal(32, 4), n.normal(32, 1))
    return torch.utils.data.DataLoader(data, batch_size=8)


def lightning(torch: Any, n: Numbers) -> list[Any]:
    import lightning as li

    class Model(li.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.inner(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = n.fill(Model())
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    li.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(model, _regression(torch, n))
    return list(model.parameters())


def accelerate(torch: Any, n: Numbers) -> list[Any]:
    from accelerate import Accelerator, init_empty_weights

    with init_empty_weights():
        assert torch.nn.Linear(1000, 1000).weight.device.type == "meta"
    run, model = Accelerator(cpu=True), n.fill(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = run.prepare(model, optimizer, _regression(torch, n))
    for x, y in batches:
        with run.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return [*model.parameters(), run.gather(loss)]


CASES = {
    f.__name__: f
    for f in (
        accelerate, einops, gpytorch, kornia, lightning, monai, torch_geometric, torchdiffeq,
        torchmetrics, x_transformers,
    )
}  # fmt: skip


def numbers(torch: Any, name: str) -> dict[str, Any]:
    """Return the results of a package, by the places of their tensors."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    values = CASES[name](torch, Numbers(torch))
    return {f"number {i}": t.detach().numpy() for i, t in enumerate(values)}
