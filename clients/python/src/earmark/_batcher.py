"""Batches of requests in the asynchronous client. A batch leaves when a request is free: none waits for company."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from ._wire import BATCH_BYTES_MAX, BATCH_MAX, Request, batch
from .async_client import AsyncClient
from .errors import Busy, Failure, Invalid

#: Requests with batches in flight at once, for each kind of item.
IN_FLIGHT_MAX = 4
#: Items that wait for a batch. Beyond it callers back off and retry.
WAITING_MAX = 65_536


@dataclass(frozen=True)
class _Waiting:
    request: Request[Any]
    by: float
    answer: asyncio.Future[Any]


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
        self._senders = 0

    async def ask(self, request: Request[Any], by: float) -> Any:
        """Sends one item in a batch with other waiting items. The result is its answer or a `Failure`."""
        if len(self._waiting) >= WAITING_MAX:
            return Busy(f"{WAITING_MAX} requests wait to be sent already; retry later")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, by, answer))
        if self._senders < IN_FLIGHT_MAX:
            self._senders += 1
            # The task begins after the callers that are ready now, so that they share its first batch.
            task = asyncio.create_task(self._send_all())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _send_all(self) -> None:
        try:
            while items := self._next():
                await self._send(items)
        finally:
            self._senders -= 1

    async def _send(self, items: list[_Waiting]) -> None:
        """Sends one batch, and hands every caller its own answer."""
        # The request ends at the latest deadline: one caller in a hurry must not end the request of the others.
        by = max(item.by for item in items)
        answers: Any
        try:
            if len(items) == 1:
                answers = [await self._client.send(items[0].request, by)]
            else:
                answers = await self._client.send(batch([item.request for item in items], self._batch_path), by)
        except BaseException:
            # The event loop ends. The callers end with it, and their leases are settled elsewhere.
            for item in items:
                item.answer.cancel()
            raise
        if isinstance(answers, Invalid) and len(items) > 1:
            # One malformed item makes the server refuse the whole batch, and nothing was executed. The others must not
            # fail with it.
            middle = len(items) // 2
            await self._send(items[:middle])
            await self._send(items[middle:])
            return
        if isinstance(answers, Failure):
            answers = [answers] * len(items)
        for item, answer in zip(items, answers, strict=True):
            if not item.answer.done():
                item.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """The waiting items, as many as fit into one request. Items of callers that are gone are not sent: they have
        given up their leases."""
        items: list[_Waiting] = []
        length = 0
        while self._waiting and len(items) < BATCH_MAX:
            first = self._waiting[0]
            length += len(first.request.body) + 1
            if items and length > BATCH_BYTES_MAX:
                break
            self._waiting.popleft()
            if not first.answer.done():
                items.append(first)
        return items
