"""The prompt of `flow.vm.step` at a stop, if the program does not pass a function."""

from __future__ import annotations

import cmd
from typing import NoReturn

from flowvm.vm.callers.lines import INTERNAL, short_position
from flowvm.vm.engine.debugger import Stepping, Stop


class StepEnded(BaseException):
    """The exception that leaves the block of `flow.vm.step`, raised by `quit` at its prompt."""


class Prompt(cmd.Cmd):
    """Commands of one line, until one of them goes on."""

    prompt = "(step) "
    use_rawinput = True

    def __init__(self, stepping: Stepping) -> None:
        super().__init__()
        self.stepping = stepping
        self.at: Stop | None = None

    def stop(self, at: Stop) -> None:
        """Show the stop, and obey commands until the machine goes on."""
        self.at = at
        print(at, flush=True)
        self.cmdloop()

    def do_next(self, line: str) -> bool:
        """next (n, or an empty line): run this instruction, stop in front of the one behind it."""
        self.stepping.every = True
        return True

    def do_continue(self, line: str) -> bool:
        """continue (c): go on to the next breakpoint, or to the end of the block."""
        self.stepping.every = False
        return True

    def do_print(self, line: str) -> None:
        """print NAME (p NAME): all numbers of an operand, or a variable of the user's frame."""
        at, name = self.at, line.strip()
        assert at is not None
        for operand in at.operands:
            if operand.name == name:
                print("not made yet" if operand.value is None else operand.value)
                return
        known = {} if at.frame is None else at.frame.f_locals
        tensor = known.get(name)
        # a tensor as it is now: to print it would let the instruction run
        if tensor is not None and hasattr(tensor, "_ref"):
            value = self.stepping.value(tensor._ref, tensor._meta)
            print("not made yet" if value is None else value)
        elif name in known:
            print(known[name])
        else:
            print(f"no operand and no variable {name!r}: " + ", ".join(o.name for o in at.operands))

    def do_where(self, line: str) -> None:
        """where (w): the user's frames, innermost first."""
        assert self.at is not None
        frame = self.at.frame
        while frame is not None:
            if not INTERNAL[frame.f_code.co_filename]:
                print(f"  {short_position(frame.f_code, frame.f_lasti)} in {frame.f_code.co_name}")
            frame = frame.f_back

    def do_quit(self, line: str) -> NoReturn:
        """quit (q): leave the block by a StepEnded."""
        raise StepEnded

    do_n, do_c, do_p, do_w, do_q = do_next, do_continue, do_print, do_where, do_quit

    def do_EOF(self, line: str) -> NoReturn:  # noqa: N802 - what cmd calls it
        """End the prompt, as `quit` does."""
        raise StepEnded

    def emptyline(self) -> bool:
        """An empty line is `next`."""
        return self.do_next("")
