"""The asynchronous client, for asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
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
from .errors import Busy, Failure, InputError, NoAnswer, Unexpected
from .work import Call

T = TypeVar("T")
Ask = Callable[[Request[Any], float], Awaitable[Any]]
Wait = Callable[[Sleep], Awaitable[None]]
Put = Callable[[Store], Awaitable[None]]


class AsyncClient:
    """A client of the servers of one cluster. It connects with the first request, and belongs to one event loop.

    Leases need an `AsyncLimiter` and sequenced writes an `AsyncWriter`, which follow the retry rules. The methods here
    can be called again without any rule. Every method that may wait takes a `timeout` in seconds, by default the
    client's.
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
        self._tls = _http.tls(self.options.core.servers.urls, self.options.roots)
        #: Transports without a request, the last used one at the end. Each has one connection to each server.
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._slots = asyncio.Semaphore(connections_max)
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running event loop. Connections and waiting tasks of another one cannot be used in it."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise InputError("client: it belongs to another event loop; make a client and a limiter for each one")
            self._loop = loop
        return loop

    async def close(self) -> None:
        """Closes the connections."""
        while self._idle:
            await self._idle.pop().aclose()
        self._loop = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, rule: Rule[T], ask: Ask | None = None, wait: Wait | None = None, store: Put | None = None) -> T:
        """Runs a rule to its end. `ask` replaces the plain request, `wait` the plain sleep; `store` writes to a
        sequence file."""
        if ask is None:
            self.loop()
            ask = self.send
        result: Any = None
        try:
            while True:
                effect = rule.send(result)
                if isinstance(effect, Send):
                    result = await ask(effect.request, effect.by)
                elif isinstance(effect, Store):
                    assert store is not None, "only a writer stores"
                    result = None
                    await store(effect)
                else:
                    result = None
                    await (wait(effect) if wait is not None else asyncio.sleep(effect.seconds))
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            rule.close()

    async def send(self, request: Request[T], by: float) -> T | Failure:
        """Sends a request once, to the preferred server."""
        server = self.options.core.servers.preferred()
        answer = await self._send(server, request, by)
        self.options.core.servers.answered(server, answer)
        return answer

    async def _send(self, server: str, request: Request[T], by: float) -> T | Failure:
        end, extensions = self.options.timeouts(by)
        http = httpx.Request(
            request.method,
            _http.url(server + request.path),
            headers=self.options.headers,
            content=request.body or None,
            extensions=extensions,
        )
        now = self.options.core.env.now
        try:
            if self._slots.locked():
                await _within(self._slots.acquire(), end - now())
            else:
                await self._slots.acquire()
        except asyncio.TimeoutError:
            return Busy(f"{self.options.connections_max} requests are under way already; raise connections_max")
        try:
            status, body = await _within(self._response(http), end - now())
        except httpx.TransportError as error:
            return _http.failed(server, error)
        except asyncio.TimeoutError:
            return NoAnswer(f"{server} gave no answer: its response did not end in time")
        finally:
            self._slots.release()
        if body is None:
            return Unexpected(f"{server} answered with more than {self.options.answer_bytes_max} bytes")
        return judge(server, request, status, body)

    async def _response(self, request: httpx.Request) -> tuple[int, bytes | None]:
        body = bytearray()
        transport = self._take()
        try:
            response = await transport.handle_async_request(request)
            try:
                stream: Any = response.stream
                async for chunk in stream:
                    body += chunk
                    if len(body) > self.options.answer_bytes_max:
                        break
            finally:
                await response.aclose()
        except BaseException:
            # A connection that failed or was cancelled may stay in the pool of the transport, where it is never ready
            # and never freed. The next request takes a new one. An error of the close must not hide a cancellation.
            with suppress(Exception):
                await transport.aclose()
            raise
        self._idle.append(transport)
        return response.status_code, bytes(body) if len(body) <= self.options.answer_bytes_max else None

    def _take(self) -> httpx.AsyncHTTPTransport:
        if self._idle:
            return self._idle.pop()
        limits = _http.limits(len(self.options.core.servers.urls))
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=False)

    async def _ask(self, request: Request[T], timeout: float | None) -> T:
        return await self.run(self.options.core.ask(request, self.options.deadline(timeout)))

    async def put_limit(self, definition: Mapping[str, Any], *, timeout: float | None = None) -> str:
        """Creates a limit or changes its definition, and returns its status."""
        return await self._ask(_requests.put_limit(definition), timeout)

    async def delete_limit(self, key: str, *, timeout: float | None = None) -> str:
        """Stops reserves on a limit, deletes it once it is empty, and returns its status."""
        return await self._ask(_requests.delete_limit(key), timeout)

    async def pause_limit(
        self, key: str, seconds: float, reason: str | None = None, *, timeout: float | None = None
    ) -> int:
        """Refuses new reserves of a limit for a time, at most one hour; 0 resumes it. Returns the server time at which
        the pause ends."""
        return await self._ask(_requests.pause_limit(key, seconds, reason), timeout)

    async def limit(self, key: str, *, timeout: float | None = None) -> Limit:
        """One limit."""
        return await self._ask(_requests.limit(key), timeout)

    async def limits(self, prefix: str | None = None, *, timeout: float | None = None) -> list[Limit]:
        """All limits whose key begins with `prefix`, sorted by key."""
        return await self.run(_requests.limits(self.options.core, prefix, self.options.deadline(timeout)))

    async def usage(self, key: str, *, timeout: float | None = None) -> LimitUsage:
        """The usage of a limit."""
        return await self._ask(_requests.usage(key), timeout)

    async def usage_page(
        self,
        prefix: str | None = None,
        sort: str = "key",
        after: str | None = None,
        page_size: int | None = None,
        *,
        timeout: float | None = None,
    ) -> UsagePage:
        """Limits with their usage: a page by key, or the first ones by fullness or debt."""
        return await self._ask(_requests.usage_page(prefix, sort, after, page_size), timeout)

    async def put_template(
        self, definition: Mapping[str, Any], *, expected_revision: int | None = None, timeout: float | None = None
    ) -> int:
        """Creates a template, whose key has placeholders such as `{tenant}:rpm`, or changes its definition. Returns its
        revision. With `expected_revision` it must have that one; 0: it must not exist."""
        return await self._ask(_requests.put_template(definition, expected_revision), timeout)

    async def delete_template(
        self, key: str, *, expected_revision: int | None = None, timeout: float | None = None
    ) -> None:
        """Deletes a template and the limits that are derived from it."""
        await self._ask(_requests.delete_template(key, expected_revision), timeout)

    async def templates(self, *, timeout: float | None = None) -> list[Template]:
        """All templates."""
        return await self._ask(_requests.templates(), timeout)

    async def top(
        self, of: str = "taken", within: str = "5m", prefix: str | None = None, *, timeout: float | None = None
    ) -> list[TopLimit]:
        """The heaviest limits of the server that answers: those of which the most was `taken`, `denied` or became
        `debt` within `1m`, `5m` or `1h`."""
        return await self._ask(_requests.top(of, within, prefix), timeout)

    async def decisions(
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
        return await self._ask(request, timeout)

    async def lease(self, lease_id: str, *, timeout: float | None = None) -> LeaseView:
        """One lease."""
        return await self._ask(_requests.lease(lease_id), timeout)

    async def vaults(self, *, timeout: float | None = None) -> list[str]:
        """The names of all vaults, sorted."""
        return await self.run(_requests.vaults(self.options.core, self.options.deadline(timeout)))

    async def accounts(
        self, vault: str, prefix: str | None = None, *, timeout: float | None = None
    ) -> list[Account]:
        """All accounts of a vault whose name begins with `prefix`, sorted by name, with their balances."""
        return await self.run(_requests.accounts(self.options.core, vault, prefix, self.options.deadline(timeout)))

    async def balances(self, vault: str, account: str, *, timeout: float | None = None) -> tuple[Balance, ...]:
        """The balances of an account, sorted by asset."""
        return await self._ask(_requests.balances(vault, account), timeout)

    async def grants(self, vault: str, account: str, *, timeout: float | None = None) -> tuple[Grant, ...]:
        """The grants of an account, by asset and then in the order in which they are spent."""
        return await self._ask(_requests.grants(vault, account), timeout)

    async def entries(
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
        return await self._ask(request, timeout)

    async def statement(
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
        return await self._ask(_requests.statement(vault, account, **query), timeout)

    async def explain(self, call: Call, *, timeout: float | None = None) -> Explanation:
        """The answer that a call would get: the rules that match, the limits, and how full they are. Takes nothing."""
        return await self._ask(call.explain(), timeout)

    async def whoami(self, *, timeout: float | None = None) -> Whoami:
        """The caller that the server sees: its name, namespace, role, and the attributes of its calls."""
        return await self._ask(_requests.whoami(), timeout)

    async def write_once(
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
        return await self.run(write_once(self.options.core, idempotency_key, operations, (namespace, vault), deadline))

    async def client_state(
        self, client_id: str, namespace: str = "default", vault: str | None = None, *, timeout: float | None = None
    ) -> int:
        """The last sequence number that a client committed in a scope; 0 before the first."""
        return await self._ask(_requests.client_state(client_id, namespace, vault), timeout)

    async def put_policy(
        self,
        policy: str,
        *,
        expected_revision: int | None = None,
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Replaces the policy of a namespace, a TOML document, and returns its revision."""
        return await self._ask(_requests.put_policy(policy, expected_revision, namespace), timeout)

    async def policy(self, namespace: str | None = None, *, timeout: float | None = None) -> tuple[str, int]:
        """The policy of a namespace with its revision."""
        return await self._ask(_requests.policy(namespace), timeout)


async def _within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    if sys.version_info >= (3, 11):
        async with asyncio.timeout(seconds):
            return await work
    return await asyncio.wait_for(work, seconds)
