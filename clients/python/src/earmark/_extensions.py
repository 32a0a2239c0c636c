"""The rules of extensions: numbers, repeats, and renewals. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from . import _names
from ._admission import Admission, denial_or_raise
from ._rules import Rule, Sleep
from ._wire import Request
from .answers import ExtendAnswer
from .errors import (
    AcquireError,
    ExtendDenied,
    ExtendError,
    ExtendFailed,
    ExtendNotNow,
    ExtendRefused,
    Failure,
    Invalid,
    LeaseEnded,
    TooManyExtensions,
    Unauthorized,
)
from .work import Extension, Job, Usage, Work

#: The most extensions of one lease.
EXTENSIONS_MAX = 10_000
#: Answers that are kept for extensions that the caller gave up on. Beyond this the oldest is forgotten; a job that gives
#: up on more than 16 different extensions has a deadline that is too short.
ANSWERED_MAX = 16
#: A lease is renewed when a third of its timeout has passed, so that two renewals may fail before it runs out.
RENEWALS_PER_TIMEOUT = 3
#: The shortest wait between two renewals in seconds. A lease at its latest end, 24 hours after the reserve, would
#: otherwise be renewed ever faster.
RENEWAL_WAIT_MIN = 0.05


@dataclass(frozen=True)
class Extended:
    """An extension that was applied, now or by an earlier attempt."""

    #: The server time at which the first of its concurrency and credit reservations ends; 0 without any.
    ends_at_unix_ms: int
    #: A note for people, such as the keys whose usage was ignored.
    message: str | None = None


@dataclass(frozen=True)
class _Unanswered:
    number: int
    asked: Extension
    request: Request[ExtendAnswer]
    is_renewal: bool


class Extensions:
    """The extensions of one lease. One is under way at a time; the caller holds a lock."""

    def __init__(self, admission: Admission, lease_id: str, work: Work, revision: int | None) -> None:
        self._admission = admission
        self._lease_id = lease_id
        self._revision = revision
        self._last = 0
        self._unanswered: _Unanswered | None = None
        #: Extensions that the caller gave up on and a later one finished. Their answers are the caller's if it asks again.
        self._answered: deque[tuple[Extension, Extended]] = deque(maxlen=ANSWERED_MAX)
        #: The certain usage, which the next extension reports.
        self._used: dict[str, int] = {}
        self._used_tokens: Usage | None = None
        #: The work, with the amounts that extensions took.
        self.work = work

    def used(self, key: str, amount: int) -> None:
        """Records certain usage of a limit. The largest amount counts."""
        self._used[key] = max(amount, self._used.get(key, 0))

    def used_tokens(self, usage: Usage) -> None:
        """Records certain usage of a call."""
        self._used_tokens = usage

    def maybe_added(self) -> tuple[str, ...]:
        """The limits of an extension whose outcome is unknown: the lease may have them."""
        return tuple(self._unanswered.asked.add or ()) if self._unanswered else ()

    def extend(self, asked: Extension, deadline: float, is_renewal: bool = False) -> Rule[Extended]:
        """Sends an extension until it has an answer or the deadline passes. One without an answer is sent again first,
        with its number and body: if it is the same, its answer is the answer."""
        if not is_renewal:
            for item in self._answered:
                if item[0] == asked:
                    self._answered.remove(item)
                    return item[1]
        earlier = self._unanswered
        if earlier is not None:
            answer = yield from self._caught(earlier, deadline)
            if isinstance(answer, (LeaseEnded, ExtendFailed)) or earlier.asked == asked:
                return _returned(answer)
            # One that was denied took nothing, so it may be tried again.
            if isinstance(answer, Extended) and not earlier.is_renewal:
                self._answered.append((earlier.asked, answer))
        if self._last >= EXTENSIONS_MAX:
            raise TooManyExtensions(f"the lease has {EXTENSIONS_MAX} extensions; acquire again")
        used: Mapping[str, int] | Usage | None = self._used if isinstance(self.work, Job) else self._used_tokens
        number = self._last + 1
        request = asked.request(self.work, self._lease_id, number, used, self._revision)
        answer = yield from self._caught(_Unanswered(number, asked, request, is_renewal), deadline)
        return _returned(answer)

    def _caught(self, item: _Unanswered, deadline: float) -> Rule[Extended | ExtendError]:
        try:
            return (yield from self._send(item, deadline))
        except ExtendError as error:
            return error

    def _send(self, item: _Unanswered, deadline: float) -> Rule[Extended]:
        # It counts as unanswered until its answer is here, also when the caller closes this generator.
        was_sent = self._unanswered is not None
        self._unanswered = item
        try:
            answer = yield from self._admission.core.ask(item.request, deadline)
        except Failure as failure:
            if not failure.may_have_happened and not was_sent:
                self._unanswered = None
            raise _failed(failure) from failure
        self._unanswered = None
        code = answer.error.partition(":")[0]
        # A refusal by name leaves the number free.
        if answer.allowed or code in ("", "exceeds_capacity", "insufficient_credit"):
            self._last = item.number
        if answer.allowed:
            if isinstance(self.work, Job) and item.asked.add:
                self.work = self.work.grown(item.asked.add)
            return Extended(answer.ends_at_unix_ms, answer.message)
        if code == "lease_expired":
            raise LeaseEnded
        try:
            denial = denial_or_raise(answer)
        except AcquireError as error:
            raise ExtendRefused(error) from error
        raise ExtendDenied(denial) if code == "" else ExtendNotNow(denial)

    def keep_alive(self, timeout: float, reserved_at_unix_ms: int, admitted_at: float) -> KeepAliveRule:
        """The renewals of the lease, with the shortest timeout of its concurrency and credit limits."""
        seconds = _names.some_seconds("timeout", timeout)
        return KeepAliveRule(self, seconds, reserved_at_unix_ms, admitted_at)

    def now(self) -> float:
        """The monotonic time."""
        return self._admission.core.env.now()


class KeepAliveRule:
    """When to renew a lease. Its times come from the server, so that the clocks need not agree."""

    def __init__(self, extensions: Extensions, timeout: float, reserved_at_unix_ms: int, admitted_at: float) -> None:
        self._extensions = extensions
        self._timeout = timeout
        self._reserved_at_unix_ms = reserved_at_unix_ms
        self._admitted_at = admitted_at
        self._ends = admitted_at + timeout

    def wait(self) -> float:
        """Seconds until the next renewal."""
        left = min(self._ends - self._extensions.now(), self._timeout)
        return max(left / RENEWALS_PER_TIMEOUT, RENEWAL_WAIT_MIN)

    def renew(self) -> Rule[None]:
        """Renews once. Raises an `ExtendError` if the lease cannot be renewed any more."""
        now = self._extensions.now()
        # Until the end each attempt without an answer is repeated. After it one more attempt tells what became of the
        # lease.
        deadline = max(self._ends, now + self._timeout / RENEWALS_PER_TIMEOUT)
        try:
            extended = yield from self._extensions.extend(Extension(), deadline, is_renewal=True)
        except ExtendNotNow as error:
            now = self._extensions.now()
            if now >= self._ends:
                raise
            yield Sleep(min(error.denial.retry_after_ms / 1_000, self._ends - now))
            return
        if extended.ends_at_unix_ms:
            self._ends = self._admitted_at + (extended.ends_at_unix_ms - self._reserved_at_unix_ms) / 1_000
        else:
            self._ends = self._extensions.now() + self._timeout


def _returned(answer: Extended | ExtendError) -> Extended:
    if isinstance(answer, ExtendError):
        raise answer
    return answer


def _failed(failure: Failure) -> ExtendError:
    return ExtendRefused(failure) if isinstance(failure, (Invalid, Unauthorized)) else ExtendFailed(failure)
