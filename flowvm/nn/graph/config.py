"""Settings of one graph, for capture and compilation: `graph.config`.

    graph.config.disable("fusion")                      # a pass left out
    graph.config.enable_amp(True, dtype=flow.float16)   # OneFlow's names, where it has the thing
    graph.config.set_gradient_accumulation_steps(4)

A setting is part of what a call is looked up by, so one that changes after a capture makes the next
call capture again, and one that is put back finds the Plan of before.  Nothing here does anything
by itself: `Graph` and the passes read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.graph.passes.order import ORDERS
from flowvm.graph.passes.passes import PASSES, pass_names
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import DType, float16
from flowvm.nn.module import Module
from flowvm.streams import Stream

if TYPE_CHECKING:
    from flowvm.lab import placement
else:
    placement = lazy("flowvm.lab.placement")


SCHEDULES = ("1f1b", "gpipe")


class GraphConfig:
    """The settings of one graph; `print(graph.config)` shows them.

    passes                       {name: whether it runs}, in the order in which they run
    amp_dtype                    the dtype of mixed precision, None without
    gradient_accumulation_steps  how many micro-batches a call takes, 1 without accumulation
    checkpoints                  modules, or their paths, whose activations are computed again
    order                        of execution: "speed", "memory", "auto" (memory where much of it
                                 is needed), or "program", as code issued it
    zero                         stage of ZeRO, 0 without, and the fewest elements that are cut
    auto_parallel                the fewest elements of parameters for which sbp is searched, or 0
    every                        of how many calls one is run eagerly, too, and compared; 0 of none
    placement                    of `schedule`: the policy that gives tasks their streams, or None
    regst_num                    calls that may be in flight at one time, if build uses several
                                 streams: how many copies of each register there are (2)
    key                          all of it, hashable; another object after each change
    """

    training = False  # whether the graph has an optimizer

    def __init__(self) -> None:
        self._off: set[str] = set()
        self._amp: DType | None = None
        self._accumulation = 1
        self._checkpoints: tuple[Any, ...] = ()
        self._order = ORDERS[0]
        self._regst_num = 2
        self._placement: placement.Placement | None = None
        self._zero = (0, 0)
        self._auto_parallel = 0
        self._every = 0
        self._schedule = "1f1b"
        self._changed()

    def _changed(self) -> None:
        self.key: tuple[Any, ...] = (
            tuple(sorted(self._off)),
            self._amp,
            self._accumulation,
            self._checkpoints,
            self._order,
            self._regst_num,
            self._zero,
            self._auto_parallel,
            self._placement,
            self._schedule,
        )

    # --- passes -------------------------------------------------------------------------------

    @property
    def passes(self) -> dict[str, bool]:
        """Each pass by name, in the order in which they run, and whether it does; a copy."""
        return {name: name not in self._off for name in PASSES}

    @property
    def without(self) -> tuple[str, ...]:
        """Names of the passes that are left out."""
        return tuple(name for name in PASSES if name in self._off)

    def enable(self, *names: str) -> None:
        """Let these passes run; ArgumentError for a name that is none."""
        self._off -= set(pass_names(names))
        self._changed()

    def disable(self, *names: str) -> None:
        """Leave these passes out; ArgumentError for a name that is none."""
        self._off |= set(pass_names(names))
        self._changed()

    # --- what has a setting of its own --------------------------------------------------------

    @property
    def amp_dtype(self) -> DType | None:
        """The dtype of mixed precision, None without."""
        return self._amp

    def enable_amp(self, mode: bool = True, *, dtype: DType = float16) -> None:
        """Run what is safe in `dtype`, float16 or bfloat16: `build` runs under `flow.autocast`.

        ArgumentTypeError for a mode that is no bool or a dtype that is none, ArgumentError for one
        that autocast does not have.
        """
        _expect(mode, bool, "enable_amp", "mode")
        _expect(dtype, DType, "enable_amp", "dtype")
        if not dtype.reduced:
            raise ArgumentError(
                f"enable_amp: dtype must be flow.float16 or flow.bfloat16, got {dtype!r}"
            )
        self._amp = dtype if mode else None
        self._changed()

    @property
    def zero(self) -> tuple[int, int]:
        """The stage of ZeRO, 0 without it, and from how many elements on tensors are cut."""
        return self._zero

    def enable_zero(
        self,
        mode: bool = True,
        *,
        stage: int = 2,
        shard_min_size: int = 1024,
        shard_restore_level: int = 1,
    ) -> None:
        """Cut among ranks what all of them have alike of global parameters: with stage 1 what
        optimizers keep of them, with 2 their gradients, too.  Each rank then updates its part, and
        gathers the others'.  With 3 parameters themselves are cut by the first call, and stay so:
        an op that wants one whole gathers it, forward and once more backward, for as long as it
        runs.  To be set before the first call, which makes the optimizers' state.

        shard_min_size       parameters of fewer elements stay whole
        shard_restore_level  OneFlow's 0, 1 or 2: where its compiler gathers a parameter again; here
                             an op that wants it does

        ArgumentError for another stage.
        """
        _expect(mode, bool, "enable_zero", "mode")
        if shard_restore_level not in (0, 1, 2):
            raise ArgumentError(
                f"enable_zero: shard_restore_level is 0, 1 or 2, got {shard_restore_level!r}"
            )
        if stage not in (1, 2, 3):
            raise ArgumentError(f"enable_zero: stage is 1, 2 or 3, got {stage!r}")
        if isinstance(shard_min_size, bool) or not isinstance(shard_min_size, int):
            raise ArgumentTypeError(
                f"enable_zero: shard_min_size is an int, got {shard_min_size!r}"
            )
        self._zero = (stage, max(1, shard_min_size)) if mode else (0, 0)
        self._changed()

    @property
    def auto_parallel(self) -> int:
        """From how many elements on parameters' sbp is searched; 0 without the search."""
        return self._auto_parallel

    def enable_auto_parallel(self, mode: bool = True, *, min_size: int = 1024) -> None:
        """Search how global parameters, and inputs inside of the graph, are best held: the first
        call captures `build` with one way and another, prices each by what this machine computes
        and exchanges in a second, and moves parameters to the cheapest, where they stay.
        `graph.explain()` says what was found.  To be set before the first call.

        min_size   parameters of fewer elements stay as they are

        ArgumentTypeError unless mode is a bool and min_size an int, ArgumentError below 1.
        """
        _expect(mode, bool, "enable_auto_parallel", "mode")
        if isinstance(min_size, bool) or not isinstance(min_size, int):
            raise ArgumentTypeError(f"enable_auto_parallel: min_size is an int, got {min_size!r}")
        if min_size < 1:
            raise ArgumentError(f"enable_auto_parallel: min_size is 1 or more, got {min_size}")
        self._auto_parallel = min_size if mode else 0
        self._changed()

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of micro-batches in a call."""
        return self._accumulation

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Let a call take `value` micro-batches before it steps the optimizers.

        ArgumentTypeError unless it is an int, ArgumentError unless it is positive.
        """
        if isinstance(value, bool):
            raise ArgumentTypeError("set_gradient_accumulation_steps: value must be int, got bool")
        _expect(value, int, "set_gradient_accumulation_steps", "value")
        if value < 1:
            raise ArgumentError(f"set_gradient_accumulation_steps: at least 1, got {value}")
        self._accumulation = value
        self._changed()

    @property
    def pipeline_schedule(self) -> str:
        """The schedule of pipeline stages: "1f1b" or "gpipe"."""
        return self._schedule

    def set_pipeline_schedule(self, schedule: str) -> None:
        """Say how many micro-batches a rank of stage i of p may have in flight: p - i ("1f1b"), or
        all of a call ("gpipe").  Where a rank has several stages, set by `set_stage` in turns,
        "1f1b" is interleaved.

        ArgumentError for another schedule.

        >>> graph = nn.Graph()
        >>> graph.config.set_pipeline_schedule("gpipe")
        >>> graph.config.pipeline_schedule
        'gpipe'
        """
        if schedule not in SCHEDULES:
            raise ArgumentError(
                f"set_pipeline_schedule: one of {', '.join(SCHEDULES)}, got {schedule!r}"
            )
        self._schedule = schedule
        self._changed()

    @property
    def checkpoints(self) -> tuple[str | Module, ...]:
        """Modules, or their paths ("model.blocks.0"), given to `checkpoint`."""
        return self._checkpoints

    def checkpoint(self, *modules: str | Module) -> None:
        """Keep no activations of these modules: backward computes them again.

        Each is a module, or its path as `print(graph)` shows it, "model.blocks.0"; none at all
        takes back what was given before.  ArgumentTypeError for anything else.
        """
        for module in modules:
            _expect(module, (str, Module), "checkpoint", "each argument")
        new = tuple(m for m in dict.fromkeys(modules) if m not in self._checkpoints)
        self._checkpoints = (*self._checkpoints, *new) if modules else ()
        self._changed()

    @property
    def order(self) -> str:
        """The order of execution: "auto" (default), "speed", "memory" or "program"."""
        return self._order

    @order.setter
    def order(self, value: str) -> None:
        if value not in ORDERS:
            raise ArgumentError(f"order must be one of {', '.join(ORDERS)}, got {value!r}")
        self._order = value
        self._changed()

    @property
    def every(self) -> int:
        """The interval between checked calls: 10 checks every tenth call, 0 checks none."""
        return self._every

    def check(self, n: int = 1) -> None:
        """Run every n-th call as eager code, too, on copies of the graph's modules and optimizers,
        and compare; 0 ends that.

        Bit by bit with a capture without the passes that may change a bit (fusion, epilogues,
        accumulate, slices): outputs, parameters, buffers, gradients, what optimizers have, the
        random number generator.  The outputs of the graph as it is, but for rounding.  A call that
        differs raises a CheckError, which names the first node that wrote such a value and, if
        there is one, the pass without which it is the same.

        A checked call copies the model three times, captures once and runs three times.
        ArgumentTypeError unless n is an int, ArgumentError if it is negative; a call, ArgumentError
        for a function that changes tensors besides its arguments.
        """
        if isinstance(n, bool):
            raise ArgumentTypeError("check: n must be int, got bool")
        _expect(n, int, "check", "n")
        if n < 0:
            raise ArgumentError(f"check: n must not be negative, got {n}")
        self._every = n
        self._changed()

    # --- OneFlow's names for some of them -----------------------------------------------------

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Update many parameters by one kernel: the pass "updates"."""
        self._switch("updates", mode, "allow_fuse_model_update_ops")

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """Turn the pass "updates" on or off: one launch updates all parameters of an optimizer."""
        self._switch("updates", mode, "enable_multi_tensor_update")

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Add to a gradient where it is computed: the pass "accumulate"."""
        self._switch("accumulate", mode, "allow_fuse_add_to_output")

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """The order of execution: "SpeedFirst", "MemoryFirst", or "Disable" for the code's own.

        ArgumentError for another mode.
        """
        known = {"SpeedFirst": "speed", "MemoryFirst": "memory", "Disable": "program"}
        if mode not in known:
            raise ArgumentError(
                f"enable_straighten_algorithm: mode must be one of {', '.join(known)}, got {mode!r}"
            )
        self.order = known[mode]

    def _switch(self, name: str, mode: bool, function: str) -> None:
        _expect(mode, bool, function, "mode")
        (self.enable if mode else self.disable)(name)

    @property
    def regst_num(self) -> int:
        """Calls that may be in flight at one time."""
        return self._regst_num

    @regst_num.setter
    def regst_num(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise ArgumentError(f"regst_num must be an int from 1 to 1024, got {value!r}")
        self._regst_num = value
        self._changed()

    @property
    def placement(self) -> placement.Placement | None:
        """The policy that gives tasks their streams."""
        return self._placement

    def schedule(
        self,
        policy: object = None,
        streams: Sequence[Stream | None] = (),
        *,
        like: object = None,
        machine: Any = None,
    ) -> None:
        """Let a policy of `flow.lab` give each task a stream and a place in its order; without a
        policy, tasks have the streams that `build` names.

        streams   flow.Streams, at least two, None for the default one; the workers of the policy
        like      what tasks cost: a profile of level 2 in which the graph was replayed without a
                  schedule, or a function of a node; without, an estimate by bytes and operations
        machine   a lab.Machine of as many workers, if links or speeds are to count
        ArgumentError: no such policy, fewer streams.  A capture of a graph on a device
        is a CaptureError.
        """
        if policy is None:
            self._placement = None
        else:
            several = list(streams)
            for one in several:
                _expect(one, (Stream, type(None)), "schedule", "streams")
            if len(set(several)) < 2 or len(set(several)) < len(several):
                raise ArgumentError(f"schedule: at least two different streams, got {streams!r}")
            self._placement = placement.Placement(policy, several, like, machine)
        self._changed()

    # --- in print -----------------------------------------------------------------------------

    def settings(self) -> list[str]:
        """List the settings that differ from the defaults, as text."""
        parts = [f"without {', '.join(self.without)}"] if self._off else []
        if self._amp is not None:
            parts.append(f"amp {self._amp!r}")
        if self._accumulation > 1:
            parts.append(f"gradient accumulation over {self._accumulation} steps")
        if self._checkpoints:
            names = [m if isinstance(m, str) else type(m).__name__ for m in self._checkpoints]
            parts.append(f"checkpoints {', '.join(names)}")
        if self._order != ORDERS[0]:
            parts.append(f"order {self._order}")
        if self._regst_num != 2:
            parts.append(f"regst_num {self._regst_num}")
        if self._placement is not None:
            parts.append(repr(self._placement))
        if self._zero[0]:
            parts.append(f"ZeRO stage {self._zero[0]}")
        if self._auto_parallel:
            parts.append("auto parallel")
        if self._every:
            parts.append(f"every {self._every}. call checked" if self._every > 1 else "checked")
        return parts

    def __repr__(self) -> str:
        return f"(CONFIG: {'; '.join(self.settings()) or 'as it comes'})"


def _expect(value: object, kind: type | tuple[type, ...], function: str, what: str) -> None:
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise ArgumentTypeError(
            f"{function}: {what} must be {names}, got {type(value).__name__} ({value!r})"
        )
