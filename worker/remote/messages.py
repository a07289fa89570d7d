"""What a worker and the process of its searches say to each other.

The worker begins methods of a search (Do), says whether it is to stop (State), and answers what the search asks of its
builder, runner and recorder (Answer). The process asks for that (Call), takes it back (Interrupt), and says how a
method ended (Ended).
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.errors import ShapewrightError
from tuner.search.summary import SearchSummary


class SearchError(ShapewrightError):
    """Something that a search raised, of a kind that cannot be sent to another process."""


class Handle(bytes):
    """Stands for bytes that the worker keeps, such as a candidate's binary: a search only passes them on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned, or raised."""

    value: Any = None
    error: BaseException | None = None

    @staticmethod
    def of(call: Callable[[], Any]) -> Outcome:
        """Never raises."""
        try:
            return Outcome(call())
        except BaseException as error:
            return Outcome(error=sendable(error))

    def get(self) -> Any:
        """Returns or raises the same."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class State:
    """The state of the worker that a search knows: whether to stop, to finish, and how many devices its runner has.

    The one with the greatest ``serial`` is the newest."""

    serial: int = 0
    should_stop: bool = False
    should_finish: bool = False
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Do:
    """Begin a method of the search ``search``; "open" makes it, with the arguments of its constructor."""

    id: int
    search: int
    method: str
    args: tuple[Any, ...]
    state: State


@dataclass(frozen=True, slots=True)
class NewState:
    search: int
    state: State


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the Call with this id."""

    id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Call:
    """A search wants this of its builder, its runner or its recorder."""

    id: int
    search: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The answer to the Call with this id is no longer wanted."""

    id: int
    search: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How the Do with this id ended, and the figures of the search then."""

    id: int
    search: int
    outcome: Outcome
    summary: SearchSummary | None


ToHost = Do | NewState | Answer
FromHost = Call | Interrupt | Ended


def sendable(error: BaseException) -> BaseException:
    """The error, or a SearchError with its text if it would not arrive in another process as it is.

    A defect takes its traceback along, as a note.
    """
    if not isinstance(error, ShapewrightError):
        error.add_note("in another process:\n" + "".join(traceback.format_exception(error)))
    try:
        again = pickle.loads(pickle.dumps(error))
        is_same = type(again) is type(error) and str(again) == str(error)
    except Exception:
        # Whatever its class does when it is pickled or made again.
        is_same = False
    return error if is_same else SearchError(f"{type(error).__name__}: {error}")
