"""Checks an installed package: `python smoke.py URL`. It runs in an environment with nothing but the package."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import pkgutil
import socket
import sys
from pathlib import Path

import earmark
from earmark import AsyncClient, AsyncLimiter, Client, Limiter, Usage
from earmark.errors import DeadlinePassed

#: Modules that need a package of their own.
NEEDS_MORE = {"earmark.openai", "earmark.anthropic", "earmark.pytest_plugin"}
POLICY = """
[[rules]]
name = "smoke"
limits = [ { key = "smoke", amount = "requests" }, { key = "smoke:tokens", amount = "tokens" } ]
"""


def main(url: str) -> None:
    folder = Path(earmark.__file__).parent
    assert folder.parent.name == "site-packages", folder
    assert (folder / "py.typed").exists()
    distribution = importlib.metadata.distribution("earmark")
    assert [name for name in distribution.requires or () if "extra" not in name] == ["httpx<1,>=0.27"]
    assert {point.value for point in distribution.entry_points} == {"earmark.pytest_plugin"}
    for module in pkgutil.iter_modules(earmark.__path__, "earmark."):
        if module.name not in NEEDS_MORE:
            importlib.import_module(module.name)
    with Client(url) as client, Limiter(client) as limiter:
        client.put_limit({"key": "smoke", "kind": "concurrency", "capacity": 1, "timeout_seconds": 60})
        client.put_limit({"key": "smoke:tokens", "kind": "rolling", "capacity": 1_000_000, "window_seconds": 60})
        client.put_policy(POLICY)
        with limiter.acquire({"smoke": 1}, timeout=10) as lease:
            assert lease.complete().reconciled
        with limiter.call({"model": "gpt-4o"}, input_tokens_max=5, output_tokens_max=5, timeout=10) as call:
            call.complete_call(Usage(input_tokens=3, output_tokens=2))
        asyncio.run(tasks(url))
        asyncio.run(timeouts())
        assert client.usage("smoke").reserved == 0
    version = ".".join(str(part) for part in sys.version_info[:3])
    print(f"earmark {distribution.version} works in {folder} with Python {version}")


async def tasks(url: str) -> None:
    """Tasks that wait for one slot, one of which is cancelled."""
    async with AsyncClient(url) as client, AsyncLimiter(client) as limiter:

        async def task(number: int) -> None:
            async with limiter.acquire({"smoke": 1, "smoke:tokens": 2}, timeout=30) as lease:
                lease.used("smoke:tokens", 1)
                await lease.extend({"smoke:tokens": 1})
                if number == 0:
                    raise asyncio.CancelledError
                await lease.complete({"smoke:tokens": 2})

        ended = await asyncio.gather(*(task(number) for number in range(5)), return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError) and not any(ended[1:]), ended


async def timeouts() -> None:
    """Attempts at a server that does not answer. Versions of Python cancel them in different ways."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with AsyncClient(silent_url, attempt_timeout=0.05) as client:
            try:
                await client.whoami(timeout=0.2)
            except DeadlinePassed as error:
                assert "gave no answer" in str(error), error
            else:
                raise AssertionError("a silent server answered")


if __name__ == "__main__":
    main(sys.argv[1])
