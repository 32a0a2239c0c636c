"""Measures the client: `EARMARK_BIN=target/release/earmark PYTHONPATH=src python bench.py`.

It prints calls a second with and without Earmark, reserves a second with and without batches, and the processor time of
this process for one call.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx

from earmark import AsyncClient, AsyncLimiter, Client, Limiter
from earmark.pytest_plugin import EarmarkServer

TASKS = 1_000
#: Calls of each task.
ROUNDS = 3
#: Comparisons of one kind.
REPEATS = 5
Call = Callable[[], Awaitable[None]]
NEEDS = {"rpm": 1, "tpm": 10}


class Rate(NamedTuple):
    """The result of one measurement."""

    calls_per_second: float
    #: Of this process, for each call.
    processor_us: float


async def calls(call: Call, rounds: int = ROUNDS) -> Rate:
    """All tasks at once, each with several calls."""

    async def task() -> None:
        for _ in range(rounds):
            await call()

    start, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    count = TASKS * rounds
    return Rate(count / (time.perf_counter() - start), (time.process_time() - processor) / count * 1e6)


async def with_upstream(url: str) -> None:
    """Calls to a provider over HTTP, with and without Earmark, once through one `httpx.AsyncClient` and once on a
    connection for each task: the pool of the library takes a time that grows with its connections."""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", UPSTREAM, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    address = (await server.stdout.readline()).decode().strip()
    async with AsyncClient(url) as client, AsyncLimiter(client) as limiter:
        for name, count in (("one pool", 1), ("alone", TASKS)):
            limits = httpx.Limits(max_connections=TASKS // count, max_keepalive_connections=TASKS // count)
            https = [httpx.AsyncClient(limits=limits, timeout=60, trust_env=False, verify=False) for _ in range(count)]
            free = [http for http in https for _ in range(TASKS // count)]

            async def plain() -> None:
                http = free.pop()
                await http.get(address)
                free.append(http)

            async def limited() -> None:
                async with limiter.acquire(NEEDS) as lease:
                    await plain()
                    await lease.complete({"tpm": 5})

            await calls(plain, 1)
            await compare(name, plain, limited)
            for http in https:
                await http.aclose()
    server.terminate()
    await server.wait()


async def compare(name: str, plain: Call, limited: Call) -> None:
    """Calls a second with and without Earmark, in turns: the median of their ratios."""
    ratios: list[float] = []
    more: list[float] = []
    for _ in range(REPEATS):
        without, with_earmark = await calls(plain), await calls(limited)
        ratios.append(with_earmark.calls_per_second / without.calls_per_second)
        more.append(with_earmark.processor_us - without.processor_us)
        print(
            f"{name:>10}: {with_earmark.calls_per_second:6.0f} provider calls a second with Earmark "
            f"({with_earmark.processor_us:.0f} us), {without.calls_per_second:6.0f} without "
            f"({without.processor_us:.0f} us)",
            flush=True,
        )
    print(
        f"{name:>10}: {100 * (1 - statistics.median(ratios)):.0f}% fewer calls a second, {statistics.median(more):.0f} us "
        f"more processor time for each (medians of {REPEATS})"
    )


#: The double of a provider. It answers after 20 ms.
UPSTREAM = """
import asyncio
async def serve(reader, writer):
    try:
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    print("http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def batches(url: str) -> None:
    """Calls a second of the limiter alone, with and without batches."""
    for batching in (True, False):
        async with AsyncClient(url) as client, AsyncLimiter(client, batching=batching) as limiter:

            async def call(limiter: AsyncLimiter = limiter) -> None:
                async with limiter.acquire(NEEDS) as lease:
                    await lease.complete({"tpm": 5})

            await calls(call, 1)
            rate, spent = await calls(call)
            name = "batched" if batching else "alone"
            print(f"{name:>10}: {rate:8.0f} calls a second, {spent:.0f} us of processor time each")


def threads(url: str) -> None:
    """The processor time of one call of the synchronous limiter."""
    with Client(url) as client, Limiter(client) as limiter:

        def call() -> None:
            with limiter.acquire(NEEDS) as lease:
                lease.complete({"tpm": 5})

        for _ in range(200):
            call()
        start, count = time.process_time(), 2_000
        for _ in range(count):
            call()
        print(f"{'sync':>10}: {(time.process_time() - start) / count * 1e6:.0f} us of processor time for a call")
        with cProfile.Profile() as profile:
            for _ in range(500):
                call()
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)


def main() -> None:
    server = EarmarkServer()
    with Client(server.url) as client:
        for key in NEEDS:
            client.put_limit({"key": key, "kind": "rolling", "capacity": 10**15, "window_seconds": 1})
    try:
        threads(server.url)
        asyncio.run(batches(server.url))
        asyncio.run(with_upstream(server.url))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
