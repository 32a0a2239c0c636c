"""Completes leases in the background of an event loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ._admission import Admission, WaitQueues
from ._batcher import Sender
from ._rules import Core, Rule, Send, Sleep
from ._wire import Request
from .answers import Completed
from .errors import Failure

#: Concurrent completes of dropped leases. Leases beyond it are left to the exit of the interpreter.
SETTLING_MAX = 65_536

_log = logging.getLogger("earmark")


class AsyncSettler:
    """The completes of one limiter."""

    def __init__(self, core: Core, sender: Sender, within: float) -> None:
        self.admission = Admission(core, self.settle_later)
        self.queues = WaitQueues()
        self.sender = sender
        #: The number of leases that could not be completed and were left to expire.
        self.abandoned = 0
        #: The event loop of the limiter, once it has one.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._within = within
        self._settling: set[_Settlement] = set()
        #: Ready once no complete is under way. None unless somebody waits for that.
        self._idle: asyncio.Future[None] | None = None

    def settle(self, lease_id: str, request: Request[Completed], limits: tuple[str, ...]) -> asyncio.Future[Completed]:
        """Completes a lease, also if the caller does not wait for the answer."""
        deadline = self.admission.core.env.now() + self._within
        answer: asyncio.Future[Completed] = asyncio.get_running_loop().create_future()
        settlement = _Settlement(self, lease_id, limits, request, deadline, answer)
        self._settling.add(settlement)
        self.sender.put(request, deadline, settlement)
        return answer

    def settle_later(self, lease_id: str) -> None:
        """Completes a lease in the background. A finalizer may call it at any moment, in any thread."""
        loop = self.loop
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
            for request in self.admission.unsettled.completes([lease_id]).values():
                self.settle(lease_id, request, ())

    async def flush(self, deadline: float) -> bool:
        """Waits until no complete is under way, and returns whether that was before the deadline."""
        await asyncio.sleep(0)  # Leases that other threads dropped.
        while self._settling:
            left = deadline - self.admission.core.env.now()
            if left <= 0:
                return False
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=left)
        return True

    def ended(self, settlement: _Settlement) -> None:
        """A complete has ended, in whatever way."""
        self._settling.discard(settlement)
        if not self._settling and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None


class _Settlement:
    """The complete of one lease. It receives the answer to its request. Only without one it runs the rule of retries,
    and then without a task of its own: it receives the answer to each further request and starts the next one."""

    __slots__ = ("_deadline", "_lease_id", "_limits", "_request", "_rule", "_settler", "answer")

    def __init__(
        self,
        settler: AsyncSettler,
        lease_id: str,
        limits: tuple[str, ...],
        request: Request[Completed],
        deadline: float,
        answer: asyncio.Future[Completed],
    ) -> None:
        self._settler = settler
        self._lease_id = lease_id
        self._limits = limits
        self._request = request
        self._deadline = deadline
        self._rule: Rule[Completed] | None = None
        self.answer = answer

    def done(self) -> bool:
        """Always false: the complete is sent even if its caller is gone."""
        return False

    def set_result(self, result: Any) -> None:
        """Takes the answer to the last request, or its failure."""
        if not isinstance(result, Failure):
            return self._succeed(result)
        if self._rule is None:
            self._rule = self._settler.admission.core.ask(self._request, self._deadline, result)
            self._go_on(None)
        else:
            self._go_on(result)

    def cancel(self) -> None:
        """The event loop ends. The lease is left to the exit of the interpreter."""
        self._settler.ended(self)
        self.answer.cancel()

    def _go_on(self, result: Failure | None) -> None:
        assert self._rule is not None
        try:
            effect = self._rule.send(result)
        except Failure as failure:
            return self._fail(failure)
        if isinstance(effect, Send):
            self._settler.sender.put(effect.request, effect.by, self)
        else:
            assert isinstance(effect, Sleep)
            asyncio.get_running_loop().call_later(effect.seconds, self._go_on, None)

    def _succeed(self, completed: Completed) -> None:
        settler = self._settler
        settler.admission.unsettled.settled(self._lease_id)
        settler.queues.release(self._limits)
        settler.ended(self)
        if not self.answer.done():
            self.answer.set_result(completed)

    def _fail(self, failure: Failure) -> None:
        settler = self._settler
        settler.abandoned += 1
        settler.admission.unsettled.settled(self._lease_id)
        settler.ended(self)
        _log.warning("lease %s could not be completed and will expire: %s", self._lease_id, failure)
        if not self.answer.done():
            self.answer.set_exception(failure)
            # Nobody may be waiting for it. Then asyncio must not complain.
            self.answer.exception()
