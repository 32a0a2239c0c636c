"""Extensions: numbers, repeats, growth and renewals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from proxy import Proxy

from earmark import AsyncClient, AsyncLimiter, Client, InputError, Job, Limiter
from earmark.errors import ExtendDenied, ExtendFailed, ExtendRefused, LeaseEnded
from earmark.pytest_plugin import EarmarkServer

Reserved = Callable[[str], int]


def numbers(proxy: Proxy) -> list[int]:
    return [seen.body["extension"] for seen in proxy.trace.seen if seen.kind == "extend"]


def test_an_extension_takes_more_once_though_its_answer_is_lost(proxy: Proxy, tokens: str, reserved: Reserved) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter, limiter.acquire({tokens: 10}) as lease:
        proxy.faults[2] = "lose_answer"
        lease.extend({tokens: 20})
        assert numbers(proxy) == [1, 1]
        lease.extend({tokens: 5})
        assert numbers(proxy) == [1, 1, 2]
        assert reserved(tokens) == 35
        lease.complete({tokens: 7})


def test_an_extension_without_an_answer_is_repeated_before_the_next(
    proxy: Proxy, tokens: str, reserved: Reserved
) -> None:
    with Client(proxy.url, attempt_timeout=0.2) as client, Limiter(client) as limiter:
        with limiter.acquire({tokens: 10}) as lease:
            proxy.always = "lose_answer"
            with pytest.raises(ExtendFailed):
                lease.extend({tokens: 20}, timeout=0.3)
            proxy.always = None
            lease.extend({tokens: 20})
            assert set(numbers(proxy)) == {1}
            assert reserved(tokens) == 30
            lease.release()
        # Only the newest part of a lease shrinks.
        assert reserved(tokens) == 10


def test_an_extension_that_another_one_finished_is_not_taken_again(
    proxy: Proxy, tokens: str, reserved: Reserved
) -> None:
    with Client(proxy.url, attempt_timeout=0.2) as client, Limiter(client) as limiter:
        with limiter.acquire({tokens: 10}) as lease:
            proxy.always = "lose_answer"
            with pytest.raises(ExtendFailed):
                lease.extend({tokens: 20}, timeout=0.3)
            proxy.always = None
            lease.extend({tokens: 5})
            lease.extend({tokens: 20})
            assert set(numbers(proxy)) == {1, 2}
            assert reserved(tokens) == 35
            lease.release()


def test_a_denied_extension_uses_its_number_and_the_lease_keeps_its_amounts(
    proxy: Proxy, tokens: str, reserved: Reserved
) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter, limiter.acquire({tokens: 10}) as lease:
        with limiter.acquire({tokens: 60}) as other:
            with pytest.raises(ExtendDenied):
                lease.extend({tokens: 40})
            other.release()
        lease.extend({tokens: 40})
        with pytest.raises(ExtendRefused, match="does not exist"):
            lease.extend({"no:such": 1})
        lease.extend()
        assert numbers(proxy) == [1, 2, 3, 3]
        assert reserved(tokens) == 50
        with pytest.raises(InputError, match="allowed for the lease of a call only"):
            lease.extend(add_output_tokens=5)


def test_usage_that_was_reported_is_the_least_that_is_settled(
    earmark_client: Client, tokens: str, reserved: Reserved
) -> None:
    with Limiter(earmark_client) as limiter, limiter.acquire({tokens: 50}) as lease:
        lease.used(tokens, 30)
        lease.used(tokens, 20)
        lease.extend()
        assert earmark_client.lease(lease.lease_id).used[0].actual_amount == 30
        lease.complete({tokens: 1})
    assert reserved(tokens) == 30


def test_a_completed_lease_cannot_be_extended(earmark_client: Client, tokens: str) -> None:
    with Limiter(earmark_client) as limiter, limiter.acquire({tokens: 50}) as lease:
        lease.complete()
        with pytest.raises(LeaseEnded):
            lease.extend()


@pytest.fixture
def short(earmark_client: Client, prefix: str) -> str:
    """A limit of one concurrent call that runs out after two seconds."""
    key = f"{prefix}:short"
    earmark_client.put_limit({"key": key, "kind": "concurrency", "capacity": 1, "timeout_seconds": 2})
    return key


def test_a_lease_is_kept_alive_beyond_its_timeout(proxy: Proxy, short: str, reserved: Reserved) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter:
        with limiter.acquire({short: 1}) as lease:
            keep_alive = lease.keep_alive(2.0)
            proxy.faults[3] = "lose_answer"
            time.sleep(2.6)
            assert reserved(short) == 1
            assert not keep_alive.is_lost
            lease.complete()
        assert reserved(short) == 0
        count = len(numbers(proxy))
        assert count >= 3
        time.sleep(0.8)
        assert len(numbers(proxy)) == count


def test_a_lost_lease_is_reported(proxy: Proxy, short: str, earmark_client: Client) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter, limiter.acquire({short: 1}) as lease:
        keep_alive = lease.keep_alive(2.0)
        # Someone else completes the lease.
        earmark_client.send(Job({short: 1}).complete(lease.lease_id, {}), time.monotonic() + 5)
        end = time.monotonic() + 5
        while keep_alive.error is None and time.monotonic() < end:
            time.sleep(0.01)
        assert isinstance(keep_alive.error, LeaseEnded)


def test_an_async_lease_is_kept_alive_and_reports_its_loss(
    earmark_server: EarmarkServer, short: str, reserved: Reserved, earmark_client: Client
) -> None:
    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            async with limiter.acquire({short: 1}) as lease:
                keep_alive = lease.keep_alive(2.0)
                await asyncio.sleep(2.4)
                assert reserved(short) == 1 and not keep_alive.is_lost
                await lease.extend()
                await lease.complete()
                assert await keep_alive.lost() is None
            async with limiter.acquire({short: 1}) as lease:
                keep_alive = lease.keep_alive(2.0)
                earmark_client.send(Job({short: 1}).complete(lease.lease_id, {}), time.monotonic() + 5)
                assert isinstance(await asyncio.wait_for(keep_alive.lost(), 3), LeaseEnded)

    asyncio.run(main())
