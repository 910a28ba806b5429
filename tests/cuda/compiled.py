"""PTX of kernels, made in a process of its own: in the simulator's process nothing is compiled.

    ptx_of(kernel, signature)               -> text for each of CAPABILITIES, in the fixture
    ptx_of.launch(made)                     -> of all kernels of a CudaLaunch
    ptx_of.played(name, arrays, ...)        -> what its kernels' code gives on the host: on_host.py

A kernel travels as module and name, or as the recipe that made it (`kernel.recipe`: "module:name"
of a function and its arguments).
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import subprocess
import sys
from typing import Any, NamedTuple

from on_host import play, sent

CAPABILITIES = ((7, 0), (8, 0), (9, 0), (10, 0))


HERE = os.path.dirname(__file__)
START = f"import sys; sys.path.insert(0, {HERE!r}); import compiled; compiled.serve()"


class Compiler:
    """The other process; `missing` says why it cannot compile."""

    def __init__(self):
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self.missing = pickle.load(self.process.stdout)

    def __call__(self, kernel, signature, capabilities=CAPABILITIES):
        """Return the PTX of `kernel` for each capability; raise if it cannot be compiled."""
        return [self._ask(_ticket(kernel), signature, cc) for cc in capabilities]

    def launch(self, launch, capabilities=CAPABILITIES):
        """The PTX of every kernel of a launch, for each capability."""
        from flowvm.cuda.compiler.compilation import signature_of
        from flowvm.cuda.launch import KernelStep

        steps = [s for s in launch.steps if isinstance(s, KernelStep)]
        return [t for s in steps for t in self(s.kernel, signature_of(s), capabilities)]

    def played(self, name, arrays, *arguments, **options):
        """Outputs and details of an operator: `on_host.play`."""
        return self._ask(None, (name, [sent(a) for a in arrays], *arguments), options)

    def _ask(self, *question):
        pickle.dump(question, self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def _ticket(kernel):
    recipe = getattr(kernel, "recipe", None)
    if recipe is not None:
        path, arguments = recipe
        return Ticket(path, tuple(_ticket(a) if callable(a) else a for a in arguments))
    return Ticket(f"{kernel.__module__}:{kernel.__qualname__}", None, kernel.__code__.co_filename)


class Ticket(NamedTuple):
    path: str
    arguments: Any
    file: str = ""


def _kernel(ticket):
    module, _, name = ticket.path.partition(":")
    function = getattr(_module(module, ticket.file), name)
    if ticket.arguments is None:
        return function
    return function(*(_kernel(a) if isinstance(a, Ticket) else a for a in ticket.arguments))


@functools.cache
def _module(name, file):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:  # a test's own
        sys.path.append(os.path.dirname(file))
        return importlib.import_module(os.path.basename(file).removesuffix(".py"))


def serve():
    from flowvm.cuda.compiler.compilation import available, ptx
    from flowvm.errors import CompileError

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    pickle.dump(available(), answers)
    answers.flush()
    while True:
        try:
            ticket, signature, cc = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if ticket is None:
                answer = play(*signature, **cc)
            else:
                answer = ptx(_kernel(ticket), signature, cc)[0]
        except CompileError as error:
            answer = error
        except Exception as error:
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
