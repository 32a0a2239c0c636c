"""Measures the client: `EARMARK_BIN=target/release/earmark PYTHONPATH=src python bench.py [PART...]`.

The parts are `threads` (the processor time of a call of the synchronous limiter), `batches` (calls a second with and
without batches), and `alone`, `pool` and `openai`: calls a second to a double of a provider, with and without Earmark,
through an `httpx.AsyncClient` for each task, through one for all tasks, and through the official SDK.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx

from earmark import AsyncClient, AsyncLimiter, Client, Limiter
from earmark.pytest_plugin import EarmarkServer

TASKS = 1_000
#: Calls of each task in one measurement.
ROUNDS = 5
#: Comparisons of one kind.
REPEATS = 7
Call = Callable[[], Awaitable[object]]
NEEDS = {"rpm": 1, "tpm": 10}
KINDS = ("alone", "pool", "openai")


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


async def with_upstream(kind: str, earmark: EarmarkServer) -> None:
    """Calls to a double of a provider, with and without Earmark."""
    double = await asyncio.create_subprocess_exec(sys.executable, "-c", UPSTREAM, stdout=asyncio.subprocess.PIPE)
    assert double.stdout is not None
    address = (await double.stdout.readline()).decode().strip()
    processes = {"server": earmark.process.pid, "double": double.pid}
    async with AsyncClient(earmark.url) as client, AsyncLimiter(client) as limiter:
        if kind == "openai":
            await with_sdk(address, limiter, processes)
        else:
            await with_httpx(kind, address, limiter, processes)
    double.terminate()
    await double.wait()


async def with_httpx(kind: str, address: str, limiter: AsyncLimiter, processes: dict[str, int]) -> None:
    """One pool has a cost of its own: the pool of the library takes a time that grows with its connections."""
    count = 1 if kind == "pool" else TASKS
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

    await compare(kind, plain, limited, processes, rounds=1 if kind == "pool" else ROUNDS)
    for http in https:
        await http.aclose()


async def with_sdk(address: str, limiter: AsyncLimiter, processes: dict[str, int]) -> None:
    """The official SDK with its own HTTP client, against the same with the client of `earmark.openai`."""
    import openai

    import earmark.openai

    limits = {"rpm": "requests", "tpm": "tokens"}
    sdks = [
        openai.AsyncOpenAI(base_url=f"{address}v1", api_key="k", max_retries=0, timeout=60, http_client=http_client)
        for http_client in (
            openai.DefaultAsyncHttpxClient(trust_env=False),
            earmark.openai.async_http_client(limiter, limits=limits, timeout=60, trust_env=False),
        )
    ]

    def chat(sdk: openai.AsyncOpenAI) -> Call:
        return lambda: sdk.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "Hello"}], max_tokens=100
        )

    await compare("openai", chat(sdks[0]), chat(sdks[1]), processes, rounds=1)
    for sdk in sdks:
        await sdk.close()


async def compare(name: str, plain: Call, limited: Call, processes: dict[str, int], rounds: int) -> None:
    """Calls a second with and without Earmark, in turns: the median of their ratios."""
    pairs: list[tuple[Rate, Rate]] = []
    await calls(plain, 1)
    await calls(limited, 1)
    before = {process: processor_seconds(pid) for process, pid in processes.items()}
    for _ in range(REPEATS):
        without, with_earmark = await calls(plain, rounds), await calls(limited, rounds)
        pairs.append((without, with_earmark))
        print(
            f"{name:>8}: {without.calls_per_second:6.0f} provider calls a second without Earmark "
            f"({without.processor_us:.0f} us), {with_earmark.calls_per_second:6.0f} with "
            f"({with_earmark.processor_us:.0f} us)",
            flush=True,
        )
    fewer = 1 - statistics.median(limited.calls_per_second / plain.calls_per_second for plain, limited in pairs)
    more = statistics.median(limited.processor_us - plain.processor_us for plain, limited in pairs)
    spent = {process: processor_seconds(pid) - before[process] for process, pid in processes.items()}
    count = TASKS * rounds * REPEATS
    # The double answers the calls of both.
    others = f"{spent['server'] / count * 1e6:.0f} us of the server, {spent['double'] / count / 2 * 1e6:.0f} us of the double"
    print(
        f"{name:>8}: {100 * fewer:.1f}% fewer calls a second, {more:.0f} us more processor time for each (medians of "
        f"{REPEATS}); besides {others}",
        flush=True,
    )


def processor_seconds(pid: int) -> float:
    """The processor time of another process, on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


#: The double of a provider. It answers after 20 ms. It takes the body of a request for the beginning of the next one.
UPSTREAM = """
import asyncio
BODY = (b'{"id":"c","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,"finish_reason":"stop",'
        b'"message":{"role":"assistant","content":"Hello!"}}],'
        b'"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}')
ANSWER = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(BODY), BODY)
async def serve(reader, writer):
    try:
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            await asyncio.sleep(0.02)
            writer.write(ANSWER)
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
            name = "batches" if batching else "no batches"
            print(f"{name:>10}: {rate:8.0f} calls a second, {spent:.0f} us of processor time each", flush=True)


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


def main(parts: list[str]) -> None:
    server = EarmarkServer()
    with Client(server.url) as client:
        for key in NEEDS:
            client.put_limit({"key": key, "kind": "rolling", "capacity": 10**15, "window_seconds": 1})
    try:
        if "threads" in parts:
            threads(server.url)
        if "batches" in parts:
            asyncio.run(batches(server.url))
        for kind in KINDS:
            if kind in parts:
                asyncio.run(with_upstream(kind, server))
    finally:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or ["threads", "batches", *KINDS])
