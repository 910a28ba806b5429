"""Module: a tree of parameters, buffers and other modules, with a forward.

Invariants:
- `_parameters`, `_buffers` and `_modules` say what is registered and in which order; None is a
  registered absence (a bias that was not wanted).
- Whatever is registered is also an ordinary instance attribute of the same name. So `self.weight`
  is one dict lookup, as fast as any attribute, and `__getattr__` is for what is not there. `_put`,
  __delattr__ and the tables themselves (`flowvm.nn.tables`) keep both sides equal.
- A parameter keeps its identity for life: to(), half() and load_state_dict() change what it holds.

What a module does with state dicts is in state.py, what it does with hooks in hooks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import setitem
from typing import TYPE_CHECKING, Any, NoReturn, Self

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.modes import note_change
from flowvm.eager.native.functions import module_call
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError, MissingNameError
from flowvm.files.printable import printable
from flowvm.guards.exchange import exchange
from flowvm.meta.dtype import DType, bfloat16, float16, float32, float64
from flowvm.nn import state
from flowvm.nn.hooks import (
    REGISTRATION,
    Hooks,
    RemovableHandle,
    call_with_hooks,
    hooked,
    registered,
)
from flowvm.nn.module_text import fold, module_html
from flowvm.nn.parameter import Buffer, Parameter, set_data
from flowvm.nn.stages import Configured
from flowvm.nn.tables import TABLES, Table
from flowvm.vm.callers.tracebacks import border, cut
from flowvm.vm.engine.persistent import HOLDERS, Holder

if TYPE_CHECKING:
    from flowvm.meta.device import Device


def _forward_missing(self: Module, *args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError(
        f'Module [{type(self).__name__}] is missing the required "forward" function'
    )


def leave(error: FlowError, module: Module) -> None:
    """An error leaves the call of `module`: only the user's frames are shown, and a note says which
    layer of the outermost model it was, by its path: "in layers.2.fc (Linear) of Net".

    Each call around the layer puts its own part in front, for none knows which is the outermost.
    """
    cut(error)
    if error.layer is None:
        error.layer = type(module).__name__, "", module, ""
        return
    kind, path, inner, message = error.layer
    own = next((name for name, below in module.named_modules() if below is inner), "")
    if own:  # else what called it is no part of this one
        path = f"{own}.{path}" if path else own
        note = printable(f"in {path} ({kind}) of {type(module).__name__}")
        error.layer = kind, path, module, note
        error.__notes__ = [*(n for n in getattr(error, "__notes__", ()) if n != message), note]


NOTHING = object()  # no argument was given


# public: nn
class Module:
    """The base of every layer and every model.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.fc(x).relu()
    """

    training: bool
    _parameters: Table
    _buffers: Table
    _modules: Table
    _transient: set[str]  # names of the buffers that state_dict leaves out
    _hooks: Hooks | None = None
    _version = 1  # what `_load_from_state_dict` is told of a state dict's own
    dump_patches = False
    call_super_init = False
    config = Configured()  # what graphs are told of it; a user's own of that name hides it

    def __init__(self, *args: object, **kwargs: object) -> None:
        if not self.call_super_init and (args or kwargs):
            raise ArgumentTypeError(
                f"{type(self).__name__}: Module.__init__() takes no arguments, got "
                f"{(*args, *kwargs)}"
            )
        own = self.__dict__  # written directly: __setattr__ needs these tables to exist
        own["training"] = True
        own["_parameters"] = Table(self)
        own["_buffers"] = Table(self)
        own["_modules"] = Table(self)
        own["_transient"] = set()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    # A class attribute, not a method, so that a subclass may give forward any signature it likes.
    forward: Callable[..., Any] = _forward_missing

    def __call__(self, input: Any = NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        try:
            # the usual call, of one argument, by itself: what is passed on by stars costs more
            # than all else here, and `_hooks`, for there is a `__getattr__`, a third of the rest
            if not (hooked or args or kwargs or input is NOTHING):
                return self.forward(input)
            if input is not NOTHING:
                args = (input, *args)
            if self._hooks is None:
                return self.forward(*args, **kwargs)
            return call_with_hooks(self, self._hooks, args, kwargs)
        except FlowError as error:
            leave(error, self)
            raise

    if not TYPE_CHECKING:
        __call__ = module_call(__call__, hooked, leave)

    # ---- registration

    if not TYPE_CHECKING:

        @border
        def __getattr__(self, name: str) -> Any:
            """Return the entry of a dict that the program has put in a table's place; all other
            names are missing.  A subclass's own `__getattr__` may ask `super()` first.
            """
            table = self._table_of(name)
            if table is not None:
                return self.__dict__[table][name]
            raise MissingNameError(
                f"{type(self).__name__!r} object has no attribute {name!r}",
                name,
                partial(dir, self),
            )

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Parameter):
            if type(self).register_parameter is _register_parameter:
                self._put("_parameters", name, value)
            else:  # a program has put its own in its place, as accelerate does
                self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._put("_modules", name, value)
        elif isinstance(value, Buffer) and "_modules" in self.__dict__:
            self._put("_buffers", name, value)
            (self._transient.discard if value.persistent else self._transient.add)(name)
        elif (table := self._table_of(name)) is not None:
            self._put(table, name, _fits(table, name, value))
        elif name in TABLES:
            self._take_table(name, value)
        else:
            object.__setattr__(self, name, value)
            note_change()

    def __delattr__(self, name: str) -> None:
        table = self._table_of(name)
        if table is None:
            object.__delattr__(self, name)
        else:
            del self.__dict__[table][name]
            self.__dict__.pop(name, None)
            self._transient.discard(name)
        note_change()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or an unpickled module; its tables are its own."""
        self.__dict__.update(state)
        for table in TABLES:
            if table in self.__dict__:
                self.__dict__[table] = Table(self, self.__dict__[table])
                self.__dict__.update(self.__dict__[table])

    def _has_own(self, table: str) -> bool:
        """Return True if a table is the module's own, whose entries are attributes, too."""
        own_table = self.__dict__.get(table)
        return isinstance(own_table, Table) and own_table.belongs_to(self)

    def _take_table(self, table: str, entries: object) -> None:
        """Have `entries`, of the program or another module, in the place of a table."""
        if not isinstance(entries, Mapping):
            raise ArgumentTypeError(
                f"{type(self).__name__}.{table} is a dict of names, got {type(entries).__name__}"
            )
        own = self.__dict__
        for name, value in own.get(table, {}).items():
            if name in own and own[name] is value:
                del own[name]
        own[table] = entries
        if self._has_own(table):
            own.update(entries)
        note_change()

    def _table_of(self, name: str) -> str | None:
        own = self.__dict__
        for table in TABLES:
            if name in own.get(table, ()):
                return table
        return None

    def _put(self, table: str, name: str, value: object) -> None:
        if "_modules" not in self.__dict__:
            raise MissingNameError(
                f"cannot assign {name!r} before Module.__init__() ran; "
                f"begin {type(self).__name__}.__init__ with super().__init__()"
            )
        if REGISTRATION[table]:
            value = registered(self, table, name, value)
        before = self._table_of(name)
        if before is not None and before != table:
            del self.__dict__[before][name]
        if self._has_own(table):
            self.__dict__[table].note(name, value)
            object.__setattr__(self, name, value)
        else:
            self.__dict__[table][name] = value
            self.__dict__.pop(name, None)
        note_change()

    def _new_name(self, name: str, what: str, table: str) -> str:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"the name of a {what} must be a string, got {name!r}")
        if "." in name or not name:
            raise KeyError(f'the name of a {what} can neither be "" nor contain ".", got {name!r}')
        if hasattr(self, name) and self._table_of(name) != table:
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")
        return name

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or the absence of one (None), under `name`."""
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentTypeError(
                f"cannot register a {type(param).__name__} as parameter {name!r}; "
                "wrap it: nn.Parameter(tensor)"
            )
        self._put("_parameters", self._new_name(name, "parameter", "_parameters"), param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but no parameter; only persistent ones are saved."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ArgumentTypeError(
                f"buffer {name!r} must be a Tensor or None, got {type(tensor).__name__}"
            )
        self._put("_buffers", self._new_name(name, "buffer", "_buffers"), tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a child under `name`."""
        if module is not None and not isinstance(module, Module):
            raise ArgumentTypeError(f"child {name!r} must be a Module, got {type(module).__name__}")
        self._put("_modules", self._new_name(name, "module", "_modules"), module)

    register_module = add_module

    # ---- walking the tree

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) for this module and everything below it, parents first."""
        visited = set() if memo is None else memo
        if id(self) in visited:
            return
        if remove_duplicate:
            visited.add(id(self))
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(visited, _join(prefix, name), remove_duplicate)

    def _named_members(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        visited: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, member in getattr(module, table).items():
                if member is None or id(member) in visited:
                    continue
                if remove_duplicate:
                    visited.add(id(member))
                yield _join(path, name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter) in order of registration; one that is shared comes once."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(path, buffer), persistent or not."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) for the direct children."""
        visited: set[int] = set()
        for name, child in self._modules.items():
            if child is not None and id(child) not in visited:
                visited.add(id(child))
                yield name, child

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter, each once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every buffer, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and everything below it, each once."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def children(self) -> Iterator[Module]:
        """The direct children."""
        return (child for _, child in self.named_children())

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; "" is this one."""
        module = self
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise MissingNameError(
                    f"{type(module).__name__} has no child {name!r} (looking for {target!r}); "
                    f"it has {list(module._modules)}"
                )
            module = child
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put `module` at a dotted path; with `strict` only where there is a module already."""
        path, _, name = target.rpartition(".")
        if not name:
            raise ArgumentError("set_submodule: the path is empty")
        if not isinstance(module, Module):
            raise ArgumentError(f"set_submodule: {type(module).__name__} is not a Module")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise MissingNameError(f"{type(parent).__name__} has no attribute {name!r}")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise MissingNameError(f"{type(parent).__name__}.{name} is not a Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path."""
        return self._get_member("_parameters", "parameter", target)  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path."""
        return self._get_member("_buffers", "buffer", target)  # type: ignore[no-any-return]

    def _get_member(self, table: str, what: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        member = getattr(module, table).get(name)
        if member is None:
            raise MissingNameError(
                f"{type(module).__name__} has no {what} {name!r}; it has "
                f"{list(getattr(module, table))}"
            )
        return member

    # ---- doing something to the whole tree

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call fn on every module below this one, children first, then on this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Put every module below into training mode (dropout drops, batch norm uses the batch)."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"training mode is expected to be boolean, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put every module below into evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze (False) or thaw every parameter."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or fill it with zeros."""
        clear_grads(self.parameters(), set_to_none)

    def to(
        self,
        device: Any = None,
        dtype: DType | None = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Self:
        """Move every parameter and buffer to a device, and the floating point ones to a dtype.

        to(device), to(dtype), to(device, dtype) and to(tensor) all work, and change the module
        itself.  memory_format is taken and means nothing: tensors keep their own strides.
        """
        if isinstance(device, type):  # OneFlow's: a module as a graph sees it, and the module
            kind: Any = device
            return self if isinstance(self, kind) else kind.of_module(self)  # type: ignore[no-any-return]
        if isinstance(device, Tensor):
            like = device
            device, dtype = like.device, like.dtype
        elif isinstance(device, DType):
            device, dtype = None, device
        if dtype is not None and not dtype.inexact:
            raise ArgumentTypeError(
                f"nn.Module.to only accepts floating point dtypes, but got dtype={dtype}"
            )
        where, target_dtype = device, dtype

        def moved(t: Tensor) -> Tensor:
            keeps_dtype = target_dtype is None or not t.dtype.inexact
            return t.to(
                device=t.device if where is None else where,
                dtype=t.dtype if keeps_dtype else target_dtype,
                non_blocking=non_blocking,
            )

        return self._apply(moved)

    # Like PyTorch's, these go past a subclass's own `to`.

    def cpu(self) -> Self:
        """to("cpu")."""
        return Module.to(self, "cpu")

    def cuda(self, device: str | int | Device | None = None) -> Self:
        """to("cuda")."""
        return Module.to(self, "cuda" if device is None else device)

    def xpu(self, device: str | int | Device | None = None) -> Self:
        """to("xpu"), a device that flowvm has not: an error that says which there are."""
        return Module.to(self, "xpu" if device is None else device)

    def type(self, dst_type: DType) -> Self:
        """Every parameter and buffer as `dst_type`, whatever it was."""
        return self._apply(lambda t: t.to(dst_type))

    def to_empty(self, *, device: str | int | Device | None, recurse: bool = True) -> Self:
        """Every parameter and buffer as memory of its shape on `device`, with no values yet."""
        return self._apply(lambda t: ops.empty_like(t, device=device), recurse)

    def share_memory(self) -> Self:
        """Move parameters and buffers to memory that other processes can have: see
        `Tensor.share_memory_`.
        """
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def half(self) -> Self:
        """to(float16)."""
        return Module.to(self, float16)

    def bfloat16(self) -> Self:
        """to(bfloat16)."""
        return Module.to(self, bfloat16)

    def float(self) -> Self:
        """to(float32)."""
        return Module.to(self, float32)

    def double(self) -> Self:
        """to(float64)."""
        return Module.to(self, float64)

    def to_global(self, placement: Any = None, sbp: Any = None) -> Self:
        """Make every parameter and buffer a global tensor on `placement`, held as `sbp` says; the
        module itself.  Local ones become the first rank's; see `Tensor.to_global`.  Global ones
        keep what is None.
        """
        return self._apply(lambda t: t.to_global(placement, sbp))

    def to_local(self) -> Self:
        """Make every global parameter and buffer this rank's part of it; the module itself."""
        return self._apply(lambda t: t.to_local() if t.is_global else t)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with no_grad():
            for param in self.parameters(recurse):
                set_data(param, fn(param.detach()))
                if param.grad is not None:
                    param.grad = fn(param.grad)
            for module in self.modules() if recurse else (self,):
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._put("_buffers", name, fn(buffer))
        return self

    # ---- state

    def state_dict(
        self,
        *args: Any,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Path -> tensor, sharing data, for every parameter and persistent buffer.

        An OrderedDict whose `_metadata` has the versions of the modules.  The three arguments may
        also come by position.
        """
        by_position = dict(zip(("destination", "prefix", "keep_vars"), args, strict=False))
        destination = by_position.get("destination", destination)
        prefix = by_position.get("prefix", prefix)
        keep_vars = by_position.get("keep_vars", keep_vars)
        return state.collect(self, destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy a state dict into this module, or change nothing and raise if it does not fit.

        strict=False tolerates missing and unexpected names, which are returned; assign=True takes
        the tensors themselves instead of copying.  Where a module has a hook that may excuse names
        (`register_load_state_dict_post_hook`), what fits is copied before it runs.
        """
        return state.load(self, state_dict, strict, assign)

    def _save_to_state_dict(
        self, destination: dict[str, object], prefix: str, keep_vars: bool
    ) -> None:
        """Save this module's own entries, without its children's; a subclass may add more."""
        state.save_own(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own entries, without its children's; a subclass may change them
        first.
        """
        state.load_own(
            self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
            error_msgs,
        )  # fmt: skip

    def get_extra_state(self) -> Any:
        """Return additional state to save; a subclass defines this and `set_extra_state`, or
        neither.
        """
        raise NotImplementedError(f"{type(self).__name__} has no get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` gave."""
        raise NotImplementedError(f"{type(self).__name__} has no set_extra_state")

    # ---- hooks

    def _own_hooks(self) -> Hooks:
        own = self.__dict__
        if own.get("_hooks") is None:
            change = (setitem, (own, "_hooks", Hooks()))
            exchange(map(own.get, ("_hooks",)), (None,), (change,))
        hooks: Hooks = own["_hooks"]
        return hooks

    @property
    def _forward_hooks(self) -> dict[int, Callable[..., object]]:
        return self._own_hooks().forward

    @property
    def _forward_pre_hooks(self) -> dict[int, Callable[..., object]]:
        return self._own_hooks().forward_pre

    @property
    def _backward_hooks(self) -> dict[int, Callable[..., object]]:
        return self._own_hooks().backward

    def register_forward_pre_hook(
        self, hook: Callable[..., object], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """hook(module, args) before forward; may return new args.

        with_kwargs: hook(module, args, kwargs), which may return (args, kwargs).
        """
        hooks = self._own_hooks()
        handle = RemovableHandle(hooks.forward_pre, hook, prepend)
        if with_kwargs:
            hooks.with_kwargs.add(handle.id)
        return handle

    def register_forward_hook(
        self,
        hook: Callable[..., object],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """hook(module, args, output) after forward; may return a new output.

        with_kwargs: hook(module, args, kwargs, output); always_call: also when forward raises, and
        then `output` is None.
        """
        hooks = self._own_hooks()
        handle = RemovableHandle(hooks.forward, hook, prepend)
        if with_kwargs:
            hooks.with_kwargs.add(handle.id)
        if always_call:
            hooks.always.add(handle.id)
        return handle

    def register_full_backward_pre_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """hook(module, grad_output) before the module's backward; may return a new grad_output."""
        return RemovableHandle(self._own_hooks().backward_pre, hook, prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """hook(module, grad_input, grad_output) after its backward; may return a new grad_input."""
        return RemovableHandle(self._own_hooks().backward, hook, prepend)

    def register_backward_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """register_full_backward_hook: grad_input is of the module's inputs, also where PyTorch's
        older hook has that of its last op.
        """
        return self.register_full_backward_hook(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """hook(module, prefix, keep_vars) before this module is put into a state dict."""
        return RemovableHandle(self._own_hooks().state_pre, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata) after all below is in the state dict,
        which it may change in place.
        """
        return RemovableHandle(self._own_hooks().state, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs) before this module takes its part; may change the state dict in place.
        """
        return RemovableHandle(self._own_hooks().load_pre, partial(hook, self))

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., object], with_module: bool = False
    ) -> RemovableHandle:
        bound = partial(hook, self) if with_module else hook
        return RemovableHandle(self._own_hooks().load_pre, bound)

    def register_load_state_dict_post_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """hook(module, incompatible_keys) after this module and all below have loaded; may change
        the two lists of names in place.
        """
        return RemovableHandle(self._own_hooks().load, hook)

    # ---- printing

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr; a subclass may define it."""
        return ""

    def __repr__(self) -> str:
        lines = self.extra_repr().split("\n") if self.extra_repr() else []
        children = fold([(name, repr(child)) for name, child in self._modules.items()])
        name = printable(self._get_name())
        if not children and len(lines) <= 1:
            return f"{name}({printable(''.join(lines))})"
        body = "\n".join(lines + children).replace("\n", "\n  ")
        return printable(f"{name}(\n  {body}\n)", lines=True)

    def _repr_html_(self) -> str:
        return module_html(self, Module.__repr__)


def clear_grads(params: Iterator[Tensor], set_to_none: bool) -> None:
    """Clear the gradients of parameters, for the `zero_grad` of modules and optimizers."""
    for param in params:
        if set_to_none:  # whatever it is: a graph needs not know
            param.grad = None
        elif param.grad is not None:
            with no_grad():
                param.grad = param.grad.detach()
                param.grad.zero_()


def _fits(table: str, name: str, value: Any) -> Any:
    """`value` for a registered name whose new value is neither a Parameter nor a Module."""
    kind = {"_parameters": Parameter, "_buffers": Tensor, "_modules": Module}[table]
    if value is not None and not isinstance(value, kind):
        raise ArgumentTypeError(
            f"cannot assign a {type(value).__name__} as {table[1:-1]} {name!r} "
            f"(a {kind.__name__} or None expected)"
        )
    return value


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _held(module: Module) -> Iterator[tuple[int, bool]]:
    for table in ("_parameters", "_buffers"):
        for tensor in list(module.__dict__.get(table, {}).values()):
            if hasattr(tensor, "_ref"):  # not None, and not one that is still lazy
                yield tensor._ref, False


def _paths(modules: list[Module]) -> Iterator[tuple[int, str]]:
    """Map the memory of parameters and buffers to their paths, in modules without a parent."""
    inner = {id(child) for m in modules for child in m.__dict__.get("_modules", {}).values()}
    for module in modules:
        if "_modules" in module.__dict__ and id(module) not in inner:
            for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                if hasattr(tensor, "_ref"):
                    yield tensor._ref, path


HOLDERS.append(Holder(Module, _held, names=_paths))


_register_parameter = Module.register_parameter
_IncompatibleKeys = state.IncompatibleKeys  # as PyTorch's module has it
