"""The result of an asynchronous call: a `Work`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Tensor
from flowvm.futures import Future
from flowvm.ranks.lanes import Lane, lane
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.pending import in_flight_on, issued


# public: distributed
class Work:
    """An issued exchange.

    Waiting is optional: a reader of the tensors waits anyway.  During the capture of a graph,
    waiting does nothing.
    """

    def __init__(self, at: Lane, tensors: Sequence[Tensor], result: object = None) -> None:
        self._lane, self._tensors, self._result = at, tuple(tensors), result
        self._before = issued()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until the exchange is done.  Return True.  CommunicationError if it failed.

        `timeout` is the process's: `flow.config.distributed_timeout`.
        """
        if current_recorder() is None:
            engine.waits.wait_for([t._ref for t in self._tensors or (self._lane.order,)])
        return True

    def is_completed(self) -> bool:
        """Return True if the exchange is done."""
        return not in_flight_on(engine, self._lane.stream.number, self._before)

    def is_success(self) -> bool:
        """Return True if the exchange is done and has not failed."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Wait for the exchange.  Return the exception with which it failed, or None."""
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """Return the tensors that the exchange writes."""
        return list(self._tensors)

    def get_future(self) -> Future[list[Tensor]]:
        """Return a Future of the tensors: it is done at once, and a reader of them waits."""
        future: Future[list[Tensor]] = Future()
        future.set_result(self.result())
        return future

    def synchronize(self) -> None:
        """`wait`."""
        self.wait()


def answered(async_op: bool, *tensors: Tensor) -> Work | None:
    """Return a collective's result: a Work if the caller asked for one.  Otherwise wait if foreign
    objects share the tensors' memory, because they cannot wait.
    """
    if not async_op:
        for t in tensors:
            if engine.lending.holds(t._ref):
                break
        else:
            return None
    work = Work(lane(device=tensors[0]._meta.device) if tensors else lane(), tensors)
    if async_op:
        return work
    work.wait()
    return None
