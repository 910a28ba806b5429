"""`flow.asyncs`: calls issued to a stream of their own, by OneFlow's names.

worker = flow.asyncs.Thread()
with flow.asyncs.thread(worker):
    y = model(x)              # beside what other streams do
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flowvm.loading.listing import listing, own_names
from flowvm.streams import Stream
from flowvm.streams import stream as _stream

__dir__ = listing(globals())


class Thread(Stream):
    """A stream: what is issued to it goes on beside other streams.

    >>> isinstance(flow.asyncs.Thread(), flow.Stream)
    True
    """


def thread(thread: Stream) -> AbstractContextManager[Any]:
    """Issue what this thread of Python calls inside to a stream.

    >>> with flow.asyncs.thread(flow.asyncs.Thread()):
    ...     x = flow.ones(2) + 1
    >>> x
    tensor([2., 2.])
    """
    return _stream(thread)


__all__ = own_names(globals())
