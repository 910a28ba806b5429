"""`import torch` and `import oneflow` mean flowvm in this process.

    import flowvm.compat.torch
    flowvm.compat.torch.install()
    import torch                      # flowvm under that name, submodules too
    from torch.utils.data import DataLoader

A name that flowvm lacks raises AttributeError or ModuleNotFoundError as ever.  It is also listed on
stderr when Python ends, as a list of missing names for that program.  Names are looked up in flowvm
at their use; nothing is copied, so `torch.nn.Module is flowvm.nn.Module`.  `torch.__version__` is
the version of the PyTorch with these names.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from flowvm.compat import oneflow
from flowvm.errors import ArgumentError, MissingNameError
from flowvm.loading.missing_names import instead_of
from flowvm.ops.shapes import tensor_classes
from flowvm.version import Version
from flowvm.vm.callers.tracebacks import border

ROOTS: Final = ("torch", "oneflow")
VERSION: Final = Version("2.13.0+flowvm")
# modules of PyTorch whose names are elsewhere in flowvm
_ELSEWHERE: Final = {
    "_C": "compat.native",
    "__config__": "compat.build",
    "_oneflow_internal": "compat.internal",
    "_utils": "compat.coalescing",
    "boxing": "compat.boxing",
    "boxing.nccl": "compat.boxing",
    "distributed._tensor": "distributed.tensor",
    "distributed._tensor.device_mesh": "distributed.device_mesh",
    "framework": "compat.framework",
    "framework.args_tree": "compat.framework",
    "framework.check_point_v2": "compat.framework",
    "framework.unittest": "compat.testcases",
    "framework.balanced_splitter": "compat.framework",
    "framework.dtype": "compat.framework",
    "framework.tensor": "compat.framework",
    "nn.graph.util": "compat.framework",
    "nn.optimizer": "optim",
    "nn.optimizer.lr_scheduler": "optim.lr_scheduler",
    "nn.optimizer.optimizer": "compat.optim_names",
    "nn.optimizer.swa_utils": "optim.swa_utils",
    "support": "compat",
    "support.env_var_util": "compat.environment",
    "unittest": "compat.testcases",
    "utils.global_view.global_mode": "utils.global_view",
    "_dynamo.eval_frame": "compat.dynamo",
    "_tensor_str": "compat.tensor_str",
    "autograd.forward_ad": "func.forward_ad",
    "autograd.profiler": "compat.profiler",
    "profiler": "compat.profiler",
    "_dynamo": "compat.dynamo",
    "_higher_order_ops": "compat.scans",
    "_higher_order_ops.associative_scan": "compat.scans",
    "_subclasses": "compat.fake",
    "_subclasses.fake_tensor": "compat.fake",
    "distributed.algorithms._checkpoint": "compat.checkpointed",
    "distributed.algorithms._checkpoint.checkpoint_wrapper": "compat.checkpointed",
    "distributed.nn.functional": "distributed.nn",
    "distributed.constants": "distributed.groups",
    "fx.experimental": "fx",
    "fx.proxy": "fx",
    "fx.experimental.proxy_tensor": "compat.fake",
    "ops": "compat.operators",
    "optim.optimizer": "compat.optim_names",
    "optim._functional": "optim.sparse_adam",
    "utils.data._utils": "utils.data",
    "utils.model_zoo": "compat.model_zoo",
    "utils.data._utils.collate": "utils.data.collate",
    "_dynamo._trace_wrapped_higher_order_op": "compat.dynamo",
    "nn.modules.container": "nn.modules.containers",
    "nn.modules.min_max_observer": "nn.modules.quantization",
    "nn.modules.module": "nn.module",
    "nn.grad": "nn.functional",
    "_lowrank": "lowrank",
    "_tensor": "eager.tensor",
    "distributed._composable": "distributed.fsdp",
    "distributed._composable.fsdp": "distributed.fsdp",
    "distributed._composable.fsdp.fully_shard": "distributed.fsdp",
    "distributed.fsdp.fully_sharded_data_parallel": "distributed.fsdp",
    "distributed.fsdp.api": "distributed.fsdp",
    "distributed.checkpoint._consolidate_hf_safetensors": "distributed.checkpoint.consolidation",
    "distributed.checkpoint.filesystem": "distributed.checkpoint",
    "distributed.checkpoint.metadata": "distributed.checkpoint",
    "distributed.checkpoint.planner": "distributed.checkpoint",
    "distributed.checkpoint.storage": "distributed.checkpoint",
    "distributed.checkpoint.state_dict_loader": "distributed.checkpoint",
    "distributed.checkpoint.state_dict_saver": "distributed.checkpoint",
    "distributed._functional_collectives": "distributed.functional",
    "distributed.pipelining.microbatch": "distributed.pipelining.schedules",
    "distributed.pipelining.stage": "distributed.pipelining.stages",
    "distributed.tensor.experimental._attention": "distributed.tensor.experimental",
    "distributed.tensor._utils": "distributed.tensor.dtensor",
    "serialization": "serialization",
    "types": "dtype",
}
# modules of PyTorch that have names of another package
_OTHERS: Final = {"jit.annotations": "typing"}
# packages of PyTorch, the package of flowvm that has all names of the modules inside, and these
_FLAT: Final = {
    "distributions": ("distributions", {
        "bernoulli", "beta", "binomial", "categorical", "cauchy", "chi2", "continuous_bernoulli",
        "dirichlet", "exp_family", "exponential", "fishersnedecor", "generalized_pareto",
        "geometric", "gumbel", "half_cauchy", "half_normal", "independent", "inverse_gamma",
        "kumaraswamy", "laplace", "lkj_cholesky", "log_normal", "logistic_normal",
        "lowrank_multivariate_normal", "mixture_same_family", "multinomial",
        "multivariate_normal", "negative_binomial", "normal", "one_hot_categorical", "pareto",
        "poisson", "relaxed_bernoulli", "relaxed_categorical", "studentT",
        "transformed_distribution", "uniform", "von_mises", "weibull", "wishart",
    }),
    "nn.modules": ("nn", {
        "channelshuffle", "container", "flatten", "fold", "linear_cross_entropy", "pixelshuffle",
        "upsampling", "utils",
    }),
    "optim": ("optim", {
        "_adafactor", "_muon", "adadelta", "adamw", "asgd", "nadam", "radam", "rmsprop",
    }),
    "utils.data": ("utils.data", {"_utils", "datapipes", "graph"}),
}  # fmt: skip
_OF_C: Final = frozenset({  # names of torch that come from torch._C
    "SymBool", "SymFloat", "SymInt", "complex32", "chalf", "quint8", "qint8", "qint32", "quint4x2",
    "quint2x4", "float4_e2m1fn_x2", "PyTorchFileReader", "ScriptModule",
    "ScriptFunction", "char", "enable_eager_execution",
    "roc_auc_score", "spmm",
})  # fmt: skip
_missed: Counter[str] = Counter()


class _Mirror(types.ModuleType):
    """A module of PyTorch's name with the attributes of one of flowvm's."""

    def __init__(self, name: str, of: types.ModuleType) -> None:
        super().__init__(name, of.__doc__)
        self.__dict__["_of"] = of
        self.__dict__["__path__"] = []

    @border
    def __getattr__(self, name: str) -> Any:
        of: types.ModuleType = self.__dict__["_of"]
        if name == "torch" and "." not in self.__name__:
            return self  # as PyTorch's, which imports itself
        if name in ("__version__", "__git_version__") and "." not in self.__name__:
            return VERSION
        try:
            value = getattr(of, name)
        except AttributeError as error:
            inner = f"{self.__name__}.{name}"
            flat = _FLAT.get(self.__name__.partition(".")[2])
            if flat is not None and name not in flat[1]:
                beside = importlib.import_module(f"flowvm.{flat[0]}")
                if hasattr(beside, name):
                    return getattr(beside, name)
            if name in _OF_C and "." not in self.__name__:
                return getattr(importlib.import_module("flowvm.compat.native"), name)
            if not name.startswith("__") or name in _ELSEWHERE:
                if _counterpart(inner.partition(".")[2]) is not None:
                    return _mirrored(inner)
                _missed[inner] += 1
            raise MissingNameError(str(error) or f"flowvm has no {inner}", name) from None
        if _is_flowvms(value):
            inner = f"{self.__name__}.{name}"
            if value.__name__ == f"{of.__name__}.{name}":
                return _mirrored(inner)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__") or isinstance(value, _Mirror):
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_of"], name, value)

    def __dir__(self) -> list[str]:
        return sorted(dir(self.__dict__["_of"]))

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}: {self.__dict__['_of'].__name__}>"


def _mirrored(name: str) -> types.ModuleType:
    """The mirror of this name; a new one where it is no longer what an import finds."""
    if is_installed():
        return importlib.import_module(name)
    of = _counterpart(name.partition(".")[2])
    if of is None:
        raise ModuleNotFoundError(f"flowvm has no module for {name!r}", name=name)
    return _Mirror(name, of)


def _is_flowvms(value: object) -> bool:
    name = getattr(value, "__name__", "") if isinstance(value, types.ModuleType) else ""
    return name.startswith("flowvm.")


def _counterpart(path: str) -> types.ModuleType | None:
    """The module of flowvm that has the names of PyTorch's `path` ("nn.functional")."""
    if path in _OTHERS:
        return importlib.import_module(_OTHERS[path])
    parent, _, last = path.rpartition(".")
    for place in (_ELSEWHERE.get(path), path):
        if place is None:
            continue
        name = f"flowvm.{place}" if place else "flowvm"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
    package, modules = _FLAT.get(parent, ("", ()))
    return importlib.import_module(f"flowvm.{package}") if last in modules else None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the roots."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, inner = fullname.partition(".")
        if root not in ROOTS:
            return None
        if _counterpart(inner) is None:
            _missed[fullname] += 1
            raise ModuleNotFoundError(
                f"flowvm has no module for {fullname!r}{instead_of(inner)}", name=fullname
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        counterpart = _counterpart(spec.name.partition(".")[2])
        if counterpart is None:
            raise ModuleNotFoundError(f"flowvm has no module for {spec.name!r}", name=spec.name)
        if spec.name in ROOTS:
            tensor_classes.root[0] = spec.name
        if spec.name == "oneflow":
            oneflow.take()
        return _Mirror(spec.name, counterpart)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a mirror has no code to run."""


_finder: Final = _Finder()


def install(*, report: bool = True) -> None:
    """Let `import torch` and `import oneflow` mean flowvm, from now on.

    report    list on stderr, when Python ends, what was asked for and is not there

    ArgumentError if PyTorch or OneFlow itself is imported already.
    """
    if is_installed():
        return
    for root in ROOTS:
        if root in sys.modules and not isinstance(sys.modules[root], _Mirror):
            raise ArgumentError(
                f"flowvm.compat.torch.install: {root} is imported already; install first"
            )
    sys.meta_path.insert(0, _finder)
    if report:
        atexit.register(_report)


def is_installed() -> bool:
    """Return True if `import torch` and `import oneflow` mean flowvm now."""
    return _finder in sys.meta_path


def uninstall() -> None:
    """Restore the meaning of `import torch` and `import oneflow`.  Modules imported before keep
    their contents.
    """
    if is_installed():
        sys.meta_path.remove(_finder)
    for name in [n for n, module in sys.modules.items() if isinstance(module, _Mirror)]:
        del sys.modules[name]
    atexit.unregister(_report)
    _missed.clear()
    oneflow.leave()
    tensor_classes.root[0] = "flowvm"


def missing() -> dict[str, int]:
    """Return the names that were asked for and do not exist, with the number of requests."""
    return dict(sorted(_missed.items()))


def _report() -> None:
    if _missed:
        print(f"flowvm.compat.torch: {len(_missed)} names that flowvm has not:", file=sys.stderr)
        for name, count in missing().items():
            print(f"  {name}" + (f"  ({count} times)" if count > 1 else ""), file=sys.stderr)
