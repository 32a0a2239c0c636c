"""Calls: the policy of the namespace finds the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture(scope="module")
def server() -> Iterator[EarmarkServer]:
    server = EarmarkServer()
    with Client(server.url) as client:
        client.put_policy(POLICY)
    yield server
    server.stop()


@pytest.fixture
def client(server: EarmarkServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def model(client: Client, prefix: str) -> dict[str, str]:
    """The attributes of a model that no other test uses."""
    for name, capacity in (("rpm", 100), ("tpm", 1_000_000)):
        client.put_limit({"key": f"{prefix}:{name}", "kind": "rolling", "capacity": capacity, "window_seconds": 3600})
    client.put_limit({"key": f"{prefix}:calls", "kind": "concurrency", "capacity": 3, "timeout_seconds": 2})
    return {"model": prefix}


@pytest.fixture
def proxied(server: EarmarkServer) -> Iterator[Proxy]:
    proxy = Proxy(server.url)
    yield proxy
    proxy.close()


def test_a_call_is_reserved_once_and_settled_with_its_usage(
    proxied: Proxy, client: Client, model: dict[str, str], prefix: str
) -> None:
    proxied.faults = {1: "lose_answer", 3: "lose_answer"}
    with Client(proxied.url) as lossy, Limiter(lossy) as limiter:
        with limiter.call(model, **CALL, job_id="job-1") as lease:
            assert {need.key: need.amount for need in lease.requirements}[f"{prefix}:tpm"] == 150
            assert lease.policy_revision
            assert client.usage(f"{prefix}:tpm").reserved == 150
            done = lease.complete_call(Usage(20, 10))
            assert (
                done.reconciled
                and {actual.key: actual.actual_amount for actual in done.actuals or ()}[f"{prefix}:tpm"] == 30
            )
        assert client.usage(f"{prefix}:tpm").reserved == 30
        assert client.usage(f"{prefix}:calls").reserved == 0
    assert [seen.kind for seen in proxied.trace.seen] == ["calls", "calls", "calls/complete", "calls/complete"]
    assert len({seen.lease_id for seen in proxied.trace.seen}) == 1


def test_an_error_settles_the_bound_and_a_release_nothing(
    proxied: Proxy, client: Client, model: dict[str, str], prefix: str
) -> None:
    with Limiter(client) as limiter:
        limiter.call(model, **CALL).release()
        assert client.usage(f"{prefix}:tpm").reserved == 0
        with pytest.raises(KeyError), limiter.call(model, **CALL):
            raise KeyError
        assert client.usage(f"{prefix}:tpm").reserved == 150
        assert client.usage(f"{prefix}:calls").reserved == 0
        lease = limiter.call(model, **CALL)
        with pytest.raises(InputError, match="completed with a usage"):
            lease.complete({})
        with pytest.raises(InputError, match="allowed are done, refused and unknown"):
            lease.complete_call(outcome="failed")
        with pytest.raises(InputError, match="allowed with the outcome done only"):
            lease.complete_call(Usage(1, 1), "unknown")
        lease.complete_call(outcome="refused")


def test_calls_that_the_policy_refuses_say_why(client: Client, model: dict[str, str], prefix: str) -> None:
    with Limiter(client) as limiter:
        with pytest.raises(RefusedByPolicy, match="use gpt-4o") as error:
            limiter.call({"model": "gpt-3"}, **CALL)
        assert error.value.error == "denied_by_rule:banned"
        with pytest.raises(RefusedByPolicy, match="missing_attribute:model"):
            limiter.call({}, **CALL)
        with pytest.raises(RefusedByPolicy, match="no_rule"):
            limiter.call({"model": "free"}, **CALL)
        with pytest.raises(Never):
            limiter.call(model, input_tokens_max=2_000_000, output_tokens_max=0)


def test_a_call_is_explained_and_takes_nothing(client: Client, model: dict[str, str], prefix: str) -> None:
    explained = client.explain(Call({"model": prefix}, **CALL))
    assert explained.allowed and explained.policy_revision
    assert [(rule.name, rule.matched) for rule in explained.rules] == [("model", True), ("banned", False)]
    tokens = next(limit for limit in explained.limits if limit.key == f"{prefix}:tpm")
    assert (tokens.amount, tokens.capacity, tokens.available, tokens.fits) == (150, 1_000_000, 1_000_000, True)
    assert client.usage(f"{prefix}:tpm").reserved == 0
    refused = client.explain(Call({"model": "gpt-3"}, **CALL))
    assert (refused.allowed, refused.error, refused.message) == (False, "denied_by_rule:banned", "use gpt-4o")

    async def main() -> bool:
        async with AsyncClient(client.options.core.servers.urls) as asynchronous:
            return (await asynchronous.explain(Call({"model": prefix}, **CALL))).allowed

    assert asyncio.run(main())


def test_a_call_is_kept_alive_and_grows(proxied: Proxy, client: Client, model: dict[str, str], prefix: str) -> None:
    with Limiter(client) as limiter, limiter.call(model, **CALL) as lease:
        keep_alive = lease.keep_alive(2.0)
        lease.used_tokens(Usage(20, 5))
        time.sleep(2.4)
        assert not keep_alive.is_lost
        assert client.usage(f"{prefix}:calls").reserved == 1
        lease.extend(add_output_tokens=40)
        with pytest.raises(InputError, match="use add_output_tokens"):
            lease.extend({f"{prefix}:tpm": 1})
        assert lease.complete_call(Usage(20, 60)).reconciled


def test_async_calls_are_settled(
    server: EarmarkServer, proxied: Proxy, client: Client, model: dict[str, str], prefix: str
) -> None:
    async def call(limiter: AsyncLimiter) -> None:
        async with limiter.call(model, **CALL, timeout=20) as lease:
            await lease.complete_call(Usage(2, 3))

    async def main() -> None:
        async with AsyncClient(server.url) as api, AsyncLimiter(api) as limiter:
            await asyncio.gather(*(call(limiter) for _ in range(10)))

    asyncio.run(main())
    assert client.usage(f"{prefix}:calls").reserved == 0


def test_a_given_up_call_is_refunded(proxied: Proxy, client: Client, model: dict[str, str], prefix: str) -> None:
    proxied.faults = {1: "late_answer"}
    with Client(proxied.url) as lossy, Limiter(lossy) as limiter:
        with pytest.raises(TimeoutError):
            limiter.call(model, **CALL, timeout=0.3)
        assert limiter.flush(5)
    assert proxied.trace.seen[-1].body["outcome"] == "refused"
    assert client.usage(f"{prefix}:tpm").reserved == 0
    assert Call(model, 1, 1).limits() == ()


def test_the_sdk_follows_the_policy(proxied: Proxy, client: Client, model: dict[str, str], prefix: str) -> None:
    upstream = Upstream()
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
    with Limiter(client) as limiter:
        options = {"api_key": "k", "base_url": f"{upstream.url}/v1"}
        with openai.OpenAI(http_client=earmark.openai.http_client(limiter), **options) as api:
            for _ in api.chat.completions.create(model=prefix, stream=True, **chat):
                assert client.usage(f"{prefix}:calls").reserved == 1
            assert client.usage(f"{prefix}:tpm").reserved == INPUT + OUTPUT
            with pytest.raises(openai.PermissionDeniedError, match="use gpt-4o"):
                api.chat.completions.create(model="gpt-3", **chat)
    upstream.close()
