"""Admission for synchronous programs."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Mapping
from types import TracebackType

from . import _exit, _names
from ._admission import Admission, Admitted, Unsettled, WaitQueues, settle_all
from ._extensions import Extended, KeepAliveRule
from ._lease import LeaseBase
from ._rules import Rule, Sleep
from ._wire import BATCH_MAX, Request
from .answers import Completed
from .client import Client
from .errors import Denial, ExtendError, Failure
from .work import Call, Extension, Job, Usage, Work

#: Seconds for which the end of a `with` block waits for the answer to its complete. After it the complete goes on in
#: the background.
EXIT_WAIT = 2.0

_log = logging.getLogger("earmark")


class Limiter:
    """Admits calls. Many threads may share it.

    Every attempt has its own lease. The same lease is retried while its outcome is unknown, and a denied lease is never
    used again.
    """

    def __init__(self, client: Client, *, complete_within: float = 60.0) -> None:
        """A limiter on the servers of a client. `complete_within` bounds the retries of a complete in seconds; after it
        the lease is left to expire."""
        self._client = _names.kind("client", client, Client)
        self._complete_within = _names.seconds("complete_within", complete_within)
        self._queues = WaitQueues()
        self._lock = threading.Lock()
        self._settler = _Settler(client, self._complete_within)
        self._admission = Admission(client.options.core, self._settler.put)
        self._settler.unsettled = self._admission.unsettled
        _exit.watch(self._admission.unsettled, client.options)
        weakref.finalize(self, _ended, self._settler).atexit = False

    def acquire(
        self, requirements: Mapping[str, int], *, job_id: str | None = None, timeout: float | None = None
    ) -> Lease:
        """Waits until all limits have room and returns the lease. An error that waiting cannot cure is raised at once;
        `AcquireTimeout` when the timeout passes."""
        return self._acquire(Job(requirements, job_id), timeout)

    def try_acquire(
        self, requirements: Mapping[str, int], *, job_id: str | None = None, timeout: float | None = None
    ) -> Lease | Denial:
        """Makes one attempt. A denial is an answer; only an unknown outcome is retried."""
        return self.attempt(Job(requirements, job_id), timeout=timeout)

    def call(
        self,
        attributes: Mapping[str, str],
        *,
        input_tokens_max: int,
        output_tokens_max: int,
        job_id: str | None = None,
        timeout: float | None = None,
    ) -> Lease:
        """Waits until a call is admitted by the policy of the namespace, and returns its lease."""
        return self._acquire(Call(attributes, input_tokens_max, output_tokens_max, job_id), timeout)

    def attempt(self, work: Work, *, timeout: float | None = None) -> Lease | Denial:
        """Makes one attempt to admit a job or a call."""
        deadline = self._client.options.deadline(timeout)
        result = self._run(self._admission.attempt(work, deadline))
        return Lease(self, result, work) if isinstance(result, Admitted) else result

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all completes in the background are done, and returns whether they were before the timeout."""
        return self._settler.flush(self._client.options.deadline(timeout))

    def close(self) -> None:
        """Waits for the completes in the background, and ends their thread."""
        self.flush()
        self._settler.stop()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def abandoned(self) -> int:
        """The number of leases that could not be completed and were left to expire."""
        return self._settler.abandoned

    def _acquire(self, work: Work, timeout: float | None) -> Lease:
        deadline = self._client.options.deadline(timeout)
        return Lease(self, self._run(self._admission.acquire(work, deadline)), work)

    def _run(self, rule: Rule[Admitted] | Rule[Admitted | Denial]) -> Admitted | Denial:
        self._settler.start()
        return self._client.run(rule, self._wait)

    def _wait(self, sleep: Sleep) -> None:
        event = threading.Event()
        with self._lock:
            self._queues.join(sleep.keys, event.set)
        try:
            event.wait(sleep.seconds)
        finally:
            with self._lock:
                self._queues.leave(sleep.keys, event.set)

    def _complete(self, lease: LeaseBase, request: Request[Completed], within: float) -> Completed:
        core = self._client.options.core
        unsettled = self._admission.unsettled
        try:
            completed = self._client.run(core.ask(request, core.env.now() + within))
        except Failure as failure:
            if within < self._complete_within and failure.may_have_happened:
                self._settler.put(lease.lease_id)
            else:
                unsettled.settled(lease.lease_id)
                self._settler.abandoned += 1
            raise
        except BaseException:
            self._settler.put(lease.lease_id)
            raise
        unsettled.settled(lease.lease_id)
        with self._lock:
            self._queues.release(lease.work.limits())
        return completed


def _ended(settler: _Settler) -> None:
    settler.stop()
    _exit.forget(settler.unsettled)


class Lease(LeaseBase):
    """An admitted lease. Use it in a `with` block."""

    def __init__(self, limiter: Limiter, admitted: Admitted | Denial, work: Work) -> None:
        assert isinstance(admitted, Admitted)
        super().__init__(limiter._admission, admitted, work)  # pyright: ignore[reportPrivateUsage]
        self._limiter = limiter
        #: Held while an extension is under way: the next one needs the next number.
        self._numbers = threading.Lock()
        self._is_over = threading.Event()

    def complete(
        self, actuals: Mapping[str, int] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the actual amounts. A limit without one counts as fully used. Statements group costs by `labels`: up to
        8 texts by name."""
        return self._settle(self._with_actuals(actuals, labels))

    def complete_call(
        self, usage: Usage | None = None, outcome: str = "done", *, labels: Mapping[str, str] | None = None
    ) -> Completed:
        """Reports the usage of a call. `done` without a usage, and `unknown`, settle its bound; `refused` releases
        everything."""
        return self._settle(self._with_usage(usage, outcome, labels))

    def release(self) -> Completed:
        """Frees everything, because no call was made."""
        return self._settle(self._unused())

    def extend(
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
        with self._numbers:
            return client.run(self._extensions.extend(extension, client.options.deadline(timeout)))

    def keep_alive(self, timeout: float) -> KeepAlive:
        """Renews the lease of a long call whenever a third of `timeout` has passed, the shortest timeout of its
        concurrency and credit limits in seconds. It stops with the lease."""
        client = self._limiter._client  # pyright: ignore[reportPrivateUsage]
        rule = self._extensions.keep_alive(timeout, self.reserved_at_unix_ms, self._admitted_at)
        weakref.finalize(self, self._is_over.set).atexit = False
        return KeepAlive(client, rule, self._numbers, self._is_over)

    def _settle(self, request: Request[Completed], within: float | None = None) -> Completed:
        limiter = self._limiter
        self._finish(request)
        self._is_over.set()
        within = limiter._complete_within if within is None else within  # pyright: ignore[reportPrivateUsage]
        return limiter._complete(self, request, within)  # pyright: ignore[reportPrivateUsage]

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            try:
                self._settle(self._unknown(), EXIT_WAIT)
            except Failure as failure:
                # The error of the block matters more.
                _log.warning("lease %s is not completed yet: %s", self.lease_id, failure)


class KeepAlive:
    """Renews a lease in a thread of its own."""

    def __init__(self, client: Client, rule: KeepAliveRule, numbers: threading.Lock, is_over: threading.Event) -> None:
        #: Why the lease cannot be renewed any more; None as long as it can. The call should stop then: others may take
        #: its capacity.
        self.error: ExtendError | None = None
        self._is_over = is_over
        self._thread = threading.Thread(
            target=self._renew, args=(client, rule, numbers), name="earmark keep-alive", daemon=True
        )
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended although the call goes on."""
        return self.error is not None

    def _renew(self, client: Client, rule: KeepAliveRule, numbers: threading.Lock) -> None:
        while not self._is_over.wait(rule.wait()):
            try:
                with numbers:
                    client.run(rule.renew(), lambda sleep: self._wait(sleep.seconds))
            except ExtendError as error:
                if not self._is_over.is_set():
                    self.error = error
                    _log.warning("a lease cannot be renewed and will run out: %s", error)
                return

    def _wait(self, seconds: float) -> None:
        self._is_over.wait(seconds)


class _Settler:
    """Completes leases in one background thread."""

    def __init__(self, client: Client, within: float) -> None:
        self.unsettled = Unsettled()
        self.abandoned = 0
        self._client = client
        self._within = within
        # Its `put` may be called by a finalizer at any moment. An event is set once all leases before it are done; None
        # ends the thread.
        self._waiting: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Starts the thread, also in a forked child. Never from a finalizer, which may hold locks of threads."""
        if self._thread is None or not self._thread.is_alive():
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._work, name="earmark settler", daemon=True)
                    self._thread.start()

    def put(self, lease_id: str) -> None:
        """Completes a lease in the background."""
        self._waiting.put(lease_id)

    def flush(self, deadline: float) -> bool:
        """Waits until all leases of earlier calls of `put` are done."""
        done = threading.Event()
        self._waiting.put(done)
        self.start()
        return done.wait(max(0.0, deadline - self._client.options.core.env.now()))

    def _work(self) -> None:
        while True:
            items = [self._waiting.get()]
            while len(items) < BATCH_MAX and not self._waiting.empty():
                items.append(self._waiting.get())
            self._settle([item for item in items if isinstance(item, str)])
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            if None in items:
                return

    def stop(self) -> None:
        """Ends the thread once all leases before are done. The next call starts another."""
        self._waiting.put(None)

    def _settle(self, ids: list[str]) -> None:
        core = self._client.options.core
        requests = self.unsettled.completes(ids)
        failed = self._client.run(settle_all(core, requests, core.env.now() + self._within))
        for lease_id in requests:
            self.unsettled.settled(lease_id)
        for lease_id, failure in failed.items():
            self.abandoned += 1
            _log.warning("lease %s could not be completed and will expire: %s", lease_id, failure)
