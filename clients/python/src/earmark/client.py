"""The synchronous client."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _http, _requests
from ._env import Env
from ._http import httpx
from ._options import Options
from ._rules import Backoff, Rule, Send, Sleep, Store
from ._wire import Request, judge
from ._writes import write_once
from .answers import (
    DecisionPage,
    Explanation,
    LeaseView,
    Limit,
    LimitUsage,
    Receipt,
    Template,
    TopLimit,
    UsagePage,
    Whoami,
)
from .credit import Account, Balance, EntryPage, Grant, Statement
from .errors import Busy, Failure, NoAnswer, Unexpected
from .work import Call

T = TypeVar("T")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A client of the servers of one cluster. It connects with the first request, and may be used by many threads.

    Leases need a `Limiter` and sequenced writes a `Writer`, which follow the retry rules. The methods here can be
    called again without any rule. Every method that may wait takes a `timeout` in seconds, by default the client's.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        key: str | None = None,
        roots: str | None = None,
        is_plaintext_allowed: bool = False,
        timeout: float = 30.0,
        connect_timeout: float = 2.0,
        attempt_timeout: float = 8.0,
        connections_max: int = 256,
        answer_bytes_max: int = 64 << 20,
        backoff: Backoff | None = None,
        env: Env | None = None,
    ) -> None:
        """A client of one server, or of several servers of one cluster in the order in which they are tried.

        `key` is an API key or a session token; `roots` is a PEM file with root certificates, by default those of the
        machine. `attempt_timeout` must exceed the 5 s for which a node waits for a new leader.
        """
        self.options = Options.of(
            servers,
            key=key,
            roots=roots,
            is_plaintext_allowed=is_plaintext_allowed,
            timeout=timeout,
            connect_timeout=connect_timeout,
            attempt_timeout=attempt_timeout,
            connections_max=connections_max,
            answer_bytes_max=answer_bytes_max,
            backoff=backoff,
            env=env,
        )
        self._prepare()

    @staticmethod
    def of(options: Options) -> Client:
        """A client with the options of another one, and connections of its own."""
        client = Client.__new__(Client)
        client.options = options
        client._prepare()
        return client

    def _prepare(self) -> None:
        self._tls = _http.tls(self.options.core.servers.urls, self.options.roots)
        self._disconnect()
        _clients.add(self)

    def _disconnect(self) -> None:
        #: Transports without a request, the last used one at the end. Each has one connection to each server.
        self._idle: deque[httpx.HTTPTransport] = deque()
        self._slots = threading.Semaphore(self.options.connections_max)

    def close(self) -> None:
        """Closes the connections."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        rule: Rule[T],
        wait: Callable[[Sleep], None] | None = None,
        store: Callable[[Store], None] | None = None,
    ) -> T:
        """Runs a rule to its end. `wait` replaces the plain sleep; `store` writes to a sequence file."""
        result: Any = None
        try:
            while True:
                effect = rule.send(result)
                if isinstance(effect, Send):
                    result = self.send(effect.request, effect.by)
                elif isinstance(effect, Store):
                    assert store is not None, "only a writer stores"
                    result = None
                    store(effect)
                else:
                    result = None
                    wait(effect) if wait is not None else time.sleep(effect.seconds)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            rule.close()

    def send(self, request: Request[T], by: float) -> T | Failure:
        """Sends a request once, to the preferred server."""
        server = self.options.core.servers.preferred()
        answer = self._send(server, request, by)
        self.options.core.servers.answered(server, answer)
        return answer

    def _send(self, server: str, request: Request[T], by: float) -> T | Failure:
        end, extensions = self.options.timeouts(by)
        http = httpx.Request(
            request.method,
            _http.url(server + request.path),
            headers=self.options.headers,
            content=request.body or None,
            extensions=extensions,
        )
        if not self._slots.acquire(timeout=max(0.0, end - self.options.core.env.now())):
            return Busy(f"{self.options.connections_max} requests are under way already; raise connections_max")
        transport = self._take()
        try:
            answer = self._exchange(server, request, transport, http, end)
        except BaseException as error:
            # A connection that failed may stay in the pool of the transport. The next request takes a new one.
            transport.close()
            if isinstance(error, httpx.TransportError):
                return _http.failed(server, error)
            raise
        finally:
            self._slots.release()
        self._idle.append(transport)
        return answer

    def _take(self) -> httpx.HTTPTransport:
        try:
            return self._idle.pop()
        except IndexError:
            limits = _http.limits(len(self.options.core.servers.urls))
            return httpx.HTTPTransport(verify=self._tls, limits=limits, trust_env=False)

    def _exchange(
        self, server: str, request: Request[T], transport: httpx.HTTPTransport, http: httpx.Request, end: float
    ) -> T | Failure:
        body = bytearray()
        response = transport.handle_request(http)
        try:
            stream: Any = response.stream
            for chunk in stream:
                body += chunk
                if len(body) > self.options.answer_bytes_max:
                    return Unexpected(f"{server} answered with more than {self.options.answer_bytes_max} bytes")
                if self.options.core.env.now() > end:
                    return NoAnswer(f"{server} gave no answer: its response did not end in time")
        finally:
            response.close()
        return judge(server, request, response.status_code, bytes(body))

    def _ask(self, request: Request[T], timeout: float | None) -> T:
        return self.run(self.options.core.ask(request, self.options.deadline(timeout)))

    def put_limit(self, definition: Mapping[str, Any], *, timeout: float | None = None) -> str:
        """Creates a limit or changes its definition, and returns its status."""
        return self._ask(_requests.put_limit(definition), timeout)

    def delete_limit(self, key: str, *, timeout: float | None = None) -> str:
        """Stops reserves on a limit, deletes it once it is empty, and returns its status."""
        return self._ask(_requests.delete_limit(key), timeout)

    def pause_limit(self, key: str, seconds: float, reason: str | None = None, *, timeout: float | None = None) -> int:
        """Refuses new reserves of a limit for a time, at most one hour; 0 resumes it. Returns the server time at which
        the pause ends."""
        return self._ask(_requests.pause_limit(key, seconds, reason), timeout)

    def limit(self, key: str, *, timeout: float | None = None) -> Limit:
        """One limit."""
        return self._ask(_requests.limit(key), timeout)

    def limits(self, prefix: str | None = None, *, timeout: float | None = None) -> list[Limit]:
        """All limits whose key begins with `prefix`, sorted by key."""
        return self.run(_requests.limits(self.options.core, prefix, self.options.deadline(timeout)))

    def usage(self, key: str, *, timeout: float | None = None) -> LimitUsage:
        """The usage of a limit."""
        return self._ask(_requests.usage(key), timeout)

    def usage_page(
        self,
        prefix: str | None = None,
        sort: str = "key",
        after: str | None = None,
        page_size: int | None = None,
        *,
        timeout: float | None = None,
    ) -> UsagePage:
        """Limits with their usage: a page by key, or the first ones by fullness or debt."""
        return self._ask(_requests.usage_page(prefix, sort, after, page_size), timeout)

    def put_template(
        self, definition: Mapping[str, Any], *, expected_revision: int | None = None, timeout: float | None = None
    ) -> int:
        """Creates a template, whose key has placeholders such as `{tenant}:rpm`, or changes its definition. Returns its
        revision. With `expected_revision` it must have that one; 0: it must not exist."""
        return self._ask(_requests.put_template(definition, expected_revision), timeout)

    def delete_template(
        self, key: str, *, expected_revision: int | None = None, timeout: float | None = None
    ) -> None:
        """Deletes a template and the limits that are derived from it."""
        self._ask(_requests.delete_template(key, expected_revision), timeout)

    def templates(self, *, timeout: float | None = None) -> list[Template]:
        """All templates."""
        return self._ask(_requests.templates(), timeout)

    def top(
        self, of: str = "taken", within: str = "5m", prefix: str | None = None, *, timeout: float | None = None
    ) -> list[TopLimit]:
        """The heaviest limits of the server that answers: those of which the most was `taken`, `denied` or became
        `debt` within `1m`, `5m` or `1h`."""
        return self._ask(_requests.top(of, within, prefix), timeout)

    def decisions(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        job: str | None = None,
        outcome: str | None = None,
        since: int | None = None,
        until: int | None = None,
        after: str | None = None,
        page_size: int | None = None,
        timeout: float | None = None,
    ) -> DecisionPage:
        """Recent denials, refusals, timeouts and overages in the log of the server that answers, newest first. `key` is
        the beginning of the key of a limit; times are milliseconds of Unix time."""
        request = _requests.decisions(
            key=key,
            actor=actor,
            job=job,
            outcome=outcome,
            since=since,
            until=until,
            after=after,
            page_size=page_size,
        )
        return self._ask(request, timeout)

    def lease(self, lease_id: str, *, timeout: float | None = None) -> LeaseView:
        """One lease."""
        return self._ask(_requests.lease(lease_id), timeout)

    def vaults(self, *, timeout: float | None = None) -> list[str]:
        """The names of all vaults, sorted."""
        return self.run(_requests.vaults(self.options.core, self.options.deadline(timeout)))

    def accounts(
        self, vault: str, prefix: str | None = None, *, timeout: float | None = None
    ) -> list[Account]:
        """All accounts of a vault whose name begins with `prefix`, sorted by name, with their balances."""
        return self.run(_requests.accounts(self.options.core, vault, prefix, self.options.deadline(timeout)))

    def balances(self, vault: str, account: str, *, timeout: float | None = None) -> tuple[Balance, ...]:
        """The balances of an account, sorted by asset."""
        return self._ask(_requests.balances(vault, account), timeout)

    def grants(self, vault: str, account: str, *, timeout: float | None = None) -> tuple[Grant, ...]:
        """The grants of an account, by asset and then in the order in which they are spent."""
        return self._ask(_requests.grants(vault, account), timeout)

    def entries(
        self,
        vault: str,
        account: str,
        *,
        since: int | None = None,
        until: int | None = None,
        order: str = "asc",
        after: int | None = None,
        page_size: int | None = None,
        timeout: float | None = None,
    ) -> EntryPage:
        """The movements of an account in a period, in milliseconds of Unix time: oldest first, or with `desc` newest
        first. `after` is `next` of the page before."""
        request = _requests.entries(vault, account, order, since=since, until=until, after=after, page_size=page_size)
        return self._ask(request, timeout)

    def statement(
        self,
        vault: str,
        account: str,
        *,
        since: int | None = None,
        until: int | None = None,
        group_by: str | None = None,
        after: str | None = None,
        page_size: int | None = None,
        timeout: float | None = None,
    ) -> Statement:
        """The sums of an account in a period, in milliseconds of Unix time, and its spending by the value of a label:
        `page_size` values, by default 10,000 and at most 50,000, and with `after`, which is `next` of the page before, the
        following ones. The server reads the whole history of the account for each page."""
        query = {"since": since, "until": until, "group_by": group_by, "after": after, "page_size": page_size}
        return self._ask(_requests.statement(vault, account, **query), timeout)

    def explain(self, call: Call, *, timeout: float | None = None) -> Explanation:
        """The answer that a call would get: the rules that match, the limits, and how full they are. Takes nothing."""
        return self._ask(call.explain(), timeout)

    def whoami(self, *, timeout: float | None = None) -> Whoami:
        """The caller that the server sees: its name, namespace, role, and the attributes of its calls."""
        return self._ask(_requests.whoami(), timeout)

    def write_once(
        self,
        idempotency_key: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str = "default",
        vault: str | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Applies operations once under a key of the caller, such as the id of a webhook event. After an unknown
        outcome the same call has no second effect. Raises `WriteRefused`; its code `ALREADY_COMMITTED` means that the
        write was applied more than 24 hours ago."""
        deadline = self.options.deadline(timeout)
        return self.run(write_once(self.options.core, idempotency_key, operations, (namespace, vault), deadline))

    def client_state(
        self, client_id: str, namespace: str = "default", vault: str | None = None, *, timeout: float | None = None
    ) -> int:
        """The last sequence number that a client committed in a scope; 0 before the first."""
        return self._ask(_requests.client_state(client_id, namespace, vault), timeout)

    def put_policy(
        self,
        policy: str,
        *,
        expected_revision: int | None = None,
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Replaces the policy of a namespace, a TOML document, and returns its revision."""
        return self._ask(_requests.put_policy(policy, expected_revision, namespace), timeout)

    def policy(self, namespace: str | None = None, *, timeout: float | None = None) -> tuple[str, int]:
        """The policy of a namespace with its revision."""
        return self._ask(_requests.policy(namespace), timeout)


def _disconnect_child() -> None:
    # The connections belong to the parent process: two processes on one connection would read each other's answers.
    for client in list(_clients):
        client._disconnect()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disconnect_child)
