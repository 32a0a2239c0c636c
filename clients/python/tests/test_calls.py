"""Calls: the policy of the namespace finds the limits."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from proxy import Proxy
from upstream import INPUT, OUTPUT, Upstream

import earmark.openai
from earmark import AsyncClient, AsyncLimiter, Call, Client, InputError, Limiter, Usage
from earmark.errors import Never, RefusedByPolicy
from earmark.pytest_plugin import EarmarkServer

openai = pytest.importorskip("openai")

POLICY = """
[[rules]]
name = "model"
when = 'model != "free"'
limits = [
  { key = "{model}:rpm", amount = "requests" },
  { key = "{model}:tpm", amount = "tokens" },
  { key = "{model}:calls", amount = "requests" },
]

[[rules]]
name = "banned"
when = 'model == "gpt-3"'
deny = "use gpt-4o"
"""
CALL: dict[str, Any] = {"input_tokens_max": 100, "output_tokens_max": 50}
MODEL = {"model": "gpt-4o"}


@pytest.fixture(scope="module")
def server() -> Iterator[EarmarkServer]:
    server = EarmarkServer()
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    connection.request("GET", "/openapi.json")
    has_calls = "/v1/calls" in json.loads(connection.getresponse().read())["paths"]
    connection.close()
    if not has_calls:
        server.stop()
        pytest.skip("this server has no /v1/calls")
    with Client(server.url) as client:
        client.put_policy(POLICY)
    yield server
    server.stop()


@pytest.fixture
def client(server: EarmarkServer) -> Iterator[Client]:
    with Client(server.url) as client:
        for name, capacity in (("rpm", 100), ("tpm", 1_000_000)):
            key = f"gpt-4o:{name}"
            client.put_limit({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 1})
        client.put_limit({"key": "gpt-4o:calls", "kind": "concurrency", "capacity": 3, "timeout_seconds": 1})
        yield client


@pytest.fixture
def proxied(server: EarmarkServer, client: Client) -> Iterator[Proxy]:
    proxy = Proxy(server.url)
    # The amounts of the last test leave their windows.
    time.sleep(1.1)
    yield proxy
    proxy.close()


def test_a_call_is_reserved_once_and_settled_with_its_usage(proxied: Proxy, client: Client) -> None:
    proxied.faults = {1: "lose_answer", 3: "lose_answer"}
    with Client(proxied.url) as lossy, Limiter(lossy) as limiter:
        with limiter.call(MODEL, **CALL, job_id="job-1") as lease:
            assert {need.key: need.amount for need in lease.requirements}["gpt-4o:tpm"] == 150
            assert lease.policy_revision
            assert client.usage("gpt-4o:tpm").reserved == 150
            done = lease.complete_call(Usage(20, 10))
            assert done.reconciled and {actual.key: actual.actual_amount for actual in done.actuals or ()}[
                "gpt-4o:tpm"
            ] == 30
        assert client.usage("gpt-4o:tpm").reserved == 30
        assert client.usage("gpt-4o:calls").reserved == 0
    assert [seen.kind for seen in proxied.trace.seen] == ["calls", "calls", "calls/complete", "calls/complete"]
    assert len({seen.lease_id for seen in proxied.trace.seen}) == 1


def test_an_error_settles_the_bound_and_a_release_nothing(proxied: Proxy, client: Client) -> None:
    with Limiter(client) as limiter:
        limiter.call(MODEL, **CALL).release()
        assert client.usage("gpt-4o:tpm").reserved == 0
        with pytest.raises(KeyError), limiter.call(MODEL, **CALL):
            raise KeyError
        assert client.usage("gpt-4o:tpm").reserved == 150
        assert client.usage("gpt-4o:calls").reserved == 0
        lease = limiter.call(MODEL, **CALL)
        with pytest.raises(InputError, match="completed with a usage"):
            lease.complete({})
        with pytest.raises(InputError, match="allowed are done, refused and unknown"):
            lease.complete_call(outcome="failed")
        with pytest.raises(InputError, match="allowed with the outcome done only"):
            lease.complete_call(Usage(1, 1), "unknown")
        lease.complete_call(outcome="refused")


def test_calls_that_the_policy_refuses_say_why(client: Client) -> None:
    with Limiter(client) as limiter:
        with pytest.raises(RefusedByPolicy, match="use gpt-4o") as error:
            limiter.call({"model": "gpt-3"}, **CALL)
        assert error.value.error == "denied_by_rule:banned"
        with pytest.raises(RefusedByPolicy, match="missing_attribute:model"):
            limiter.call({}, **CALL)
        with pytest.raises(RefusedByPolicy, match="no_rule"):
            limiter.call({"model": "free"}, **CALL)
        with pytest.raises(Never):
            limiter.call(MODEL, input_tokens_max=2_000_000, output_tokens_max=0)


def test_a_call_is_kept_alive_and_grows(proxied: Proxy, client: Client) -> None:
    with Limiter(client) as limiter, limiter.call(MODEL, **CALL) as lease:
        keep_alive = lease.keep_alive(1.0)
        lease.used_tokens(Usage(20, 5))
        time.sleep(1.3)
        assert not keep_alive.is_lost
        assert client.usage("gpt-4o:calls").reserved == 1
        lease.extend(add_output_tokens=40)
        with pytest.raises(InputError, match="use add_output_tokens"):
            lease.extend({"gpt-4o:tpm": 1})
        assert lease.complete_call(Usage(20, 60)).reconciled


def test_async_calls_are_settled(server: EarmarkServer, proxied: Proxy, client: Client) -> None:
    async def call(limiter: AsyncLimiter) -> None:
        async with limiter.call(MODEL, **CALL, timeout=20) as lease:
            await lease.complete_call(Usage(2, 3))

    async def main() -> None:
        async with AsyncClient(server.url) as api, AsyncLimiter(api) as limiter:
            await asyncio.gather(*(call(limiter) for _ in range(10)))

    asyncio.run(main())
    assert client.usage("gpt-4o:calls").reserved == 0


def test_a_given_up_call_is_refunded(proxied: Proxy, client: Client) -> None:
    proxied.faults = {1: "late_answer"}
    with Client(proxied.url) as lossy, Limiter(lossy) as limiter:
        with pytest.raises(TimeoutError):
            limiter.call(MODEL, **CALL, timeout=0.3)
        assert limiter.flush(5)
    assert proxied.trace.seen[-1].body["outcome"] == "refused"
    assert client.usage("gpt-4o:tpm").reserved == 0
    assert Call(MODEL, 1, 1).limits() == ()


def test_the_sdk_follows_the_policy(proxied: Proxy, client: Client) -> None:
    upstream = Upstream()
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
    with Limiter(client) as limiter:
        options = {"api_key": "k", "base_url": f"{upstream.url}/v1"}
        with openai.OpenAI(http_client=earmark.openai.http_client(limiter), **options) as api:
            for _ in api.chat.completions.create(model="gpt-4o", stream=True, **chat):
                assert client.usage("gpt-4o:calls").reserved == 1
            assert client.usage("gpt-4o:tpm").reserved == INPUT + OUTPUT
            with pytest.raises(openai.PermissionDeniedError, match="use gpt-4o"):
                api.chat.completions.create(model="gpt-3", **chat)
    upstream.close()
