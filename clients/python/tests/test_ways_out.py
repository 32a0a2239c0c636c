"""A lease is settled on every way out: exceptions, cancellation, closed generators, dropped objects, exits."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from proxy import Proxy

from earmark import AsyncClient, AsyncLimiter, Client, InputError, Limiter
from earmark._batcher import IN_FLIGHT_MAX
from earmark.errors import DeadlinePassed, LeaseClosed
from earmark.pytest_plugin import EarmarkServer

Reserved = Callable[[str], int]


def test_an_exception_frees_the_slot(earmark_client: Client, slots: str, reserved: Reserved) -> None:
    with Limiter(earmark_client) as limiter, pytest.raises(KeyboardInterrupt):
        with limiter.acquire({slots: 1}):
            assert reserved(slots) == 1
            raise KeyboardInterrupt
    assert reserved(slots) == 0


def test_a_lease_is_completed_once(earmark_client: Client, tokens: str, reserved: Reserved) -> None:
    with Limiter(earmark_client) as limiter:
        with limiter.acquire({tokens: 60}) as lease:
            with pytest.raises(InputError, match="actuals: found other, allowed are the limits of the lease"):
                lease.complete({"other": 1})
            assert lease.complete({tokens: 10}).reconciled
            with pytest.raises(LeaseClosed):
                lease.release()
    assert reserved(tokens) == 10


def test_a_release_frees_everything(earmark_client: Client, tokens: str, reserved: Reserved) -> None:
    with Limiter(earmark_client) as limiter:
        limiter.acquire({tokens: 60}).release()
    assert reserved(tokens) == 0


def test_a_closed_generator_frees_the_slot(earmark_client: Client, slots: str, reserved: Reserved) -> None:
    def chunks(limiter: Limiter) -> Iterator[int]:
        with limiter.acquire({slots: 1}):
            yield 1
            yield 2

    with Limiter(earmark_client) as limiter:
        stream = chunks(limiter)
        next(stream)
        assert reserved(slots) == 1
        del stream
        assert reserved(slots) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_lease_is_settled_in_the_background(earmark_client: Client, slots: str, reserved: Reserved) -> None:
    with Limiter(earmark_client) as limiter:
        lease = limiter.acquire({slots: 1})
        del lease
        gc.collect()
        assert limiter.flush(5)
        assert reserved(slots) == 0


def test_an_interrupted_acquire_gives_back_what_it_may_hold(proxy: Proxy, tokens: str, reserved: Reserved) -> None:
    class Interrupting(Client):
        def send(self, request, by):  # type: ignore[no-untyped-def]
            super().send(request, by)
            if request.path == "/v1/reserve":
                raise KeyboardInterrupt
            return super().send(request, by)

    with Interrupting(proxy.url) as client, Limiter(client) as limiter:
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire({tokens: 60})
        assert limiter.flush(5)
    assert reserved(tokens) == 0


def test_the_end_of_a_block_does_not_wait_for_a_server_that_is_gone(proxy: Proxy, slots: str) -> None:
    with Client(proxy.url, attempt_timeout=0.2) as client:
        limiter = Limiter(client, complete_within=3.0)
        with limiter.acquire({slots: 1}) as lease:
            proxy.always = "lose_request"
        assert not lease.is_open
        proxy.always = None
        assert limiter.flush(5)
        assert limiter.abandoned == 0


def test_a_cancelled_task_frees_the_slot(earmark_server: EarmarkServer, slots: str, reserved: Reserved) -> None:
    async def call(limiter: AsyncLimiter, inside: asyncio.Event) -> None:
        async with limiter.acquire({slots: 1}):
            inside.set()
            await asyncio.sleep(60)

    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            inside = asyncio.Event()
            task = asyncio.create_task(call(limiter, inside))
            # Not until the server has reserved the slot: the task may then still wait for the answer.
            await inside.wait()
            assert reserved(slots) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert reserved(slots) == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_acquires_gives_back_what_it_may_hold(
    proxy: Proxy, tokens: str, reserved: Reserved
) -> None:
    async def main() -> None:
        proxy.faults[1] = "late_answer"
        async with AsyncClient(proxy.url) as client, AsyncLimiter(client) as limiter:
            task = asyncio.create_task(acquire(limiter))
            while reserved(tokens) == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert reserved(tokens) == 0

    async def acquire(limiter: AsyncLimiter) -> None:
        await limiter.acquire({tokens: 60})

    asyncio.run(main())


def test_a_cancelled_complete_goes_on(proxy: Proxy, tokens: str, reserved: Reserved) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncLimiter(client) as limiter:
            lease = await limiter.acquire({tokens: 60})
            proxy.faults[proxy.count + 1] = "lose_request"
            task = asyncio.create_task(lease.complete({tokens: 10}))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert reserved(tokens) == 10

    asyncio.run(main())


def test_a_complete_without_an_answer_is_given_up_in_time(proxy: Proxy, tokens: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url) as client:
            limiter = AsyncLimiter(client, complete_within=0.2)
            leases = [await limiter.acquire({tokens: 6}) for _ in range(2)]
            proxy.always = "lose_request"
            with pytest.raises(DeadlinePassed, match="gave no answer"):
                await leases[0].complete()
            async with leases[1]:
                pass
            assert await limiter.flush(5) and limiter.abandoned == 2

    asyncio.run(main())


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("turns", [1, 2, 200])
def test_a_program_that_cancels_all_tasks_can_still_flush(
    batching: bool, turns: int, proxy: Proxy, tokens: str, reserved: Reserved
) -> None:
    """A complete whose request had not left yet was never sent and never given up."""

    async def main() -> None:
        async with AsyncClient(proxy.url) as client:
            limiter = AsyncLimiter(client, batching=batching)
            # As often as batches may be in flight, and once more.
            for _ in range(IN_FLIGHT_MAX + 1):
                proxy.always = None
                lease = await limiter.acquire({tokens: 6})
                proxy.always = "late_answer"
                complete = asyncio.create_task(lease.complete({tokens: 1}))
                for _ in range(turns):
                    await asyncio.sleep(0.0005 if turns > 2 else 0)
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.wait(others)
                assert complete.cancelled()
                assert await limiter.flush(0.5)
            # They are left to the exit of the interpreter. That of the tests need not wait for them.
            limiter._admission.unsettled.clear()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_lease_is_not_kept_alive(earmark_server: EarmarkServer, slots: str, reserved: Reserved) -> None:
    """The renewals went on until the server refused them."""

    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            for in_thread in (False, True):
                leases = [await limiter.acquire({slots: 1})]
                leases[0].keep_alive(60)
                if in_thread:
                    await asyncio.to_thread(leases.clear)
                leases.clear()
                gc.collect()
                await asyncio.sleep(0.05)
                assert await limiter.flush(5) and reserved(slots) == 0
                assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_closed_async_generator_frees_the_slot(earmark_server: EarmarkServer, slots: str, reserved: Reserved) -> None:
    async def chunks(limiter: AsyncLimiter) -> AsyncIterator[int]:
        async with limiter.acquire({slots: 1}):
            yield 1
            yield 2

    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            stream = chunks(limiter)
            await anext(stream)
            assert reserved(slots) == 1
            await stream.aclose()  # type: ignore[attr-defined]
            assert reserved(slots) == 0

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_async_lease_is_settled_also_from_another_thread(
    earmark_server: EarmarkServer, slots: str, reserved: Reserved
) -> None:
    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            leases = [await limiter.acquire({slots: 1})]
            await asyncio.to_thread(leases.clear)
            gc.collect()
            await asyncio.sleep(0.01)
            assert await limiter.flush(5)
            assert reserved(slots) == 0

    asyncio.run(main())


EXITS = {
    "a sync lease at a plain end": """
        limiter = Limiter(Client(URL))
        lease = limiter.acquire({KEY: 1})
    """,
    "a sync lease at sys.exit in a function": """
        def main():
            limiter = Limiter(Client(URL))
            lease = limiter.acquire({KEY: 1})
            print("held", flush=True)
            sys.exit(3)
        main()
    """,
    "a sync lease at an error": """
        limiter = Limiter(Client(URL))
        lease = limiter.acquire({KEY: 1})
        1 / 0
    """,
    "an async lease when its loop is gone": """
        async def main():
            global lease
            lease = await AsyncLimiter(AsyncClient(URL)).acquire({KEY: 1})
        asyncio.run(main())
    """,
    "a task that the end of its loop cancels": """
        async def call(limiter, held):
            async with limiter.acquire({KEY: 1}):
                held.set()
                await asyncio.sleep(60)
        async def main():
            held = asyncio.Event()
            task = asyncio.create_task(call(AsyncLimiter(AsyncClient(URL)), held))
            await held.wait()
        asyncio.run(main())
    """,
    "a thread that is still calling": """
        limiter = Limiter(Client(URL))
        held = threading.Event()
        def call():
            with limiter.acquire({KEY: 1}):
                held.set()
                time.sleep(60)
        threading.Thread(target=call, daemon=True).start()
        held.wait()
    """,
}


@pytest.mark.parametrize("program", EXITS.values(), ids=EXITS.keys())
def test_the_exit_of_the_interpreter_settles(
    program: str, earmark_server: EarmarkServer, proxy: Proxy, slots: str, reserved: Reserved
) -> None:
    head = "import asyncio, sys, threading, time\nfrom earmark import *\n"
    head += f"URL, KEY = {proxy.url!r}, {slots!r}\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", head + textwrap.dedent(program)], capture_output=True, timeout=20
    )
    assert [seen.kind for seen in proxy.trace.seen][:1] == ["reserve"], done.stderr.decode()
    assert reserved(slots) == 0, done.stderr.decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_settle_the_leases_of_its_parent(proxy: Proxy, slots: str, reserved: Reserved) -> None:
    program = f"""
    import os
    from earmark import *
    limiter = Limiter(Client({proxy.url!r}))
    lease = limiter.acquire({{{slots!r}: 1}})
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(Client({proxy.url!r}).usage({slots!r}).reserved)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, timeout=20)
    assert done.stdout == b"1\n", done.stderr.decode()
    assert reserved(slots) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(earmark_server: EarmarkServer, tokens: str) -> None:
    program = f"""
    import os
    from earmark import *
    client = Client({earmark_server.url!r})
    limiter = Limiter(client)
    client.usage({tokens!r})
    child = os.fork()
    for _ in range(100):
        with limiter.acquire({{{tokens!r}: 1}}) as lease:
            assert client.lease(lease.lease_id).state == "live"
            assert lease.release().reconciled
    if child:
        print(os.waitpid(child, 0)[1])
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.stdout == b"0\n", done.stderr.decode()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_limiters_and_dropped_leases_leave_no_threads(earmark_client: Client, slots: str) -> None:
    before = threading.active_count()
    for _ in range(3):
        limiter = Limiter(earmark_client)
        lease = limiter.acquire({slots: 1})
        lease.keep_alive(60)
        del lease
        limiter.flush()
        del limiter
    gc.collect()
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
    with Limiter(earmark_client) as limiter:
        limiter.acquire({slots: 2}).complete()
        limiter.close()
        limiter.acquire({slots: 2}).complete()


def test_a_release_wakes_a_caller_that_waits(earmark_client: Client, slots: str) -> None:
    admitted = threading.Event()

    def wait() -> None:
        with limiter.acquire({slots: 1}, timeout=20):
            admitted.set()

    with Limiter(earmark_client) as limiter:
        first, second = limiter.acquire({slots: 1}), limiter.acquire({slots: 1})
        thread = threading.Thread(target=wait)
        thread.start()
        assert not admitted.wait(0.2)
        first.complete()
        assert admitted.wait(5)
        thread.join()
        second.complete()
