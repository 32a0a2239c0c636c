"""The errors of this package. Every message says what is wrong, then what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .answers import WriteRefusal


class EarmarkError(Exception):
    """The base of all errors of this package."""


class InputError(EarmarkError, ValueError):
    """An argument is malformed. Nothing was sent."""


@dataclass(frozen=True)
class Denial:
    """A denied reserve: a limit has no room now."""

    #: Milliseconds until another attempt may succeed.
    retry_after_ms: int
    #: The limits without room, the one that frees last first.
    limited_by: tuple[str, ...] = ()
    #: The error code of the server; empty for a plain denial.
    error: str = ""

    def __str__(self) -> str:
        by = f" in {', '.join(self.limited_by)}" if self.limited_by else ""
        return f"no room{by}; retry in {self.retry_after_ms} ms" + (f" ({self.error})" if self.error else "")


class Failure(EarmarkError):
    """A request has no answer, or one that cannot be used."""

    #: Whether the server may have executed the request.
    may_have_happened: ClassVar[bool] = False
    #: Whether the same request may succeed when it is sent again.
    is_transient: ClassVar[bool] = False
    #: Whether another server may answer.
    blames_server: ClassVar[bool] = False

    def after(self, earlier_unknown: bool) -> Failure:
        """The failure of several attempts, of which one before the last may have been executed."""
        if earlier_unknown and not self.may_have_happened and not isinstance(self, NotFound):
            return UnknownThenRefused(self)
        return self


class Unreachable(Failure):
    """No connection could be made, so nothing was sent."""

    is_transient = True
    blames_server = True


class NoAnswer(Failure):
    """The connection broke, or no response came in time."""

    may_have_happened = True
    is_transient = True
    blames_server = True


class Unavailable(Failure):
    """The server could not execute the request, or does not know whether it did."""

    may_have_happened = True
    is_transient = True
    blames_server = True


class Unexpected(Failure):
    """The response is not one of an Earmark server of this version."""

    may_have_happened = True
    is_transient = True
    blames_server = True


class Busy(Failure):
    """A queue of this client is full; nothing was sent."""

    is_transient = True


class RateLimited(Failure):
    """The key exceeds its request rate, and the request was not executed."""

    is_transient = True


class Invalid(Failure):
    """The request is malformed, expects another revision or exceeds a quota, and was not executed."""


class Unauthorized(Failure):
    """The key was not accepted, and the request was not executed."""


class NotFound(Failure):
    """The named thing does not exist."""


class UnknownThenRefused(Failure):
    """One attempt got no answer and may have been executed; the next one was refused."""

    may_have_happened = True

    def __init__(self, refusal: Failure) -> None:
        super().__init__(f"one attempt got no answer and may have been executed; the next one was refused: {refusal}")
        self.refusal = refusal


class DeadlinePassed(Failure):
    """No answer came before the deadline of the caller."""

    may_have_happened = True

    def __init__(self, last: Failure | None) -> None:
        super().__init__("no answer came before the deadline" + (f"; the last attempt: {last}" if last else ""))
        self.last = last


class AcquireError(EarmarkError):
    """A call was not admitted. Nothing stays reserved for it."""


class Never(AcquireError):
    """An amount exceeds the capacity of its limit, so waiting does not help."""

    def __init__(self, limited_by: Sequence[str]) -> None:
        super().__init__(f"the call needs more than the capacity of {', '.join(limited_by)}")
        self.limited_by = tuple(limited_by)


class InsufficientCredit(AcquireError):
    """An account has too little credit for the hold."""

    def __init__(self, key: str, message: str | None) -> None:
        super().__init__(
            f"the account of {key} has too little credit; add credit" + (f": {message}" if message else "")
        )
        self.key = key


class AccountNotFound(AcquireError):
    """The vault or the account of a credit limit does not exist."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the account of {key} does not exist; open it first")
        self.key = key


class UnknownLimitKey(AcquireError):
    """A limit does not exist."""

    def __init__(self, key: str) -> None:
        super().__init__(f"limit {key} does not exist; create it first")
        self.key = key


class RefusedByPolicy(AcquireError):
    """The policy of the namespace refuses the call."""

    def __init__(self, error: str, message: str | None) -> None:
        super().__init__(f"the policy refuses the call ({error})" + (f": {message}" if message else ""))
        #: The code: `missing_attribute:<name>`, `no_price:<model>`, `no_rule` or `denied_by_rule:<name>`.
        self.error = error


class InvalidRequest(AcquireError):
    """The server refuses the request as malformed, or the lease for its age."""


class CallerRefused(AcquireError):
    """The key of the client was not accepted."""


class AcquireTimeout(AcquireError, TimeoutError):
    """The call was not admitted before its deadline."""

    def __init__(self, denial: Denial | None, failure: Failure | None) -> None:
        why = [str(part) for part in (denial, failure) if part is not None]
        super().__init__("; ".join(["not admitted before the deadline", *why]))
        #: The last denial.
        self.denial = denial
        #: The failure of the last attempt, if it had no answer.
        self.failure = failure


class ExtendError(EarmarkError):
    """A lease was not extended. It keeps the amounts that it has."""


class ExtendDenied(ExtendError):
    """A limit has no room for the extension now."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(str(denial))
        self.denial = denial


class ExtendNotNow(ExtendDenied):
    """A limit is paused or decreasing, or a quota is used up."""


class ExtendRefused(ExtendError):
    """Another attempt would end alike."""

    def __init__(self, reason: EarmarkError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class LeaseEnded(ExtendError):
    """The lease has ended: it was completed, or it ran out. Others may have its capacity."""

    def __init__(self) -> None:
        super().__init__("the lease has ended; acquire again")


class TooManyExtensions(ExtendError):
    """The lease has the most extensions that it may have."""


class ExtendFailed(ExtendError):
    """There was no answer, so the outcome is unknown. The next extension repeats this one first."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class LeaseClosed(EarmarkError):
    """The lease is completed already, by this process."""

    def __init__(self) -> None:
        super().__init__("the lease is completed already; acquire again")


class WriterError(EarmarkError):
    """A write was not committed, or the writer cannot continue."""


class WriteRefused(WriterError):
    """The server refused the write. Nothing changed, and no copy can change anything later."""

    def __init__(self, refusal: WriteRefusal) -> None:
        super().__init__(f"the write was refused: {refusal}")
        self.refusal = refusal


class NotSent(WriterError):
    """The request was not sent, or refused before the write was examined. Nothing changed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class OutcomeUnknown(WriterError):
    """The outcome is unknown. The writer remembers the write as unfinished."""

    def __init__(self, sequence: int, failure: EarmarkError) -> None:
        super().__init__(f"the outcome of sequence {sequence} is unknown; repeat or settle it: {failure}")
        self.sequence = sequence
        self.failure = failure


class WriteUnfinished(WriterError):
    """An earlier write is unfinished."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"sequence {sequence} is unfinished; repeat or settle it first")
        self.sequence = sequence


class OtherContent(WriterError):
    """The operations to repeat differ from those of the unfinished write."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"sequence {sequence} has other operations; repeat those, or settle it")


class Fenced(WriterError):
    """The write to repeat was fenced off: it was not committed and never will be."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"sequence {sequence} was taken by a fence and its write never happened; write it again")


class NothingToRepeat(WriterError):
    """There is no write to repeat."""

    def __init__(self) -> None:
        super().__init__("no write is unfinished")


class SequenceConflict(WriterError):
    """The server and the sequence file contradict each other. To continue could lose or repeat a write."""


class StateUnknown(WriterError):
    """The last committed sequence could not be read from the server."""
