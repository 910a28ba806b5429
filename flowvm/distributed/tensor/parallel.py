"""Tensor parallel modules: `parallelize_module(model, mesh, {"up": ColwiseParallel(), ...})`.

Each style makes the parameters of one module global, and sets the layouts of its inputs and
outputs.  The layouts of the ops between follow.  With local inputs and outputs at both ends a model
needs no other change.  The idea and the splits: Shoeybi et al., Megatron-LM, 2019,
arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from typing import Any

from flowvm.distributed.device_mesh import DeviceMesh, current_mesh
from flowvm.distributed.tensor.dtensor import DTensor, distribute_module, distribute_tensor
from flowvm.distributed.tensor.placement_types import Placement, Replicate, Shard
from flowvm.eager.modes import current_recorder, grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module
from flowvm.nn.modules.linear import Linear
from flowvm.nn.modules.sparse import Embedding

__dir__ = listing(globals())
Layouts = Placement | None


class ParallelStyle:
    """A way to make a module parallel.  Subclasses have `_apply(module, mesh)`.

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> isinstance(tp.ColwiseParallel(), tp.ParallelStyle)
    True
    """

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        raise NotImplementedError


def _held(x: Any, now: Layouts, target: Layouts, mesh: DeviceMesh, local: bool = False) -> Any:
    """Return `x` held as `target`; None leaves it as it is.  `now` is the present layout of a local
    `x`.
    """
    if not isinstance(x, Tensor) or (now is None and not x.is_global):
        return x
    if not x.is_global:
        x = _shared(x, now, mesh)
    if target is not None:
        held = tuple(target.as_sbp(x.ndim) for _ in range(mesh.ndim))
        if x.sbp != held:
            x = x.to_global(mesh.flow_placement, held)
    return x.to_local() if local else x


def _shared(x: Tensor, now: Layouts, mesh: DeviceMesh) -> Any:
    """Return `x`, a local tensor, as global.  Modules that are called with the same one get the
    same: then their gradients are added first, and summed over ranks once.
    """
    key = x._node, x.version, now, mesh.flow_placement, current_recorder(), grad_enabled()
    inner = x._node is not None and not x.is_leaf
    known = x.extra().get("shared") if inner else None
    if known is not None and all(a is b or a == b for a, b in zip(known[0], key, strict=True)):
        return known[1]
    shared = DTensor.from_local(x, mesh, [now] * mesh.ndim)  # type: ignore[list-item]
    if inner:
        x.extra()["shared"] = key, shared
    return shared


def _one_dimension(style: object, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ArgumentError(
            f"{type(style).__name__}: needs a mesh of one dimension, got {mesh!r}; take one of it: "
            f'mesh["name"]'
        )


class _OfWeights(ParallelStyle):
    """A style of Linear and Embedding: where parameters are cut, and the layouts."""

    cuts: Mapping[type[Module], Mapping[str, Placement]]
    layouts: Mapping[type[Module], Placement]  # how the input is to be held, and local ones are
    usual: Placement  # how the output is held

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        output_layouts: Layouts = None,
        use_local_output: bool = True,
    ) -> None:
        self.inputs, self.local = input_layouts, use_local_output
        self.outputs = output_layouts or self.usual

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        _one_dimension(self, mesh)
        kind = next((k for k in self.cuts if isinstance(module, k)), None)
        if kind is None:
            raise ArgumentTypeError(
                f"{type(self).__name__}: takes Linear and Embedding, got {type(module).__name__}"
            )
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                where = self.cuts[kind].get(name, Replicate())
                setattr(module, name, distribute_tensor(parameter, mesh, [where]))
        layout, outputs = self.layouts[kind], self.outputs
        inputs = self.inputs or layout

        def before(module: Module, args: tuple[object, ...]) -> tuple[Any, ...]:
            return (_held(args[0], inputs, layout, mesh), *args[1:])

        def after(module: Module, args: tuple[Any, ...], output: Any) -> Any:
            return _held(output, None, outputs, mesh, self.local)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


class ColwiseParallel(_OfWeights):
    """Each rank computes some of the output's columns: of a Linear's rows of weights and biases, or
    of an Embedding's columns.

    input_layouts      how local inputs are held, Replicate() by default
    output_layouts     how the output is to be held, Shard(-1) by default
    use_local_output   whether the output is this rank's part, and no global tensor

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> tp.parallelize_module(flow.nn.Linear(2, 4), mesh, tp.ColwiseParallel()).weight.placements
    (Shard(dim=0),)
    """

    cuts = {  # noqa: RUF012 - declared above
        Linear: {"weight": Shard(0), "bias": Shard(0)}, Embedding: {"weight": Shard(1)},
    }  # fmt: skip
    layouts = {Linear: Replicate(), Embedding: Replicate()}  # noqa: RUF012
    usual = Shard(-1)


class RowwiseParallel(_OfWeights):
    """Each rank multiplies some of the input's columns, or looks up some of an Embedding's rows;
    the results are added.

    input_layouts      how local inputs are held: Shard(-1) by default of a Linear, Replicate() of
                       an Embedding
    output_layouts     how the output is to be held, Replicate() by default
    use_local_output   whether the output is this rank's part, and no global tensor

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> tp.parallelize_module(flow.nn.Linear(2, 4), mesh, tp.RowwiseParallel()).weight.placements
    (Shard(dim=1),)
    """

    cuts = {  # noqa: RUF012 - declared above
        Linear: {"weight": Shard(1)}, Embedding: {"weight": Shard(0)},
    }  # fmt: skip
    layouts = {Linear: Shard(-1), Embedding: Replicate()}  # noqa: RUF012
    usual = Replicate()


class SequenceParallel(ParallelStyle):
    """LayerNorm, RMSNorm, Dropout and the like, on an input whose sequence the ranks share.

    sequence_dim       the dimension of the sequence; local inputs are parts of it
    use_local_output   whether the output is this rank's part, and no global tensor

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> tp.parallelize_module(flow.nn.LayerNorm(2), mesh, tp.SequenceParallel())(
    ...     flow.ones(2, 3, 2)
    ... ).placements
    (Shard(dim=1),)
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.cut, self.local = Shard(sequence_dim), use_local_output

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        _one_dimension(self, mesh)
        return distribute_module(
            module,
            mesh,
            None,
            lambda m, args, mesh: (_held(args[0], self.cut, self.cut, mesh), *args[1:]),
            lambda m, output, mesh: _held(output, None, self.cut, mesh, self.local),
        )


def _listed(layouts: Any) -> tuple[Layouts, ...]:
    return tuple(layouts) if isinstance(layouts, (tuple, list)) else (layouts,)


def _each(
    what: str, values: Sequence[Any], now: Any, targets: Any, mesh: DeviceMesh, local: bool
) -> tuple[Any, ...]:
    now, targets = _listed(now), _listed(targets)
    if not len(values) == len(now) == len(targets):
        raise ArgumentError(
            f"{what}: layouts are one for each of the {len(values)} positional values, got "
            f"{len(now)} and {len(targets)}"
        )
    return tuple(
        _held(v, n, w, mesh, local) if n is not None else v
        for v, n, w in zip(values, now, targets, strict=True)
    )


class PrepareModuleInput(ParallelStyle):
    """The layouts of a module's inputs.

    input_layouts, desired_input_layouts               of positional inputs: of each one, in a
                                                       tuple, what ranks hold, and what they are to
                                                       hold; None leaves an input as it is
    input_kwarg_layouts, desired_input_kwarg_layouts   of keyword inputs, by name
    use_local_output                                   whether forward gets parts

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> style = tp.PrepareModuleInput(
    ...     input_layouts=tp.Shard(0), desired_input_layouts=tp.Replicate()
    ... )
    >>> tp.parallelize_module(flow.nn.Identity(), mesh, style)(flow.ones(2)).placements
    (Replicate(),)
    """

    def __init__(
        self,
        *,
        input_layouts: object = None,
        desired_input_layouts: object = None,
        input_kwarg_layouts: Mapping[str, Layouts] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Layouts] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.layouts, self.desired = input_layouts, desired_input_layouts
        self.kwargs = dict(input_kwarg_layouts or {})
        self.desired_kwargs = dict(desired_input_kwarg_layouts or {})
        self.local = use_local_output
        if set(self.kwargs) != set(self.desired_kwargs):
            raise ArgumentError(
                f"PrepareModuleInput: layouts of {sorted(self.kwargs)}, and desired ones of "
                f"{sorted(self.desired_kwargs)}"
            )

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        def before(
            module: Module, args: tuple[object, ...], named: dict[str, object]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if self.layouts is not None:
                what = type(self).__name__
                args = _each(what, args, self.layouts, self.desired, mesh, self.local)
            for name, now in self.kwargs.items():
                if now is not None and name in named:
                    target = self.desired_kwargs[name]
                    named = {**named, name: _held(named[name], now, target, mesh, self.local)}
            return args, named

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """The layouts of a module's outputs.

    output_layouts, desired_output_layouts   of one output, or of each in a tuple: what ranks hold
                                             of it if it is local, and what they are to hold
    use_local_output                         whether they are parts, and no global tensors

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> style = tp.PrepareModuleOutput(
    ...     output_layouts=tp.Shard(0), desired_output_layouts=tp.Replicate()
    ... )
    >>> tp.parallelize_module(flow.nn.Identity(), mesh, style)(flow.ones(2)).is_global
    False
    """

    def __init__(
        self,
        *,
        output_layouts: object,
        desired_output_layouts: object,
        use_local_output: bool = True,
    ) -> None:
        self.layouts, self.desired = output_layouts, desired_output_layouts
        self.local = use_local_output

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        def after(module: Module, args: tuple[Any, ...], output: Any) -> Any:
            what = type(self).__name__
            if isinstance(output, (tuple, list)):
                return _each(what, output, self.layouts, self.desired, mesh, self.local)
            return _each(what, (output,), self.layouts, self.desired, mesh, self.local)[0]

        module.register_forward_hook(after)
        return module


class PrepareModuleInputOutput(ParallelStyle):
    """A style of `PrepareModuleInput` and `PrepareModuleOutput` together, by their arguments.

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> style = tp.PrepareModuleInputOutput(
    ...     input_layouts=tp.Shard(0), desired_input_layouts=tp.Replicate(),
    ...     output_layouts=tp.Replicate(), desired_output_layouts=tp.Shard(0),
    ... )
    >>> tp.parallelize_module(flow.nn.Identity(), mesh, style)(flow.ones(2))
    tensor([1., 1.])
    """

    def __init__(
        self,
        *,
        input_layouts: object = None,
        desired_input_layouts: object = None,
        input_kwarg_layouts: Mapping[str, Layouts] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Layouts] | None = None,
        use_local_input: bool = False,
        output_layouts: object,
        desired_output_layouts: object,
        use_local_output: bool = True,
    ) -> None:
        self.styles = (
            PrepareModuleInput(
                input_layouts=input_layouts,
                desired_input_layouts=desired_input_layouts,
                input_kwarg_layouts=input_kwarg_layouts,
                desired_input_kwarg_layouts=desired_input_kwarg_layouts,
                use_local_output=use_local_input,
            ),
            PrepareModuleOutput(
                output_layouts=output_layouts,
                desired_output_layouts=desired_output_layouts,
                use_local_output=use_local_output,
            ),
        )

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        for style in self.styles:
            style._apply(module, mesh)
        return module


def loss_parallel() -> AbstractContextManager[None]:
    """A region for losses of logits whose classes the ranks share, `Shard(1)` of a matrix.

    `cross_entropy` leaves such logits where they are: ranks exchange two numbers a sample, and
    gradients are held as logits are.  It does so everywhere; the region has the name that programs
    write.

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> logits = flow.distributed.tensor.distribute_tensor(flow.zeros(1, 4), mesh, [tp.Shard(1)])
    >>> target = flow.distributed.tensor.distribute_tensor(flow.tensor([2]), mesh)
    >>> with tp.loss_parallel():
    ...     round(F.cross_entropy(logits, target).item(), 4)
    1.3863
    """
    return nullcontext()


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Module:
    """Make a module parallel by a style, or modules inside it by styles by their names: "up",
    "layers.*.up" (`*` is any name between two points).

    The parameters of the first rank count.  ArgumentError where a name is of no module.

    >>> import flowvm.distributed.tensor.parallel as tp
    >>> mesh = flow.distributed.device_mesh.init_device_mesh("cpu", (1,))
    >>> mlp = flow.nn.Sequential(flow.nn.Linear(2, 4), flow.nn.ReLU(), flow.nn.Linear(4, 2))
    >>> plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
    >>> tp.parallelize_module(mlp, mesh, plan)(flow.ones(1, 2)).shape
    flow.Size([1, 2])
    """
    mesh = current_mesh() if device_mesh is None else device_mesh
    if isinstance(parallelize_plan, ParallelStyle):
        return parallelize_plan._apply(module, mesh)
    if not isinstance(parallelize_plan, Mapping):
        kind = type(parallelize_plan).__name__
        raise ArgumentTypeError(
            f"parallelize_module: parallelize_plan is a ParallelStyle, or styles by the names of "
            f"modules, got {kind}"
        )
    for pattern, style in parallelize_plan.items():
        parts = pattern.split(".")
        submodules = [
            inner for name, inner in module.named_modules()
            if len(names := name.split(".")) == len(parts) and all(map(fnmatch, names, parts))
        ]  # fmt: skip
        if not submodules:
            raise ArgumentError(
                f"parallelize_module: no module of {type(module).__name__} is called {pattern!r}"
            )
        for inner in submodules:
            style._apply(inner, mesh)
    return module


__all__ = own_names(globals())
