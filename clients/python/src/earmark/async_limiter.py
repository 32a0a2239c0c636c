"""Admission for asynchronous programs, with asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any

from . import _exit, _names
from ._admission import Admission, Admitted, WaitQueues
from ._batcher import Batcher
from ._extensions import Extended, KeepAliveRule
from ._lease import LeaseBase
from ._rules import Sleep
from ._wire import Request
from .answers import Completed
from .async_client import AsyncClient
from .errors import Denial, ExtendError, Failure
from .work import Call, Extension, Job, Usage, Work

#: Concurrent completes in the background. Leases beyond it are left to expire, or to the exit of the interpreter.
SETTLING_MAX = 65_536

_log = logging.getLogger("earmark")


class AsyncLimiter:
    """Admits calls. All tasks of one event loop share it, and their requests share batches.

    Every attempt has its own lease. The same lease is retried while its outcome is unknown, and a denied lease is never
    used again.
    """

    def __init__(self, client: AsyncClient, *, batching: bool = True, complete_within: float = 60.0) -> None:
        """A limiter on the servers of a client. `complete_within` bounds the retries of a complete in seconds; after it
        the lease is left to expire."""
        self._client = client
        self._complete_within = _names.seconds("complete_within", complete_within)
        self._batchers: dict[str, Batcher] = {}
        self._is_batching = batching
        self._queues = WaitQueues()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settling: set[asyncio.Task[Completed]] = set()
        self._admission = Admission(client.options.core, self._settle_later)
        #: The number of leases that could not be completed and were left to expire.
        self.abandoned = 0
        _exit.watch(self._admission.unsettled, client.options)
        weakref.finalize(self, _exit.forget, self._admission.unsettled).atexit = False

    def acquire(
        self, requirements: Mapping[str, int], *, job_id: str | None = None, timeout: float | None = None
    ) -> Acquiring:
        """Waits until all limits have room. Use it with `async with` or `await`. An error that waiting cannot cure is
        raised at once; `AcquireTimeout` when the timeout passes. A task that is cancelled here gives back what an
        attempt may have reserved."""
        return Acquiring(lambda: self._acquire(Job(requirements, job_id), timeout))

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
        return Acquiring(lambda: self._acquire(Call(attributes, input_tokens_max, output_tokens_max, job_id), timeout))

    async def attempt(self, work: Work, *, timeout: float | None = None) -> AsyncLease | Denial:
        """Makes one attempt to admit a job or a call."""
        self._loop = asyncio.get_running_loop()
        rule = self._admission.attempt(work, self._client.options.deadline(timeout))
        result = await self._client.run(rule, self._ask, self._wait)
        return AsyncLease(self, result, work) if isinstance(result, Admitted) else result

    async def flush(self, timeout: float | None = None) -> bool:
        """Waits until all completes in the background are done, and returns whether they were before the timeout."""
        end = self._client.options.deadline(timeout)
        await asyncio.sleep(0)  # Leases that other threads dropped.
        while self._settling:
            left = end - self._client.options.core.env.now()
            if left <= 0:
                return False
            await asyncio.wait(list(self._settling), timeout=left)
        return True

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
        self._loop = asyncio.get_running_loop()
        rule = self._admission.acquire(work, self._client.options.deadline(timeout))
        return AsyncLease(self, await self._client.run(rule, self._ask, self._wait), work)

    async def _ask(self, request: Request[Any], by: float) -> Any:
        path = request.batch_path
        if path is None or not self._is_batching:
            return await self._client.send(request, by)
        batcher = self._batchers.get(path)
        if batcher is None:
            batcher = self._batchers[path] = Batcher(self._client, path)
        return await batcher.ask(request, by)

    async def _wait(self, sleep: Sleep) -> None:
        if not sleep.keys:
            await asyncio.sleep(sleep.seconds)
            return
        event = asyncio.Event()
        self._queues.join(sleep.keys, event.set)
        try:
            await asyncio.wait([asyncio.ensure_future(event.wait())], timeout=sleep.seconds)
        finally:
            event.set()
            self._queues.leave(sleep.keys, event.set)

    def _settle_later(self, lease_id: str) -> None:
        """Completes a lease in the background. A finalizer may call it at any moment, in any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return  # The exit of the interpreter settles it.
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._settle_stored(lease_id)
        else:
            loop.call_soon_threadsafe(self._settle_stored, lease_id)

    def _settle_stored(self, lease_id: str) -> None:
        if len(self._settling) < SETTLING_MAX:
            for request in self._admission.unsettled.completes([lease_id]).values():
                self._settle(lease_id, request, ())

    def _settle(self, lease_id: str, request: Request[Completed], limits: tuple[str, ...]) -> asyncio.Task[Completed]:
        """Completes a lease in a task of its own, which outlives its caller."""
        task = asyncio.create_task(self._complete(lease_id, request, limits))
        self._settling.add(task)
        task.add_done_callback(self._settled)
        return task

    def _settled(self, task: asyncio.Task[Completed]) -> None:
        self._settling.discard(task)
        # Retrieves the error, which was logged.
        _ = task.cancelled() or task.exception()

    async def _complete(self, lease_id: str, request: Request[Completed], limits: tuple[str, ...]) -> Completed:
        core = self._client.options.core
        rule = core.ask(request, core.env.now() + self._complete_within)
        try:
            completed = await self._client.run(rule, self._ask)
        except Failure as failure:
            self.abandoned += 1
            self._admission.unsettled.settled(lease_id)
            _log.warning("lease %s could not be completed and will expire: %s", lease_id, failure)
            raise
        # A cancelled task leaves the lease to the exit of the interpreter.
        self._admission.unsettled.settled(lease_id)
        self._queues.release(limits)
        return completed


class Acquiring:
    """A lease that is being acquired, for `await` or `async with`."""

    def __init__(self, acquire: Callable[[], Coroutine[Any, Any, AsyncLease]]) -> None:
        self._acquire = acquire
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._acquire().__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, error, traceback)


class AsyncLease(LeaseBase):
    """An admitted lease. Use it in an `async with` block."""

    def __init__(self, limiter: AsyncLimiter, admitted: Admitted, work: Work) -> None:
        super().__init__(limiter._admission, admitted, work)  # pyright: ignore[reportPrivateUsage]
        self._limiter = limiter
        #: Held while an extension is under way: the next one needs the next number.
        self._numbers = asyncio.Lock()
        self._is_over = asyncio.Event()
        #: Keeps its task from the garbage collector.
        self._keep_alive: AsyncKeepAlive | None = None

    async def complete(
        self, actuals: Mapping[str, int] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the actual amounts. A limit without one counts as fully used. Statements group costs by `labels`: up to
        8 texts by name. It continues in the background when the task is cancelled."""
        return await asyncio.shield(self._settle(self._with_actuals(actuals, labels)))

    async def complete_call(
        self, usage: Usage | None = None, outcome: str = "done", *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the usage of a call. `done` without a usage, and `unknown`, settle its bound; `refused` releases
        everything."""
        return await asyncio.shield(self._settle(self._with_usage(usage, outcome, labels)))

    async def release(self) -> Completed:
        """Frees everything, because no call was made."""
        return await asyncio.shield(self._settle(self._unused()))

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
        limiter = self._limiter
        client = limiter._client  # pyright: ignore[reportPrivateUsage]
        extension = Extension(dict(add) if add else None, renew, add_output_tokens)
        async with self._numbers:
            rule = self._extensions.extend(extension, client.options.deadline(timeout))
            return await client.run(rule, limiter._ask)  # pyright: ignore[reportPrivateUsage]

    def keep_alive(self, timeout: float) -> AsyncKeepAlive:
        """Renews the lease of a long call whenever a third of `timeout` has passed, the shortest timeout of its
        concurrency and credit limits in seconds. It stops with the lease."""
        rule = self._extensions.keep_alive(timeout, self.reserved_at_unix_ms, self._admitted_at)
        self._keep_alive = AsyncKeepAlive(self._limiter, rule, self._numbers, self._is_over)
        return self._keep_alive

    def settle_soon(self, request: Request[Completed]) -> None:
        """Completes the lease in the background."""
        if self.is_open:
            self._settle(request)

    def _settle(self, request: Request[Completed]) -> asyncio.Task[Completed]:
        limits = self.work.limits()
        self._finish(request)
        self._is_over.set()
        return self._limiter._settle(self.lease_id, request, limits)  # pyright: ignore[reportPrivateUsage]

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            # A failure was logged; the error of the block matters more.
            await asyncio.wait([self._settle(self._unknown())])


class AsyncKeepAlive:
    """Renews a lease in a task of its own."""

    def __init__(
        self, limiter: AsyncLimiter, rule: KeepAliveRule, numbers: asyncio.Lock, is_over: asyncio.Event
    ) -> None:
        #: Why the lease cannot be renewed any more; None as long as it can. The call should stop then: others may take
        #: its capacity.
        self.error: ExtendError | None = None
        self._is_over = is_over
        self._task = asyncio.create_task(self._renew(limiter, rule, numbers))

    async def lost(self) -> ExtendError | None:
        """Waits until the lease cannot be renewed any more, and returns why; None once the lease is completed."""
        await asyncio.wait([self._task])
        return self.error

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended although the call goes on."""
        return self.error is not None

    async def _renew(self, limiter: AsyncLimiter, rule: KeepAliveRule, numbers: asyncio.Lock) -> None:
        over = asyncio.create_task(self._is_over.wait())
        try:
            while not (await asyncio.wait([over], timeout=rule.wait()))[0]:
                renewal = asyncio.create_task(self._renew_once(limiter, rule, numbers))
                done, _ = await asyncio.wait([over, renewal], return_when=asyncio.FIRST_COMPLETED)
                if over in done:
                    renewal.cancel()
                    return
                renewal.result()
        except ExtendError as error:
            self.error = error
            _log.warning("a lease cannot be renewed and will run out: %s", error)
        finally:
            over.cancel()

    async def _renew_once(self, limiter: AsyncLimiter, rule: KeepAliveRule, numbers: asyncio.Lock) -> None:
        async with numbers:
            await limiter._client.run(rule.renew(), limiter._ask)  # pyright: ignore[reportPrivateUsage]
