"""Batches of requests in the asynchronous client.

An item leaves at once if no batch is under way and the program is idle. Otherwise it waits with others, because a
request of the HTTP library takes as much processor time as many items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, Protocol

from ._wire import BATCH_BYTES_MAX, BATCH_MAX, Request, batch
from .async_client import AsyncClient
from .errors import Busy, Failure, Invalid, Unexpected

#: Requests with batches in flight at once, for each kind of item.
IN_FLIGHT_MAX = 4
#: Items that wait for a batch. Beyond it callers back off and retry.
WAITING_MAX = 65_536
#: The longest wait for other items in seconds: for the end of an earlier batch, since a server may be far away or hang,
#: and for an idle moment of the program. With 25 ms a busy program spends a few percent of its core on requests.
COMPANY_WAIT = 0.025
#: The shortest turn of the event loop in which the program is busy, in seconds.
BUSY_TURN = 0.001


class Receiver(Protocol):
    """Takes the answer to an item. A future is one."""

    def done(self) -> bool:
        """Whether nobody waits for the answer any more. Then the item is not sent."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Takes the answer, or the `Failure`."""
        ...

    def cancel(self) -> Any:
        """The event loop ends, and there will be no answer."""
        ...


async def _answer(client: AsyncClient, request: Request[Any], by: float) -> Any:
    """The answer to a request, or its `Failure`. Callers wait for one of them, so that errors of the HTTP library and
    of readers become a `Failure` too."""
    try:
        return await client.send(request, by)
    except Exception as error:
        failure = Unexpected(f"the request failed, and its outcome is unknown: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


class Sender:
    """Sends the requests of one limiter once each, in batches where the server takes batches."""

    def __init__(self, client: AsyncClient, is_batching: bool) -> None:
        self._client = client
        self._is_batching = is_batching
        self._batchers: dict[str, Batcher] = {}
        #: The requests that travel alone. The event loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: Request[Any], by: float) -> Awaitable[Any]:
        """The answer to a request, or its `Failure`."""
        loop = self._client.loop()
        if request.batch_path is None or not self._is_batching:
            # In the task of the caller: its cancellation ends the request, before the lease is given back.
            return _answer(self._client, request, by)
        answer: asyncio.Future[Any] = loop.create_future()
        self.put(request, by, answer)
        return answer

    def put(self, request: Request[Any], by: float, receiver: Receiver) -> None:
        """Sends a request. The receiver gets its answer or its `Failure`."""
        path = request.batch_path
        if path is None or not self._is_batching:
            task = asyncio.create_task(self._send(request, by, receiver))
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._ended(task, receiver))
            return
        batcher = self._batchers.get(path)
        if batcher is None:
            batcher = self._batchers[path] = Batcher(self._client, path)
        batcher.put(request, by, receiver)

    async def _send(self, request: Request[Any], by: float, receiver: Receiver) -> None:
        if receiver.done():
            return
        try:
            answer = await _answer(self._client, request, by)
            if not receiver.done():
                receiver.set_result(answer)
        except BaseException:
            receiver.cancel()
            raise

    def _ended(self, task: asyncio.Task[None], receiver: Receiver) -> None:
        self._tasks.discard(task)
        # It may have been cancelled before its first step.
        if task.cancelled():
            receiver.cancel()


#: A request, the moment by which it must have an answer, and the receiver. Not a class: there are many of them.
_Waiting = tuple[Request[Any], float, Receiver]


class Batcher:
    """The queue of one kind of item, such as reserves."""

    def __init__(self, client: AsyncClient, batch_path: str) -> None:
        self._client = client
        self._batch_path = batch_path
        self._waiting: deque[_Waiting] = deque()
        #: The event loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        #: The tasks that look at the queue again. A task that has seen it empty is in `_tasks` for another turn of the
        #: event loop, and an item that comes in that turn needs a task of its own.
        self._senders: set[asyncio.Task[None] | None] = set()
        #: When the queue got its first item.
        self._since = 0.0
        #: Ends the wait of the items in the queue.
        self._timer: asyncio.TimerHandle | None = None

    def put(self, request: Request[Any], by: float, receiver: Receiver) -> None:
        """Sends one item in a batch with other waiting items. The receiver gets its answer or a `Failure`."""
        waiting = len(self._waiting)
        if waiting >= WAITING_MAX:
            receiver.set_result(Busy(f"{WAITING_MAX} requests wait to be sent already; retry later"))
            return
        if waiting == 0:
            self._since = asyncio.get_running_loop().time()
        self._waiting.append((request, by, receiver))
        if not self._senders or waiting + 1 >= BATCH_MAX:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COMPANY_WAIT, self._waited)

    def _start(self) -> None:
        if len(self._senders) < IN_FLIGHT_MAX:
            # The task begins after the callers that are ready now, so that they share its first batch.
            task = asyncio.create_task(self._send_all())
            self._tasks.add(task)
            self._senders.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task in self._senders:
            # It did not come to its end: the event loop ends, or the program cancelled all tasks, this one perhaps
            # before its first step.
            self._senders.discard(task)
            while self._waiting:
                self._waiting.popleft()[2].cancel()

    def _waited(self) -> None:
        self._timer = None
        if self._waiting:
            self._start()

    async def _send_all(self) -> None:
        while self._waiting:
            await self._wait_while_busy()
            if items := self._next():
                await self._send(items)
        self._senders.discard(asyncio.current_task())

    async def _wait_while_busy(self) -> None:
        """Waits for more items as long as the program computes between them: the answer would not be read sooner."""
        loop = asyncio.get_running_loop()
        turn, now = self._since, loop.time()
        while BUSY_TURN < now - turn and now - self._since < COMPANY_WAIT and len(self._waiting) < BATCH_MAX:
            turn = now
            await asyncio.sleep(0)
            now = loop.time()

    async def _send(self, items: list[_Waiting]) -> None:
        """Sends one batch, and hands every caller its own answer."""
        # The batches without an answer, the next one at the end.
        batches = [items]
        try:
            while batches:
                items = batches[-1]
                answers = await self._answers(items)
                if isinstance(answers, Invalid) and len(items) > 1:
                    # One malformed item makes the server refuse the whole batch, and nothing was executed. The others
                    # must not fail with it.
                    middle = len(items) // 2
                    batches[-1:] = [items[middle:], items[:middle]]
                    continue
                if isinstance(answers, Failure):
                    answers = [answers] * len(items)
                for (_, _, receiver), answer in zip(items, answers, strict=True):
                    if not receiver.done():
                        receiver.set_result(answer)
                batches.pop()
        except BaseException:
            # The event loop ends. The callers end with it, and their leases are settled elsewhere.
            for items in batches:
                for _, _, receiver in items:
                    receiver.cancel()
            raise

    async def _answers(self, items: list[_Waiting]) -> Any:
        """The answers to one batch, or its failure."""
        # The request ends at the latest deadline: one caller in a hurry must not end the request of the others.
        by = max([by for _, by, _ in items])
        if len(items) == 1:
            return [await _answer(self._client, items[0][0], by)]
        return await _answer(self._client, batch([request for request, _, _ in items], self._batch_path), by)

    def _next(self) -> list[_Waiting]:
        """The waiting items, as many as fit into one request. Items of callers that are gone are not sent: they have
        given up their leases."""
        items: list[_Waiting] = []
        length = 0
        while self._waiting and len(items) < BATCH_MAX:
            first = self._waiting[0]
            length += len(first[0].body) + 1
            if items and length > BATCH_BYTES_MAX:
                break
            self._waiting.popleft()
            if not first[2].done():
                items.append(first)
        return items
