"""The rules of admission: attempts, waits, and leases that are not settled yet. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._rules import Core, Rule, Send, Sleep, Waits, send
from ._wire import BATCH_MAX, Request, batch
from .answers import Completed, ReserveAnswer
from .errors import (
    AccountNotFound,
    AcquireError,
    AcquireTimeout,
    CallerRefused,
    Denial,
    Failure,
    InsufficientCredit,
    InvalidRequest,
    Never,
    RefusedByPolicy,
    Unauthorized,
    UnknownLimitKey,
)
from .work import Work

#: Milliseconds after which an attempt takes a new lease and completes the old one: 5 minutes. An outage may last longer
#: than the retention of leases, 15 minutes by default, and servers refuse older leases.
LEASE_AGE_MAX_MS = 5 * 60 * 1_000
#: The shortest wait after a denial in seconds, whatever the hint says.
WAIT_MIN = 0.005
#: The longest wait after a denial in seconds: the limit may have been raised before its hint.
WAIT_MAX = 60.0
#: Seconds before the deadline at which the last attempt is made, whatever the hint says: another call may have
#: completed meanwhile.
LAST_ATTEMPT = 0.02
#: The jitter added to a wait: at most this part of it.
JITTER_PART = 0.1

#: Refusals after which the server does not remember the lease, so that a late earlier copy may still be admitted.
_WITHOUT_TRACE = frozenset(
    [
        "unknown_limit_key",
        "account_not_found",
        "quota_exceeded",
        "limit_paused",
        "limit_decreasing",
        "missing_attribute",
        "no_price",
        "no_rule",
        "denied_by_rule",
    ]
)
#: Denials and refusals after which the server remembers the lease and will never admit it.
_REMEMBERED = frozenset(["", "exceeds_capacity", "insufficient_credit"])
_BY_POLICY = frozenset(["missing_attribute", "no_price", "no_rule", "denied_by_rule"])


@dataclass(slots=True)
class Admitted:
    """An admitted lease."""

    lease_id: str
    answer: ReserveAnswer


class Unsettled:
    """The leases of one limiter that may hold amounts, each with the complete to send if its owner is gone.

    The interpreter settles them at its exit. The methods are single operations on a dict, so that a finalizer may call
    them at any moment. Few of the completes are ever sent, so that they are made when they are needed.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Callable[[str], Request[Completed]]] = {}

    def put(self, lease_id: str, request: Callable[[str], Request[Completed]]) -> None:
        """Sets the function that makes the complete of a lease from its id."""
        self._requests[lease_id] = request

    def settled(self, lease_id: str) -> None:
        """Forgets a lease that has its answer, or is left to expire."""
        self._requests.pop(lease_id, None)

    def clear(self) -> None:
        """Forgets all leases."""
        self._requests.clear()

    def ids(self) -> list[str]:
        """The leases."""
        return list(self._requests)

    def has(self, lease_id: str) -> bool:
        """Whether a lease may hold amounts."""
        return lease_id in self._requests

    def completes(self, ids: Iterable[str]) -> dict[str, Request[Completed]]:
        """The completes of those of the leases that may hold amounts."""
        makes = ((lease_id, self._requests.get(lease_id)) for lease_id in ids)
        return {lease_id: make(lease_id) for lease_id, make in makes if make is not None}


def settle_all(core: Core, requests: Mapping[str, Request[Completed]], deadline: float) -> Rule[dict[str, Failure]]:
    """Sends completes until all have an answer or the deadline passes. Returns the failures of the others."""
    left = dict(requests)
    failed: dict[str, Failure] = {}
    waits = core.waits()
    while left:
        worst: Failure | None = None
        for ids, request in list(_groups(left)):
            sent: list[Completed | Failure] | Failure = yield from send(request, deadline)
            answers = [sent] * len(ids) if isinstance(sent, Failure) else sent
            for lease_id, answer in zip(ids, answers, strict=True):
                if isinstance(answer, Failure):
                    failed[lease_id] = worst = answer
                    if answer.is_transient:
                        continue
                else:
                    failed.pop(lease_id, None)
                del left[lease_id]
        wait = waits.after(worst) if worst is not None and left else 0.0
        if core.env.now() + wait >= deadline:
            break
        yield Sleep(wait)
    return failed


def _groups(requests: Mapping[str, Request[Completed]]) -> Iterator[tuple[list[str], Request[list[Any]]]]:
    by_path: dict[str, list[str]] = {}
    for lease_id, request in requests.items():
        if request.batch_path is None:
            yield [lease_id], _listed(request)
        else:
            by_path.setdefault(request.batch_path, []).append(lease_id)
    for batch_path, ids in by_path.items():
        for start in range(0, len(ids), BATCH_MAX):
            group = ids[start : start + BATCH_MAX]
            yield group, batch([requests[lease_id] for lease_id in group], batch_path)


def _listed(request: Request[Completed]) -> Request[list[Any]]:
    return Request(request.method, request.path, request.body, lambda answer: [request.read(answer)])


class WaitQueues:
    """Callers that wait for a limit. A release in this process wakes the longest waiting one before its hint."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Callable[[], None]]] = {}

    def join(self, keys: tuple[str, ...], wake: Callable[[], None]) -> None:
        """Waits for these limits."""
        for key in keys:
            self._queues.setdefault(key, deque()).append(wake)

    def leave(self, keys: tuple[str, ...], wake: Callable[[], None]) -> None:
        """Waits no longer."""
        for key in keys:
            queue = self._queues.get(key)
            if queue is not None and wake in queue:
                queue.remove(wake)
            if not queue:
                self._queues.pop(key, None)

    def release(self, keys: tuple[str, ...]) -> None:
        """Wakes one caller of each limit."""
        for key in keys if self._queues else ():
            queue = self._queues.get(key)
            if queue:
                queue.popleft()()


class Admission:
    """The state and the rules of a limiter."""

    def __init__(self, core: Core, settle: Callable[[str], None]) -> None:
        self.core = core
        self.unsettled = Unsettled()
        #: Completes a lease in the background.
        self._settle = settle

    def acquire(self, work: Work, deadline: float) -> Rule[Admitted]:
        """Waits until the work is admitted. An error that waiting cannot cure is raised at once."""
        last: Denial | None = None
        while True:
            result = yield from self.attempt(work, deadline, last)
            if isinstance(result, Admitted):
                return result
            last = result
            now = self.core.env.now()
            last_attempt = deadline - LAST_ATTEMPT
            if now >= last_attempt:
                yield Sleep(max(0.0, deadline - now))
                raise AcquireTimeout(last, None)
            wait = min(max(result.retry_after_ms / 1_000, WAIT_MIN), WAIT_MAX)
            wait += wait * JITTER_PART * self.core.env.part()
            yield Sleep(min(wait, last_attempt - now), result.limited_by)

    def attempt(self, work: Work, deadline: float, last: Denial | None = None) -> Rule[Admitted | Denial]:
        """One attempt: one lease, from its first request until its outcome is known or the lease is too old."""
        env = self.core.env
        waits: Waits | None = None
        failure: Failure | None = None
        while env.now() < deadline:
            made_ms, lease_id = env.wall_ms(), env.lease_id()
            request = work.reserve(lease_id)
            pending = _Pending(self, lease_id, work)
            try:
                while True:
                    may_have_held = pending.may_hold
                    pending.sent()
                    answer: ReserveAnswer | Failure = yield Send(request, deadline)
                    if not isinstance(answer, Failure):
                        return pending.judge(may_have_held, answer)
                    # An earlier copy of this request may still arrive.
                    pending.may_hold = may_have_held or answer.may_have_happened
                    if not answer.is_transient:
                        raise _refused(answer)
                    failure = answer
                    waits = waits or self.core.waits()
                    yield Sleep(max(0.0, min(waits.after(answer), deadline - env.now())))
                    if env.now() >= deadline or env.wall_ms() - made_ms >= LEASE_AGE_MAX_MS:
                        break
            finally:
                pending.end()
        raise AcquireTimeout(last, failure)

    def give_back(self, lease_id: str) -> None:
        """Completes a lease in the background, with the complete that is stored for it."""
        if self.unsettled.has(lease_id):
            self._settle(lease_id)


class _Pending:
    """The lease of an attempt. If it may hold amounts at its end, it is completed with a usage of 0."""

    __slots__ = ("_admission", "_is_admitted", "_lease_id", "_work", "may_hold")

    def __init__(self, admission: Admission, lease_id: str, work: Work) -> None:
        self._admission = admission
        self._lease_id = lease_id
        self._work = work
        self._is_admitted = False
        self.may_hold = False

    def sent(self) -> None:
        if not self.may_hold:
            self._admission.unsettled.put(self._lease_id, self._work.as_unused)
        self.may_hold = True

    def judge(self, may_have_held: bool, answer: ReserveAnswer) -> Admitted | Denial:
        """The meaning of an answer."""
        if answer.allowed:
            self._is_admitted = True
            return Admitted(self._lease_id, answer)
        code = answer.error.partition(":")[0]
        if code in _WITHOUT_TRACE:
            self.may_hold = may_have_held
        elif code in _REMEMBERED:
            self.may_hold = False
        return denial_or_raise(answer)

    def end(self) -> None:
        if self._is_admitted:
            return
        if self.may_hold:
            self._admission.give_back(self._lease_id)
        else:
            self._admission.unsettled.settled(self._lease_id)


def denial_or_raise(answer: Any) -> Denial:
    """The denial in an answer to a reserve or an extension that waiting may cure. Others are raised."""
    code, _, key = answer.error.partition(":")
    denial = Denial(answer.retry_after_ms, answer.limited_by, answer.error)
    if code == "exceeds_capacity" or answer.never:
        raise Never(answer.limited_by or (key,))
    if code in ("", "limit_decreasing", "limit_paused", "quota_exceeded"):
        return denial
    if code == "lease_expired":
        return Denial(0, (), answer.error)
    if code == "insufficient_credit":
        raise InsufficientCredit(key, answer.message)
    if code == "account_not_found":
        raise AccountNotFound(key)
    if code == "unknown_limit_key":
        raise UnknownLimitKey(key)
    if code in _BY_POLICY:
        raise RefusedByPolicy(answer.error, answer.message)
    raise InvalidRequest(f"the request was refused ({answer.error}): {answer.message or 'no message'}")


def _refused(failure: Failure) -> AcquireError:
    if isinstance(failure, Unauthorized):
        return CallerRefused(str(failure))
    return InvalidRequest(str(failure))
