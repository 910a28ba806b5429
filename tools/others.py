"""Models that other people wrote, by flowvm and by PyTorch: same weights, same input, same numbers.

    python -m tools.others timm                  a small model of each of timm's families
    python -m tools.others transformers          small models of Hugging Face's, by configuration
    python -m tools.others timm resnet18 ...     these
    python -m tools.others packages              libraries beside, those that are installed

Each model runs twice, in processes of its own: with PyTorch, and with `flowvm.compat.torch`, where
`import torch` is flowvm.  Their code is as it was installed.  Compared are the output, the
gradient of the input, where that is no integer, and the length of the gradient of all parameters;
in float64, so that no near tie of a maximum goes another way, or in float32 if PyTorch cannot run
it so.  Needs PyTorch and the package; timm
also the Python files of torchvision.  The exit code is 1 if a model fails that PyTorch runs, or
differs by more than LIMITS of the largest number.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tools import packages

LIMITS = {"float64": 1e-6, "float32": 1e-4}
LEAST = 1e-3  # smaller numbers are compared as if this were the largest
BATCH = 2  # PyTorch's batch_norm of one sample with a transposed gradient is wrong (2.13)
MOST = 100e6  # parameters times pixels, by those of 224 x 224
# fmt: off
SMALL = (
    "test_", "tiny", "nano", "pico", "femto", "atto", "xxs", "_xs", "s0", "b0", "18", "_050",
    "small", "lite",
)
# what the small models of Hugging Face's are made with, as far as their configurations have it
NUMBERS: dict[Any, tuple[str, ...]] = {
    0.0: (
        "dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop",
        "embd_pdrop", "attn_pdrop",
    ),
    2: (
        "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers",
        "n_layers", "num_key_value_heads",
    ),
    4: (
        "num_attention_heads", "n_head", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "n_heads", "rotary_dim",
    ),
    8: ("d_kv", "patch_size", "head_dim", "num_mel_bins"),
    16: ("max_source_positions",),
    32: (
        "hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim",
        "image_size",
    ),
    37: ("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"),
    64: ("hidden_dim", "max_position_embeddings", "n_positions"),
    99: ("vocab_size",),
}
SIZES = {name: number for number, names in NUMBERS.items() for name in names} | {"pad_token_id": 0}
FOUR: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
OWN: dict[str, dict[str, Any]] = {
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
             "num_heads": [2, 4], "window_size": 4},
    "ResNet": {"embedding_size": 16, **FOUR},
    "ConvNext": FOUR,
}
TRANSFORMERS = (
    "Albert", "Bart", "Beit", "Bert", "BigBird", "BlenderbotSmall", "Bloom", "CodeGen", "Cohere",
    "ConvNext", "Data2VecVision", "Deberta", "DebertaV2", "Dinov2", "DistilBert", "Electra", "FNet",
    "Falcon", "Funnel", "GPT2", "GPTJ", "GPTNeoX", "Gemma", "IBert", "LED", "LayoutLM", "Llama",
    "Longformer", "MBart", "MPNet", "Mamba", "Marian", "Mistral", "Mixtral", "MobileNetV2",
    "MobileViT", "Nystromformer", "OPT", "Olmo", "Pegasus", "Persimmon", "Phi", "PoolFormer",
    "Qwen2", "RegNet", "ResNet", "RoFormer", "Roberta", "StableLm", "Starcoder2", "Swin", "T5",
    "ViT", "Whisper", "XLMRoberta", "XLNet",
)
# fmt: on


# --- in a process of its own ----------------------------------------------------------------------


class _Names(type):
    """The metaclass of a class that has every attribute: an attribute is its name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(types.ModuleType):
    """A module in which every name is a class that does nothing."""

    __path__: list[str] = []  # noqa: RUF012 - it is of the module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {"__init__": lambda self, *args, **kwargs: None})


def _without_extension() -> None:
    """torchvision's Python files without its compiled ones, which are PyTorch's."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise SystemExit("timm needs torchvision, which is not installed")
    for name in ("torchvision", "torchvision.ops"):
        module: Any = types.ModuleType(name)
        module.__path__ = [str(Path(spec.origin).parent / name.partition(".")[2])]
        sys.modules[name] = module
    for name in ("io", "datasets", "transforms", "transforms.functional", "utils"):
        sys.modules[f"torchvision.{name}"] = _Anything(f"torchvision.{name}")


def _timm(torch: Any, name: str, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    import timm

    model = timm.create_model(name, num_classes=10)
    shape = (BATCH, *model.default_cfg["input_size"])
    return model, {"x": torch.from_numpy(rng.random(shape))}


def _transformers(torch: Any, name: str, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    import transformers

    make = getattr(transformers, f"{name}Config")
    known = inspect.signature(make.__init__).parameters
    config = make(**OWN.get(name, {k: v for k, v in SIZES.items() if k in known}))
    for rate in ("attention_dropout", "activation_dropout", "dropout_rate"):
        if hasattr(config, rate):
            setattr(config, rate, 0.0)
    model = getattr(transformers, f"{name}Model")(config)
    parameters = inspect.signature(model.forward).parameters

    def words(count: int) -> Any:
        return torch.from_numpy(rng.integers(3, 99, (BATCH, count)))

    if "pixel_values" in parameters:
        return model, {"pixel_values": torch.from_numpy(rng.random((BATCH, 3, 32, 32)))}
    if "input_features" in parameters:
        sound = torch.from_numpy(rng.random((BATCH, 8, 32)))
        return model, {"input_features": sound, "decoder_input_ids": words(5)}
    inputs = {"input_ids": words(7)}
    if "attention_mask" in parameters:
        mask = np.ones((BATCH, 7), np.int64)
        mask[1, 5:] = 0
        inputs["attention_mask"] = torch.from_numpy(mask)
    if "decoder_input_ids" in parameters:
        inputs["decoder_input_ids"] = words(5)
    return model, inputs


_MAKERS: dict[str, Callable[..., tuple[Any, dict[str, Any]]]] = {
    "timm": _timm, "transformers": _transformers,
}  # fmt: skip


def run(package: str, name: str, place: str, dtype: str) -> dict[str, Any]:
    """Numbers of a model, with PyTorch's weights, which are written to `place` by PyTorch."""
    import torch

    if package == "packages":
        return packages.numbers(torch, name)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs = _MAKERS[package](torch, name, rng)
    model.eval()
    model.to(getattr(torch, dtype))
    if Path(place).exists():
        read = np.load(place)
        weights = {k[2:]: torch.from_numpy(read[k]) for k in read.files if k.startswith("w.")}
        model.load_state_dict(weights)
        written = {}
    else:
        written = {f"w.{k}": v.numpy() for k, v in model.state_dict().items()}
    first = next(iter(inputs.values()))
    if first.is_floating_point():
        first = inputs[next(iter(inputs))] = first.to(getattr(torch, dtype))
        first.requires_grad_(True)
    output = model(*inputs.values()) if package == "timm" else model(**inputs)
    y = output[0] if isinstance(output, (tuple, list)) or package == "transformers" else output
    (y * torch.from_numpy(rng.random(tuple(y.shape)).astype(dtype))).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return written | {
        "output": y.detach().numpy(),
        "input's gradient": np.zeros(1) if first.grad is None else first.grad.numpy(),
        "length of gradients": np.sqrt(sum(float((g**2).sum()) for g in grads)),
        "gradients": np.float64(len(grads)),
    }


def difference(ours: dict[str, Any], theirs: Any) -> tuple[float, str]:
    """Return the largest difference, divided by the largest number, and its name."""
    worst = (0.0, "")
    for name, value in ours.items():
        other = theirs[name]
        if np.shape(value) != np.shape(other):
            return np.inf, f"{name} of shape {np.shape(value)} and {np.shape(other)}"
        scale = max(np.abs(other).max(initial=0), LEAST) or 1.0
        worst = max(worst, (float(np.abs(value - other).max(initial=0) / scale), name))
    return worst


def small_models() -> list[str]:
    """One of the smallest models of each of timm's families, the least work first."""
    import timm
    import torch
    from timm.models._registry import _model_entrypoints as entries

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(entries[name].__module__, []).append(name)
    models = []
    for names in families.values():
        names.sort(key=lambda n: (not any(part in n for part in SMALL), len(n)))
        works = []
        for name in names[:6]:
            with torch.device("meta"):
                model = timm.create_model(name, num_classes=10)
            side = model.default_cfg["input_size"][1] / 224
            works.append((sum(p.numel() for p in model.parameters()) * side * side, name))
        models.append(min(works))
    return [name for work, name in sorted(models) if work < MOST]


def _inside(args: argparse.Namespace) -> None:
    if args.package == "timm":
        _without_extension()
    if args.inside == "flowvm":
        import flowvm.compat.torch

        flowvm.compat.torch.install(report=False)
    elif args.inside == "names":
        print(*small_models())
        return
    output = run(args.package, args.names[0], args.place, args.dtype)
    if args.inside == "torch":
        np.savez(args.place, **output)
        return
    amount, what = difference(output, np.load(args.place))
    verdict = "agrees" if amount < LIMITS[args.dtype] else "DIFFERS"
    print(f"{verdict} {amount:.1e} {what}{'' if args.dtype == 'float64' else ', in ' + args.dtype}")


# --- all of them ----------------------------------------------------------------------------------


def _process(package: str, inside: str, *rest: str) -> tuple[bool, str]:
    command = [sys.executable, "-m", "tools.others", package, *rest, "--inside", inside]
    env = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    process = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    text = process.stdout if process.returncode == 0 else process.stderr
    lines = [line for line in text.splitlines() if line.strip()]
    last = next((n for n in reversed(lines) if "Error" in n), lines[-1] if lines else "")
    return process.returncode == 0, last if process.returncode else (lines[-1] if lines else "")


def main() -> int:
    """Run the models that are asked for; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.others",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("package", choices=sorted((*_MAKERS, "packages")))
    parser.add_argument("names", nargs="*", help="of models; all if left away")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--place", default="", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float64", choices=LIMITS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        _inside(args)
        return 0
    names = args.names or TRANSFORMERS
    dtypes = list(LIMITS)
    if args.package == "packages":
        names, dtypes = args.names or list(packages.CASES), ["float32"]
    if args.package == "timm" and not args.names:
        names = _process("timm", "names")[1].split()
    counts = {"agrees": 0, "wrong": 0, "PyTorch fails": 0}
    with tempfile.TemporaryDirectory(prefix="flowvm-others-") as folder:
        for name in names:
            place = str(Path(folder) / f"{name}.npz")
            kind = "PyTorch fails"
            for dtype in dtypes:
                rest = (name, "--place", place, "--dtype", dtype)
                fine, text = _process(args.package, "torch", *rest)
                if fine:
                    fine, text = _process(args.package, "flowvm", *rest)
                    kind = "agrees" if fine and text.startswith("agrees") else "wrong"
                    os.unlink(place)
                    break
            counts[kind] += 1
            print(f"{name:32} {text if fine else f'{kind}: {text}'}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
