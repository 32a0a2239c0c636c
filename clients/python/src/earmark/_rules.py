"""The rules of retries, as generators. They yield what to do and take its result, so that the synchronous and the
asynchronous client run the same rules. No I/O.

A generator that is closed before its end gives back what it may have reserved, in its `finally`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ._env import Env
from ._wire import Request
from .errors import DeadlinePassed, Failure

T = TypeVar("T")


@dataclass(slots=True)
class Send:
    """Send this request once, by this moment. The result is its answer or a `Failure`."""

    request: Request[Any]
    by: float


@dataclass(slots=True)
class Sleep:
    """Wait for this number of seconds; if keys are named, at most until one of these limits is released here."""

    seconds: float
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Store:
    """Write this text durably to the sequence file, unless a store with a higher stamp came first."""

    text: str
    stamp: int


Effect = Send | Sleep | Store
Rule = Generator[Effect, Any, T]


def send(request: Request[T], by: float) -> Rule[T | Failure]:
    """Sends a request once."""
    result: T | Failure = yield Send(request, by)
    return result


@dataclass(frozen=True)
class Backoff:
    """The waits between attempts, in seconds: exponential, with jitter."""

    first: float = 0.02
    longest: float = 2.0


class Waits:
    """The waits between the attempts of one request."""

    def __init__(self, env: Env, backoff: Backoff, servers: int) -> None:
        self._env = env
        self._longest = backoff.longest
        self._next = backoff.first
        self._servers = servers
        #: The number of servers asked since the last wait.
        self._asked = 0

    def after(self, failure: Failure) -> float:
        """The wait after a failure. A failure of one server leads to the next server at once; the wait comes when all
        of them failed. Half of it is random, so that callers who failed together do not retry together."""
        self._asked += 1
        if failure.blames_server and self._asked < self._servers:
            return 0.0
        self._asked = 0
        wait = self._next / 2 + self._env.part() * self._next / 2
        self._next = min(self._next * 2, self._longest)
        return wait


class Servers:
    """The servers of one cluster. Requests go to the preferred one until it fails."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.urls = urls
        self._preferred = 0

    def preferred(self) -> str:
        """The server for the next request."""
        return self.urls[self._preferred]

    def answered(self, url: str, answer: Any) -> None:
        """After a failure of this server the next request goes to the next one, unless another caller has moved on
        already. The answer to a batch is a list."""
        if len(self.urls) == 1:
            return
        answers: list[Any] = list(answer) if isinstance(answer, list) else [answer]  # pyright: ignore[reportUnknownArgumentType]
        is_at_fault = any(isinstance(one, Failure) and one.blames_server for one in answers)
        if is_at_fault and self.urls[self._preferred] == url:
            self._preferred = (self._preferred + 1) % len(self.urls)


@dataclass(frozen=True)
class Core:
    """The state that all rules of one client share."""

    env: Env
    servers: Servers
    backoff: Backoff

    def waits(self) -> Waits:
        """The waits between the attempts of one request."""
        return Waits(self.env, self.backoff, len(self.servers.urls))

    def ask(self, request: Request[T], deadline: float, failed: Failure | None = None) -> Rule[T]:
        """Sends a request until it has an answer, fails for good, or the deadline passes. `failed` is the failure of
        the first attempt, if that was made already."""
        waits: Waits | None = None
        last: Failure | None = None
        earlier_unknown = False
        while failed is not None or self.env.now() < deadline:
            answer: T | Failure = failed or (yield Send(request, deadline))
            failed = None
            if not isinstance(answer, Failure):
                return answer
            if not answer.is_transient:
                raise answer.after(earlier_unknown)
            earlier_unknown |= request.changes_state and answer.may_have_happened
            last = answer
            waits = waits or self.waits()
            yield Sleep(max(0.0, min(waits.after(answer), deadline - self.env.now())))
        raise DeadlinePassed(last)
