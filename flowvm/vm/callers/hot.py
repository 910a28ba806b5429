"""The globals of generated call functions, which every issuing thread touches, and the numbers of
the streams that always exist.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from flowvm.vm.machine.words import RING

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict:
        """Stand for typing's, which looks at each annotation: 1 % of the import."""

        def __init_subclass__(cls, total: bool) -> None:
            """Take the class's keyword."""


CALL_STREAM, HOST_STREAM, FIRST_USER_STREAM = 0, 1, 2
FRAMES = RING.SLOTS  # issuing frames remembered: an error is read before its slot comes round


class IssueGlobals(TypedDict, total=False):
    """The globals of generated call functions (see `flowvm.eager.calls`), and all that issuing
    touches.  Rooms above enter what is theirs; classes of theirs are only classes here.
    """

    __builtins__: ModuleType
    # the VM
    ring: memoryview  # RING's bytes
    control: memoryview  # CTL's words
    counter: Iterable[int]  # hands out sequence numbers (`itertools.count`: atomic)
    limit: int  # records below it may be issued without looking at anything
    free: list[int]  # storage ids ready for use
    pop: Callable[[], int]  # takes one of them; IndexError where there is none
    refill: Callable[[], int]  # takes one where `pop` has none
    dead: list[int]  # ids of storages that nothing refers to any more
    release_dead: Callable[[], None]
    codes: list[CodeType | None]  # code object of the frame that issued, by sequence number
    lasts: list[int]  # the instruction offset in it
    # called when a record was published and the scheduler sleeps, does not run, or is not wanted
    after: Callable[[], None]
    publish_mark: Callable[[int], None]  # writes a record's mark where stores may pass each other
    make_room: Callable[[int], None]  # called at `limit`
    no_word: Callable[[Exception], Exception]  # the error for a number that no word holds
    struct_errors: tuple[type[BaseException], ...]
    any_error: type[BaseException]
    fill_hole: Callable[[int], None]  # writes a record that does nothing, and its mark
    hole: int  # the entry of such a record
    write_hole: Callable[..., None]
    getframe: Callable[[int], FrameType]
    releases: Sequence[int]  # the entries that release so many storages
    adopted: dict[int, object]  # not empty while storages have memory that is not the VM's
    stream_of: dict[int, int]  # not empty while storages are of other streams
    lent: memoryview  # how many have the memory of each storage; the first: their sum
    lent_at: int  # its address
    settle: Callable[[int], None]  # called with a record while some memory is lent
    Loan: type
    # calls and tensors
    new: Callable[[type], object]  # object.__new__
    Tensor: type
    Storage: type
    Parameter: type
    as_number: Callable[[object], float]
    flow_error: type[Exception]
    cut: Callable[[BaseException], None]  # takes flowvm's frames out of a traceback
    written: Callable[..., Callable[..., object]]  # the function of an operator, now written
    fallback: Callable[..., object]
    miss: Callable[..., object]
    unsized: Callable[..., None]
    # modes: sets that are empty while no thread is in such a region
    departed: set[object]  # captures, records a trace, or issues to another stream
    unrecorded: set[object]  # says whether it records
    autocast: set[object]
    pinned: set[object]  # pins the user's line
    changed: object  # another one after each change that compiled graphs watch
    renewed: object  # another one from each moment on at which a tensor has got another place
    depart: Callable[..., int]  # the entry word of a call while `departed`
    may_repeat: Callable[[], bool]  # says whether a call that departed may begin anew
    convert: Callable[..., object]  # the inputs of a call as autocast wants them
    grad_enabled: Callable[[], bool]
    recorder: Callable[[], object]
    trace_recorder: Callable[[], Any]
    recording: object  # what the threads' with statements say of recording
    Recording: type
    FORGET: tuple[bool, bool]
    user_files: set[str]
    internal_files: dict[str, bool]
    find_user: Callable[[FrameType], object]
    user_lines: object  # what the threads' with statements say of the user's place
    # autograd
    Node: type
    OutputEdge: type
    AccumulateGrad: type
    askers: dict[object, Callable[..., None]]  # not empty while somebody is to be told of nodes
    fitted: Callable[..., object]
    arrive: Callable[..., None]
    add_in_place: Callable[..., None]
    explain: Callable[..., None]
    go_on: Callable[..., None]
    BackwardRun: type
    started: set[object]  # not empty while backward begins with something else than ones
    # global tensors
    globally: Callable[..., object]
    global_alias: Callable[..., None]
    global_links: Callable[..., Any]
    global_view: Callable[..., Any]
    # where `config.debug_calls` is set: see `flowvm.vm.callers.publish_check`
    none_begun: Callable[[], None]
    begun: dict[int, int]
    get_ident: Callable[[], int]


# a plain dict, because CPython reads globals fastest from one
issue_globals: dict[str, object] = {"__builtins__": builtins}
hot = cast(IssueGlobals, issue_globals)

# further counters of `flow.vm.stats()`, from rooms above
counted: list[Callable[[], dict[str, int]]] = []
