"""Runs the scenarios that all clients share."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy, Trace

from earmark import AsyncClient, AsyncLimiter, Client, Limiter
from earmark.errors import AcquireTimeout, Never, UnknownLimitKey
from earmark.pytest_plugin import EarmarkServer

SCENARIOS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "scenarios.json").read_text())["scenarios"]


class CallError(Exception):
    """The error of a call in a scenario."""


def refused_address() -> str:
    """An address that refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def proxies(scenario: dict[str, Any], upstream: str, trace: Trace) -> Iterator[list[str]]:
    urls: list[str] = []
    opened: list[Proxy] = []
    for number in range(scenario.get("servers", 1)):
        if number in scenario.get("down", []):
            urls.append(refused_address())
            continue
        proxy = Proxy(upstream, trace, number)
        faults = scenario.get("faults", [])
        proxy.faults = {int(at): fault for at, fault in (faults[number] if number < len(faults) else {}).items()}
        opened.append(proxy)
        urls.append(proxy.url)
    try:
        yield urls
    finally:
        for proxy in opened:
            proxy.close()


def run_sync(urls: list[str], options: dict[str, Any], scenario: dict[str, Any]) -> str:
    with Client(urls, **options) as client, Limiter(client) as limiter:
        try:
            with limiter.acquire(scenario["requirements"], timeout=scenario.get("timeout_ms", 10_000) / 1_000) as lease:
                if scenario["actuals"] is None:
                    raise CallError
                assert lease.complete(scenario["actuals"]).reconciled
        except Exception as error:
            return result_of(error)
        return "admitted"


async def run_async(urls: list[str], options: dict[str, Any], scenario: dict[str, Any], batching: bool) -> str:
    async with AsyncClient(urls, **options) as client, AsyncLimiter(client, batching=batching) as limiter:
        timeout = scenario.get("timeout_ms", 10_000) / 1_000
        try:
            async with limiter.acquire(scenario["requirements"], timeout=timeout) as lease:
                if scenario["actuals"] is None:
                    raise CallError
                assert (await lease.complete(scenario["actuals"])).reconciled
        except Exception as error:
            return result_of(error)
        return "admitted"


def result_of(error: Exception) -> str:
    names = {CallError: "error", Never: "never", UnknownLimitKey: "unknown_limit_key", AcquireTimeout: "timeout"}
    for kind, name in names.items():
        if isinstance(error, kind):
            return name
    raise error


def with_prefix(value: Any, prefix: str) -> Any:
    return json.loads(json.dumps(value).replace("$:", f"{prefix}:"))


def requests_of(trace: Trace) -> list[list[Any]]:
    """The requests with leases named A, B, ... in the order of their first request."""
    names: dict[str | None, str] = {}
    for seen in trace.seen:
        names.setdefault(seen.lease_id, chr(ord("A") + len(names)))
    return [[seen.server, seen.kind, names[seen.lease_id]] for seen in trace.seen]


@pytest.mark.parametrize("flavour", ["sync", "async", "async alone"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def test_scenario(
    scenario: dict[str, Any], flavour: str, earmark_server: EarmarkServer, earmark_client: Client, prefix: str
) -> None:
    scenario = with_prefix(scenario, prefix)
    for key, definition in scenario["limits"].items():
        earmark_client.put_limit({"key": key, **definition})
    options = {"attempt_timeout": scenario.get("attempt_timeout_ms", 8_000) / 1_000}
    trace = Trace()
    with Limiter(earmark_client) as holder, proxies(scenario, earmark_server.url, trace) as urls:
        held = holder.acquire(scenario["held"]) if "held" in scenario else None
        if flavour == "sync":
            result = run_sync(urls, options, scenario)
        else:
            result = asyncio.run(run_async(urls, options, scenario, flavour == "async"))
        assert result == scenario["result"]
        found = requests_of(trace)
        if "requests" in scenario:
            assert found == scenario["requests"]
        else:
            first = scenario["first_requests"]
            assert found[: len(first)] == first
        for key, amount in scenario.get("reserved", {}).items():
            assert earmark_client.usage(key).reserved == amount
        if held is not None:
            held.complete()
