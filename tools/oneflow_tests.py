"""Runs OneFlow's own tests with flowvm in the place of OneFlow, on one or several ranks.

    python -m tools.oneflow_tests FOLDER                        FOLDER: its python/oneflow
    python -m tools.oneflow_tests FOLDER -n 2 --only several    files that speak of several ranks
    python -m tools.oneflow_tests FOLDER modules/test_ddp.py    these files
    python -m tools.oneflow_tests FOLDER --results r.json --table    the shares of a run before

`import oneflow` is flowvm, and PyTorch is itself where a test compares.  "cuda" reads "cpu", and
types of OneFlow's compiled functions are flowvm's as well.  The tests are read and not changed
otherwise.  A method passes if it passes on every rank.  Behind a method that fails on several
ranks, all start anew: the others may wait for it.  Apart are "words", where an error came as it
should and has other words than OneFlow's, and "without": what `NEEDS` names.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import json
import re
import sys
import time
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from flowvm import ops
from flowvm.compat import torch as compat
from flowvm.ranks.world import world, world_size
from tools import unit_cases

# methods that need what a CPU has not: `folder/file.py`, a method or a class in it -> the reason
NEEDS = {
    "expensive/test_global_tensor_offload.py": "a GPU's memory",
    "expensive/test_id_shuffle_global.py": "OneEmbedding, on a GPU",
    "expensive/test_tensor_str.py": "OneFlow's own way to print",
    "graph/test_graph_debug.py": "OneFlow's inner parts of a graph",
    "graph/test_graph_reuse_var.py": "OneFlow's inner parts of a graph",
    "graph/test_graph_pipeline.py": "a data set",
    "graph/test_graph_separate_compile.py::test_test_alexnet_auto_parallel": "flowvision",
    "graph/test_graph_zero.py::TestLinearTrainGraph2DWithZeRO": "OneFlow's inner parts of a graph",
    "graph/test_graph_zero.py::test_linear_train_graph_with_zero_1": "parameters cut by stage 1",
    "graph/test_graph_zero.py::test_linear_train_graph_with_zero_2": "parameters cut by stage 2",
    "misc/test_env_cuda.py": "a GPU",
    "tensor/test_autocast.py": "a GPU's autocast to float16",
    "tensor/test_tensor_part_1.py::test_tensor_property": "a GPU to tell from a CPU",
    "tensor/test_tensor_part_1.py::test_tensor_device": "a GPU to tell from a CPU",
    "tensor/test_tensor_pin_memory.py": "a GPU's pinned memory",
    "tensor/test_new_tensor.py::test_new_cuda_bfloat16_local_tensor_with_numpy": "a GPU",
    "tensor/test_tensor_indexing2.py::test_slice": "CUDA's version",
    "graph/test_alexnet_graph.py": "a data set",
    "graph/test_alexnet_auto_parallel.py": "flowvision",
    "misc/test_manual_seed_api.py": "two GPUs in one process",
    "modules/test_comm_ops.py::TestDocs": "OneFlow's own docstrings",
    "modules/test_global_cast.py::test_cpu_[ps]2[bs]_with_random_parameter": "an older NumPy",
    "modules/test_global_cast.py::test_local_to_global_with_wrong_device": "a GPU",
    "modules/test_global_empty.py": "OneFlow's inner names of functions",
    "modules/test_single_threaded_vm.py": "OneFlow in another process",
    "modules/test_coco_reader.py": "a data set",
    "modules/test_as_tensor.py::test_tensor_type": "a GPU to tell from a CPU",
    "modules/test_dataset.py": "OpenCV",
    "modules/test_fused_codegeex_qkv_reshape.py": "a kernel for GPUs alone",
    "modules/test_fused_get_*.py": "a kernel for GPUs alone",
    "modules/test_fused_matmul_bias_add_relu_dropout.py": "a kernel for GPUs alone",
    "modules/test_groupwise_quantization.py": "a kernel for GPUs alone",
    "modules/test_image_*.py": "OpenCV",
    "modules/test_layer_norm.py::test_*_impl": "PyTorch's float16 sums on a GPU",
    "modules/test_pruning.py::test_pruning_serialization_model": "pickled modules",
    "modules/test_deform_conv2d.py": "torchvision",
    "modules/test_optim_ftrl.py": "OneEmbedding, on a GPU",
    "modules/test_dlpack.py": "GPUs by number",
    "modules/test_eager_boxing.py::*s1_to_p": "OneFlow's choice of summands",
    "modules/test_gpt_data_loader.py": "a data set",
}


# --- inside a process -----------------------------------------------------------------------------


class _OnCpu(ast.NodeTransformer):
    """A program in which "cuda" reads "cpu"."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        if isinstance(node.value, str) and node.value.startswith("oneflow.cuda."):
            return ast.copy_location(ast.Constant(node.value.replace(".cuda", "", 1)), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and str(first.value).startswith("cuda:"):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "is_cuda":
            node.attr = "is_cpu"
        if node.attr.endswith("Tensor") and ast.unparse(node.value).endswith(".cuda"):
            node.value = node.value.value  # type: ignore[attr-defined]
        if ast.unparse(node) == "types.BuiltinFunctionType":
            return ast.copy_location(ast.Name("_FUNCTIONS", ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        return node


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `oneflow.test_utils` and the modules beside a test, and loads them on the CPU."""

    def __init__(self, root: Path, beside: Path) -> None:
        self.root, self.beside = root, beside

    def _path(self, name: str) -> Path | None:
        parts = name.split(".")
        if parts[:2] == ["oneflow", "test_utils"]:
            base = self.root.joinpath(*parts[1:])
        elif len(parts) == 1:
            base = self.beside / name
        else:
            return None
        return next(
            (p for p in (base / "__init__.py", base.with_suffix(".py")) if p.exists()), None
        )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        place = self._path(fullname)
        if place is None:
            return None
        inside = [str(place.parent)] if place.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, place, loader=self, submodule_search_locations=inside
        )

    def exec_module(self, module: Any) -> None:
        place = Path(module.__spec__.origin)
        tree = ast.fix_missing_locations(_OnCpu().visit(ast.parse(place.read_text())))
        module._FUNCTIONS = (types.BuiltinFunctionType, type(ops.bernoulli))
        exec(compile(tree, str(place), "exec"), module.__dict__)
        if module.__name__.endswith(".automated_test_util.generators"):
            _know_builtins(module.random)


def _known_to_oneflow(annotation: Any) -> Any:
    """Return an annotation with `typing.Union` and `typing.Tuple` in the places of `int | None` and
    `tuple[int, int]`, which the random arguments of OneFlow's tests do not know.
    """
    origin = typing.get_origin(annotation)
    args = tuple(map(_known_to_oneflow, typing.get_args(annotation)))
    if origin in (types.UnionType, typing.Union):
        return typing.Union[args]  # noqa: UP007 - that is the point
    return typing.Tuple[args] if origin is tuple else annotation  # noqa: UP006 - as above


def _know_builtins(random: Any) -> None:
    """Have OneFlow's class of random arguments take the annotations of today's PyTorch."""
    own = random._to
    random._to = lambda argument, annotation: own(argument, _known_to_oneflow(annotation))


def _inside(root: Path, place: Path, known: list[str], out: str, seconds: float) -> None:
    compat.ROOTS = ("oneflow",)  # type: ignore[misc, assignment]
    sys.meta_path.insert(0, _Sources(root, place.parent))
    compat.install(report=False)
    sys.meta_path.insert(0, sys.meta_path.pop(1))
    rank = world().rank if world_size() > 1 else None
    unit_cases.run(lambda: importlib.import_module(place.stem), known, out, seconds, rank)


# --- all files ------------------------------------------------------------------------------------


def counted(file: str, method: str) -> bool:
    """False for a method that needs what a CPU has not."""
    keys = (file, *(f"{file}::{part}" for part in method.split(".")))
    return not any(fnmatch(key, pattern) for key in keys for pattern in NEEDS)


def table(results: dict[str, dict[str, Any]], by: str) -> str:
    """The shares by folder, or by file where not all pass."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for file, methods in results.items():
        key = file.partition("/")[0] if by == "folder" else file
        for name, (kind, _) in methods.items():
            rows[key][kind if counted(file, name) else "without"] += 1
    lines = []
    total: Counter[str] = Counter()
    for key, count in sorted(rows.items()):
        total += count
        all_of = count["pass"] + count["fail"]
        if by == "folder" or count["fail"]:
            lines.append(f"{key:60} {count['pass']:5d} of {all_of:5d}")
    lines.append(f"{'all':60} {unit_cases.share(total)}")
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for; print shares, and what failures say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("files", nargs="*", help="files or folders below `test`")
    parser.add_argument("-n", "--ranks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="the most that a method may take")
    parser.add_argument("--limit", type=float, default=1e9, help="the most that all may take")
    parser.add_argument("--only", choices=["several"], help="files that speak of several ranks")
    parser.add_argument("--results", type=Path, help="a file that keeps results; files in it stay")
    parser.add_argument("--again", action="store_true", help="run files again that have failures")
    parser.add_argument("--table", action="store_true", help="print the results alone")
    parser.add_argument("--show", action="store_true", help="print what the files print")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--known", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    root = options.root.resolve()
    if options.inside:
        known = Path(options.known).read_text().splitlines()
        _inside(root, Path(options.files[0]), known, options.inside, options.seconds)
        return 0
    begin = time.monotonic()
    places: list[Path] = []
    for name in options.files or ["."]:
        at = root / "test" / name
        places += [at] if at.is_file() else sorted(at.rglob("test_*.py"))
    results: dict[str, dict[str, Any]] = {}
    if options.results and options.results.exists():
        results = json.loads(options.results.read_text())
    for place in [] if options.table else places:
        file = place.relative_to(root / "test").as_posix()
        text = place.read_text()
        if options.only and not re.search(rf"skip_unless_1n{options.ranks}d", text):
            continue
        if file in results and not options.files:
            failed = any(kind == "fail" for kind, _ in results[file].values())
            if not (options.again and failed):
                continue
        if time.monotonic() - begin > options.limit:
            print("stopped at the limit")
            break
        command = ["tools.oneflow_tests", str(root), str(place)]
        results[file] = unit_cases.outcomes(command, options.ranks, options.seconds, options.show)
        count = Counter(kind for kind, _ in results[file].values())
        print(f"{time.monotonic() - begin:6.0f} s  {file:60} {dict(count)}", flush=True)
        if options.results:
            options.results.write_text(json.dumps(results, indent=1))
    print(table(results, "file"))
    print(table(results, "folder"))
    print("\n".join(unit_cases.causes(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
