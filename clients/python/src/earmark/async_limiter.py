"""Admission for asynchronous programs, with asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from . import _exit, _names
from ._admission import Admitted
from ._async_settler import AsyncSettler
from ._batcher import Sender
from ._extensions import Extended, KeepAliveRule
from ._lease import LeaseBase
from ._rules import Sleep
from ._wire import Request
from .answers import Completed
from .async_client import AsyncClient
from .errors import Denial, ExtendError, Failure
from .work import Call, Extension, Job, Usage, Work

_log = logging.getLogger("earmark")


class AsyncLimiter:
    """Admits calls. All tasks of one event loop share it, and their requests share batches.

    Every attempt has its own lease. The same lease is retried while its outcome is unknown, and a denied lease is never
    used again.
    """

    def __init__(self, client: AsyncClient, *, batching: bool = True, complete_within: float = 60.0) -> None:
        """A limiter on the servers of a client. `complete_within` bounds the retries of a complete in seconds; after it
        the lease is left to expire."""
        self._client = _names.kind("client", client, AsyncClient)
        self._sender = Sender(client, batching)
        within = _names.seconds("complete_within", complete_within)
        self._settler = AsyncSettler(client.options.core, self._sender, within)
        self._admission = self._settler.admission
        _exit.watch(self._admission.unsettled, client.options)
        weakref.finalize(self, _exit.forget, self._admission.unsettled).atexit = False

    def acquire(
        self, requirements: Mapping[str, int], *, job_id: str | None = None, timeout: float | None = None
    ) -> Acquiring:
        """Waits until all limits have room. Use it with `async with` or `await`. An error that waiting cannot cure is
        raised at once; `AcquireTimeout` when the timeout passes. A task that is cancelled here gives back what an
        attempt may have reserved."""
        return Acquiring(self, Job(requirements, job_id), timeout)

    async def try_acquire(
        self, requirements: Mapping[str, int], *, job_id: str | None = None, timeout: float | None = None
    ) -> AsyncLease | Denial:
        """Makes one attempt. A denial is an answer; only an unknown outcome is retried."""
        return await self.attempt(Job(requirements, job_id), timeout=timeout)

    def call(
        self,
        attributes: Mapping[str, str],
        *,
        input_tokens_max: int,
        output_tokens_max: int,
        job_id: str | None = None,
        timeout: float | None = None,
    ) -> Acquiring:
        """Waits until a call is admitted by the policy of the namespace."""
        return Acquiring(self, Call(attributes, input_tokens_max, output_tokens_max, job_id), timeout)

    async def attempt(self, work: Work, *, timeout: float | None = None) -> AsyncLease | Denial:
        """Makes one attempt to admit a job or a call."""
        self._settler.loop = self._client.loop()
        rule = self._admission.attempt(work, self._client.options.deadline(timeout))
        result = await self._client.run(rule, self._sender.ask, self._wait)
        return AsyncLease(self, result, work) if isinstance(result, Admitted) else result

    async def flush(self, timeout: float | None = None) -> bool:
        """Waits until all completes in the background are done, and returns whether they were before the timeout."""
        return await self._settler.flush(self._client.options.deadline(timeout))

    @property
    def abandoned(self) -> int:
        """The number of leases that could not be completed and were left to expire."""
        return self._settler.abandoned

    async def close(self) -> None:
        """Waits for the completes in the background."""
        await self.flush()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _acquire(self, work: Work, timeout: float | None) -> AsyncLease:
        self._settler.loop = self._client.loop()
        rule = self._admission.acquire(work, self._client.options.deadline(timeout))
        return AsyncLease(self, await self._client.run(rule, self._sender.ask, self._wait), work)

    async def _wait(self, sleep: Sleep) -> None:
        if not sleep.keys:
            await asyncio.sleep(sleep.seconds)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = loop.call_later(sleep.seconds, wake)
        self._settler.queues.join(sleep.keys, wake)
        try:
            await woken
        finally:
            timer.cancel()
            self._settler.queues.leave(sleep.keys, wake)


class Acquiring:
    """A lease that is being acquired, for `await` or `async with`."""

    __slots__ = ("_lease", "_limiter", "_timeout", "_work")

    def __init__(self, limiter: AsyncLimiter, work: Work, timeout: float | None) -> None:
        self._limiter = limiter
        self._work = work
        self._timeout = timeout
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._limiter._acquire(self._work, self._timeout).__await__()  # pyright: ignore[reportPrivateUsage]

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._limiter._acquire(self._work, self._timeout)  # pyright: ignore[reportPrivateUsage]
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lease is not None and self._lease.is_open:
            await self._lease.__aexit__(kind, error, traceback)


class AsyncLease(LeaseBase):
    """An admitted lease. Use it in an `async with` block."""

    def __init__(self, limiter: AsyncLimiter, admitted: Admitted, work: Work) -> None:
        super().__init__(limiter._admission, admitted, work)  # pyright: ignore[reportPrivateUsage]
        self._limiter = limiter
        self._numbers: asyncio.Lock | None = None
        self._keep_alive: AsyncKeepAlive | None = None

    def __del__(self) -> None:
        if self._is_open and self._keep_alive is not None:
            self._keep_alive.dropped()
        super().__del__()

    async def complete(
        self, actuals: Mapping[str, int] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the actual amounts. A limit without one counts as fully used. Statements group costs by `labels`: up to
        8 texts by name. It continues in the background when the task is cancelled."""
        return await self._settle(self._with_actuals(actuals, labels))

    async def complete_call(
        self, usage: Usage | None = None, outcome: str = "done", *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the usage of a call. `done` without a usage, and `unknown`, settle its bound; `refused` releases
        everything."""
        return await self._settle(self._with_usage(usage, outcome, labels))

    async def release(self) -> Completed:
        """Frees everything, because no call was made."""
        return await self._settle(self._unused())

    async def extend(
        self,
        add: Mapping[str, int] | None = None,
        *,
        renew: bool = True,
        add_output_tokens: int = 0,
        timeout: float | None = None,
    ) -> Extended:
        """Changes the lease, all or nothing: takes more, moves its end, and reports the usage that `used` recorded.

        After `ExtendFailed` the outcome is unknown: call it again with the same arguments, before any other extension.
        That takes nothing twice."""
        client = self._limiter._client  # pyright: ignore[reportPrivateUsage]
        extension = Extension(dict(add) if add else None, renew, add_output_tokens)
        async with self._lock():
            rule = self._extensions.extend(extension, client.options.deadline(timeout))
            return await client.run(rule, self._limiter._sender.ask)  # pyright: ignore[reportPrivateUsage]

    def keep_alive(self, timeout: float) -> AsyncKeepAlive:
        """Renews the lease of a long call whenever a third of `timeout` has passed, the shortest timeout of its
        concurrency and credit limits in seconds. It stops with the lease."""
        if self._keep_alive is not None:
            self._keep_alive.stop()
        rule = self._extensions.keep_alive(timeout, self.reserved_at_unix_ms, self._admitted_at)
        self._keep_alive = AsyncKeepAlive(self._limiter, rule, self._lock())
        if not self.is_open:
            self._keep_alive.stop()
        return self._keep_alive

    def _lock(self) -> asyncio.Lock:
        """Held while an extension is under way: the next one needs the next number."""
        if self._numbers is None:
            self._numbers = asyncio.Lock()
        return self._numbers

    def settle_soon(self, request: Request[Completed]) -> None:
        """Completes the lease in the background."""
        if self.is_open:
            self._settle(request)

    def _settle(self, request: Request[Completed]) -> asyncio.Future[Completed]:
        self._limiter._client.loop()  # pyright: ignore[reportPrivateUsage]
        limits = self.work.limits()
        self._finish(request)
        if self._keep_alive is not None:
            self._keep_alive.stop()
        return self._limiter._settler.settle(self.lease_id, request, limits)  # pyright: ignore[reportPrivateUsage]

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            try:
                await self._settle(self._unknown())
            except Failure:
                pass  # It was logged; the error of the block matters more.


class AsyncKeepAlive:
    """Renews a lease in a task of its own."""

    def __init__(self, limiter: AsyncLimiter, rule: KeepAliveRule, numbers: asyncio.Lock) -> None:
        #: Why the lease cannot be renewed any more; None as long as it can. The call should stop then: others may take
        #: its capacity.
        self.error: ExtendError | None = None
        self._task = asyncio.create_task(self._renew(limiter, rule, numbers))

    async def lost(self) -> ExtendError | None:
        """Waits until the lease cannot be renewed any more, and returns why; None once the lease is completed."""
        await asyncio.wait([self._task])
        return self.error

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended although the call goes on."""
        return self.error is not None

    def stop(self) -> None:
        """Stops the renewals. The end of the lease does so by itself."""
        self._task.cancel()

    def dropped(self) -> None:
        """Stops the renewals of a lease that was dropped, from any thread."""
        loop = self._task.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._task.cancel)

    async def _renew(self, limiter: AsyncLimiter, rule: KeepAliveRule, numbers: asyncio.Lock) -> None:
        try:
            while True:
                await asyncio.sleep(rule.wait())
                async with numbers:
                    client = limiter._client  # pyright: ignore[reportPrivateUsage]
                    await client.run(rule.renew(), limiter._sender.ask)  # pyright: ignore[reportPrivateUsage]
        except ExtendError as error:
            self.error = error
            _log.warning("a lease cannot be renewed and will run out: %s", error)
