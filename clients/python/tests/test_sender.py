"""Every request of a limiter ends with an answer, a failure or a cancellation, whatever its sending ends with."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from proxy import Proxy

from earmark import AsyncClient, AsyncLimiter
from earmark._batcher import COMPANY_WAIT, IN_FLIGHT_MAX, Batcher, Sender
from earmark._http import httpx
from earmark._wire import Request
from earmark.errors import AcquireTimeout, DeadlinePassed, Invalid
from earmark.pytest_plugin import EarmarkServer

Reserved = Callable[[str], int]
BATCH = "/v1/reserve/batch"
REQUEST: Request[Any] = Request("POST", "/v1/reserve", b"{}", lambda answer: answer, batch_path=BATCH)


class Broken(AsyncClient):
    """A client that raises an error for paths that begin with `broken`."""

    broken = ""
    error = RecursionError("maximum recursion depth exceeded")

    async def send(self, request: Request[Any], by: float) -> Any:
        if self.broken and request.path.startswith(self.broken):
            await asyncio.sleep(0)
            raise self.error
        return await super().send(request, by)


@pytest.mark.parametrize("batching", [True, False])
def test_an_error_without_a_failure_of_its_own_ends_the_call(
    batching: bool, earmark_server: EarmarkServer, tokens: str, reserved: Reserved
) -> None:
    """A complete that was sent alone waited for ever, and one in a batch was cancelled."""

    async def main() -> None:
        client = Broken(earmark_server.url)
        async with client:
            limiter = AsyncLimiter(client, batching=batching, complete_within=0.3)
            lease = await limiter.acquire({tokens: 6})
            client.broken = "/v1/complete"
            with pytest.raises(DeadlinePassed, match="its outcome is unknown: RecursionError: maximum"):
                await asyncio.wait_for(asyncio.shield(lease.complete({tokens: 1})), 5)
            assert await limiter.flush(5) and limiter.abandoned == 1
            client.broken = "/v1/reserve"
            with pytest.raises(AcquireTimeout, match="RecursionError") as caught:
                await asyncio.wait_for(limiter.try_acquire({tokens: 6}, timeout=0.3), 5)
            assert caught.value.failure is not None and caught.value.failure.__cause__ is client.error
            assert await limiter.flush(5)
        assert reserved(tokens) == 6

    asyncio.run(main())


class Ended(BaseException):
    """Ends a task like an interrupt, which would also end the event loop."""


@pytest.mark.parametrize("batching", [True, False])
def test_an_interrupt_ends_the_requests_in_flight_and_those_that_wait(batching: bool) -> None:
    """With all batches in flight no timer looks at the queue again. Its items waited for ever."""
    interrupt = asyncio.Event()

    class Interrupted(AsyncClient):
        async def send(self, request: Request[Any], by: float) -> Any:
            await interrupt.wait()
            raise Ended

    async def main() -> None:
        sender = Sender(Interrupted("http://127.0.0.1:1"), batching)
        answers: list[asyncio.Future[Any]] = []
        for _ in range(IN_FLIGHT_MAX + 1):
            answers.append(asyncio.get_running_loop().create_future())
            sender.put(REQUEST, math.inf, answers[-1])
            await asyncio.sleep(COMPANY_WAIT * 2)
        interrupt.set()
        await asyncio.wait(answers, timeout=2)
        assert all(answer.cancelled() for answer in answers)

    asyncio.run(main())


def test_an_error_of_the_close_of_a_connection_does_not_hide_a_cancellation(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error took the place of the cancellation, so that the cancelled task could go on."""
    close = httpx.AsyncHTTPTransport.aclose

    async def failing(transport: httpx.AsyncHTTPTransport) -> None:
        await close(transport)
        raise OSError("the connection is gone")

    async def main() -> None:
        proxy.always = "late_answer"
        client = AsyncClient(proxy.url)
        task = asyncio.create_task(client.whoami())
        while proxy.count == 0:
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(httpx.AsyncHTTPTransport, "aclose", failing)
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        await client.close()

    asyncio.run(main())


def test_a_cancelled_reserve_that_travels_alone_ends_before_its_lease_is_given_back() -> None:
    """The reserve went on in a task of its own. It could reach the server after the complete, and then held its amounts
    until the timeout of the lease."""
    events: list[str] = []

    class Hanging(AsyncClient):
        async def send(self, request: Request[Any], by: float) -> Any:
            events.append(f"{request.path} sent")
            try:
                await asyncio.sleep(0.2)
                return Invalid("the server of this test refuses everything")
            finally:
                events.append(f"{request.path} ended")

    async def acquire(limiter: AsyncLimiter) -> None:
        await limiter.acquire({"tokens": 1})

    async def main(turns: int) -> None:
        limiter = AsyncLimiter(Hanging("http://127.0.0.1:1"), batching=False)
        task = asyncio.create_task(acquire(limiter))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and await limiter.flush(5)

    for turns in (1, 2, 5):
        events.clear()
        asyncio.run(main(turns))
        path = "/v1/complete"
        assert events == ["/v1/reserve sent", "/v1/reserve ended", f"{path} sent", f"{path} ended"], turns


@pytest.mark.parametrize("batching", [True, False])
def test_a_request_whose_receiver_is_done_is_not_sent(batching: bool) -> None:
    sent: list[str] = []

    class Noting(AsyncClient):
        async def send(self, request: Request[Any], by: float) -> Any:
            sent.append(request.path)

    async def main() -> None:
        sender = Sender(Noting("http://127.0.0.1:1"), batching)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sender.put(REQUEST, math.inf, answer)
        answer.cancel()
        await asyncio.sleep(COMPANY_WAIT * 2)
        assert sent == []

    asyncio.run(main())


@pytest.mark.parametrize("batches", [2, 3, 4])
def test_a_cancelled_part_of_a_split_batch_ends_all_its_items(batches: int) -> None:
    """The items of the later parts, which were not sent any more, waited for ever."""

    class Refusing(AsyncClient):
        sent = 0

        async def send(self, request: Request[Any], by: float) -> Any:
            self.sent += 1
            if self.sent == batches:
                await asyncio.sleep(60)
            return Invalid("one of the items is malformed")

    async def main() -> None:
        client = Refusing("http://127.0.0.1:1")
        batcher = Batcher(client, BATCH)
        answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(8)]
        for answer in answers:
            batcher.put(REQUEST, math.inf, answer)
        while client.sent < batches:
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait(answers, timeout=5)
        assert all(answer.cancelled() for answer in answers)

    asyncio.run(main())
