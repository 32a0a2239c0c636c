"""The official SDKs with our transports, against a double of their providers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from upstream import INPUT, OUTPUT, Upstream

import earmark.anthropic
import earmark.openai
from earmark import AsyncClient, AsyncLimiter, Client, Limiter
from earmark._metered import _output_max
from earmark.errors import InputError
from earmark.pytest_plugin import EarmarkServer

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

Reserved = Callable[[str], int]
CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello."}]}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 50}
#: The bound of CHAT without a cap of its own is far above its actual usage.
TOTAL = INPUT + OUTPUT


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


class Keys:
    """The limits of one test."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self.rpm, self.tpm, self.slots = (f"{prefix}:gpt-4o:{name}" for name in ("rpm", "tpm", "slots"))
        #: The option of a transport.
        self.limits: dict[str, str | int] = {
            f"{prefix}:{{model}}:rpm": "requests",
            f"{prefix}:{{model}}:tpm": "tokens",
            f"{prefix}:{{model}}:slots": "requests",
        }
        for key, capacity in ((self.rpm, 1_000), (self.tpm, 10_000_000)):
            client.put_limit({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 3600})
        client.put_limit({"key": self.slots, "kind": "concurrency", "capacity": 50, "timeout_seconds": 600})

    def reserved(self) -> tuple[int, int, int]:
        """Requests, tokens and slots."""
        rpm, tpm, slots = (self._client.usage(key).reserved for key in (self.rpm, self.tpm, self.slots))
        return rpm, tpm, slots


@pytest.fixture
def keys(earmark_client: Client, prefix: str) -> Keys:
    return Keys(earmark_client, prefix)


@pytest.fixture
def limiter(earmark_client: Client) -> Iterator[Limiter]:
    with Limiter(earmark_client) as limiter:
        yield limiter


def sdk(limiter: Limiter, upstream: Upstream, keys: Keys, **options: Any) -> Any:
    http = earmark.openai.http_client(limiter, limits=keys.limits, **options)
    return openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=http)


def claude(limiter: Limiter, upstream: Upstream, keys: Keys, **options: Any) -> Any:
    http = earmark.anthropic.http_client(limiter, limits=keys.limits, **options)
    return anthropic.Anthropic(api_key="k", base_url=upstream.url, http_client=http)


@asynccontextmanager
async def async_sdk(server: EarmarkServer, upstream: Upstream, keys: Keys) -> AsyncIterator[Any]:
    async with AsyncClient(server.url) as client, AsyncLimiter(client) as limiter:
        http = earmark.openai.async_http_client(limiter, limits=keys.limits)
        async with openai.AsyncOpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=http) as api:
            yield api


def test_a_call_is_settled_with_its_usage(limiter: Limiter, upstream: Upstream, keys: Keys) -> None:
    with sdk(limiter, upstream, keys) as api:
        answer = api.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "Hello" and answer.usage.total_tokens == TOTAL
        assert keys.reserved() == (1, TOTAL, 0)
        api.responses.create(model="gpt-4o", input="Hello", max_output_tokens=20)
        assert keys.reserved() == (2, 2 * TOTAL, 0)
        api.embeddings.create(model="gpt-4o", input="Hello")
        assert keys.reserved() == (3, 2 * TOTAL + INPUT, 0)
    with claude(limiter, upstream, keys) as api:
        assert api.messages.create(**MESSAGE).content[0].text == "Hello"
        assert keys.reserved() == (4, 3 * TOTAL + INPUT, 0)


def test_the_bound_is_reserved_while_a_call_is_under_way(limiter: Limiter, upstream: Upstream, keys: Keys) -> None:
    upstream.delay = 1.0
    with sdk(limiter, upstream, keys) as api:
        thread = threading.Thread(target=lambda: api.chat.completions.create(**CHAT, max_tokens=100, n=2))
        thread.start()
        while upstream.count == 0:
            time.sleep(0.01)
        rpm, tokens, slots = keys.reserved()
        assert rpm == 1 and slots == 1
        assert 512 + 200 < tokens < 512 + 200 + 300
        thread.join()
    assert keys.reserved() == (1, TOTAL, 0)


def test_a_stream_is_counted_as_it_passes_and_looks_the_same(limiter: Limiter, upstream: Upstream, keys: Keys) -> None:
    with sdk(limiter, upstream, keys) as api:
        chunks = list(api.chat.completions.create(**CHAT, stream=True))
        # The usage chunk that the caller did not ask for is removed.
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["Hi", "Hi", None]
        assert upstream.requests[0]["stream_options"] == {"include_usage": True}
        assert keys.reserved() == (1, TOTAL, 0)
        asked = {"include_usage": True}
        chunks = list(api.chat.completions.create(**CHAT, stream=True, stream_options=asked))
        assert chunks[-1].usage.total_tokens == TOTAL
        assert keys.reserved() == (2, 2 * TOTAL, 0)
        events = list(api.responses.create(model="gpt-4o", input="Hello", stream=True))
        assert events[-1].response.usage.total_tokens == TOTAL
        assert keys.reserved() == (3, 3 * TOTAL, 0)
    with claude(limiter, upstream, keys) as api:
        with api.messages.stream(**MESSAGE) as stream:
            assert "".join(stream.text_stream) == "HiHi"
        assert keys.reserved() == (4, 4 * TOTAL, 0)


def test_a_stream_that_the_caller_abandons_counts_its_bound_and_frees_its_slot(
    limiter: Limiter, upstream: Upstream, keys: Keys
) -> None:
    upstream.events = 100
    with sdk(limiter, upstream, keys) as api:
        with api.chat.completions.create(**CHAT, max_tokens=1_000, stream=True) as stream:
            next(iter(stream))
            assert keys.reserved()[2] == 1
        rpm, tokens, slots = keys.reserved()
        assert (rpm, slots) == (1, 0) and tokens > 1_500


def test_a_stream_that_breaks_counts_its_bound_and_frees_its_slot(
    limiter: Limiter, upstream: Upstream, keys: Keys
) -> None:
    upstream.is_cut = True
    with claude(limiter, upstream, keys) as api:
        with pytest.raises(Exception):  # noqa: B017
            list(api.messages.create(**MESSAGE, stream=True))
        rpm, tokens, slots = keys.reserved()
        assert (rpm, slots) == (1, 0) and tokens > 500


def test_a_denial_is_a_native_429_and_the_sdk_waits_as_told(
    limiter: Limiter, upstream: Upstream, keys: Keys, earmark_client: Client
) -> None:
    earmark_client.put_limit({"key": keys.rpm, "kind": "rolling", "capacity": 1, "window_seconds": 2})
    with sdk(limiter, upstream, keys) as api:
        api.chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError) as error:
            api.with_options(max_retries=0).chat.completions.create(**CHAT)
        response = error.value.response
        assert 0 < int(response.headers["retry-after-ms"]) <= 2_000
        assert response.headers["retry-after"] in ("1", "2")
        assert response.headers["x-earmark-limited-by"] == keys.rpm
        assert error.value.code == "rate_limit_exceeded" and "no room in" in error.value.message
        start = time.monotonic()
        api.with_options(max_retries=3).chat.completions.create(**CHAT)
        assert time.monotonic() - start < 8
    assert upstream.count == 2
    with claude(limiter, upstream, keys, timeout=5) as api, pytest.raises(anthropic.RateLimitError) as denied:
        api.with_options(max_retries=0).messages.create(**MESSAGE)
    assert denied.value.body["error"]["type"] == "rate_limit_error"
    assert keys.reserved()[2] == 0


def test_every_attempt_has_its_own_lease_and_errors_release_everything(
    limiter: Limiter, upstream: Upstream, keys: Keys
) -> None:
    upstream.errors = [500, 503]
    with sdk(limiter, upstream, keys) as api:
        api.with_options(max_retries=2).chat.completions.create(**CHAT)
        assert upstream.count == 3
        assert keys.reserved() == (1, TOTAL, 0)
        upstream.errors = [400]
        with pytest.raises(openai.BadRequestError):
            api.chat.completions.create(**CHAT)
        assert keys.reserved() == (1, TOTAL, 0)
        # A redirect is not an answer of the model.
        upstream.errors = [307]
        with pytest.raises(openai.APIStatusError):
            api.chat.completions.create(**CHAT)
        assert keys.reserved() == (1, TOTAL, 0)


def test_an_upstream_that_cannot_be_reached_releases_and_a_timeout_counts(
    limiter: Limiter, upstream: Upstream, keys: Keys
) -> None:
    http = earmark.openai.http_client(limiter, limits=keys.limits)
    with openai.OpenAI(api_key="k", base_url="http://127.0.0.1:1/v1", max_retries=0, http_client=http) as api:
        with pytest.raises(openai.APIConnectionError):
            api.chat.completions.create(**CHAT)
    assert keys.reserved() == (0, 0, 0)
    upstream.delay = 0.6
    with sdk(limiter, upstream, keys) as api, pytest.raises(openai.APITimeoutError):
        api.with_options(max_retries=0, timeout=0.2).chat.completions.create(**CHAT)
    rpm, tokens, slots = keys.reserved()
    assert (rpm, slots) == (1, 0) and tokens > 512


def test_every_answer_of_a_call_is_bounded_and_counting_tokens_takes_a_request(
    limiter: Limiter, upstream: Upstream, keys: Keys
) -> None:
    """The bound of several prompts was that of one, and a count of tokens took the bound of a call."""
    seen: list[int] = []
    upstream.delay = 0.3
    with sdk(limiter, upstream, keys) as api:
        for more in ({"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": [1, 2, 3]}, {"prompt": [[1], [2], [3]]}):
            call = {"model": "gpt-4o", "max_tokens": 1_000, **more}
            thread = threading.Thread(target=lambda call=call: api.completions.create(**call))
            thread.start()
            while upstream.count == len(seen):
                time.sleep(0.01)
            seen.append(keys.reserved()[1] - len(seen) * TOTAL - 512)
            thread.join()
    assert [bound // 1_000 for bound in seen] == [1, 2, 1, 3]
    # A predicted answer that is rejected is charged as output.
    assert _output_max({"max_tokens": 10, "prediction": {"type": "content", "content": "é" * 100}}, 5) > 210
    upstream.delay = 0.0
    with claude(limiter, upstream, keys) as api:
        assert api.messages.count_tokens(**CHAT).input_tokens == INPUT
    assert keys.reserved() == (5, 4 * TOTAL, 0)


@pytest.mark.parametrize("from_environment", [False, True])
def test_calls_through_a_proxy_are_metered(
    from_environment: bool, limiter: Limiter, upstream: Upstream, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy is a transport of its own, and the calls went past ours. That of the environment was not used at all."""
    options: dict[str, Any] = {"proxy": upstream.url}
    if from_environment:
        monkeypatch.setenv("HTTP_PROXY", upstream.url)
        options = {}
    http = earmark.openai.http_client(limiter, limits=keys.limits, **options)
    with openai.OpenAI(api_key="k", base_url="http://provider.test/v1", http_client=http) as api:
        api.chat.completions.create(**CHAT)
    http = earmark.anthropic.http_client(limiter, limits=keys.limits, **options)
    with anthropic.Anthropic(api_key="k", base_url="http://provider.test", http_client=http) as api:
        api.messages.create(**MESSAGE)
    assert upstream.count == 2 and keys.reserved() == (2, 2 * TOTAL, 0)


def test_the_bounds_on_connections_are_those_of_the_sdk(limiter: Limiter, earmark_server: EarmarkServer) -> None:
    """They were those of the HTTP library: a tenth of the SDK's connections, which callers with leases waited for."""

    def connections(http: Any) -> tuple[int, int]:
        transport = getattr(http._transport, "_inner", http._transport)
        return transport._pool._max_connections, transport._pool._max_keepalive_connections

    for module in (openai, anthropic):
        ours = getattr(earmark, module.__name__)
        expected = connections(module.DefaultHttpxClient())
        assert connections(ours.http_client(limiter, limits={})) == expected
        assert connections(ours.async_http_client(AsyncLimiter(AsyncClient(earmark_server.url)), limits={})) == expected


def test_attributes_of_a_request_are_read_and_not_sent_to_the_provider(
    limiter: Limiter, upstream: Upstream, keys: Keys, earmark_client: Client, prefix: str
) -> None:
    earmark_client.put_template({"key": f"{prefix}:{{user}}", "kind": "rolling", "capacity": 5, "window_seconds": 60})
    http = earmark.openai.http_client(limiter, attributes={"user": "all"}, limits={f"{prefix}:{{user}}": "requests"})
    with openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=http) as api:
        api.chat.completions.create(**CHAT)
        api.chat.completions.create(**CHAT, extra_headers={"x-earmark-attributes": "user=u1, feature=chat"})
        for header in ("model=other", "user", "User=1"):
            with pytest.raises(openai.BadRequestError, match="x-earmark-attributes: found"):
                api.chat.completions.create(**CHAT, extra_headers={"x-earmark-attributes": header})
    assert [earmark_client.usage(f"{prefix}:{user}").reserved for user in ("all", "u1")] == [1, 1]
    assert upstream.attributes == [None, None]


def test_a_tool_call_passes_unchanged(limiter: Limiter, upstream: Upstream, keys: Keys) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    with sdk(limiter, upstream, keys) as api:
        answer = api.chat.completions.create(**CHAT, tools=[tool])
        assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city":"Bern"}'
    assert upstream.requests[0]["tools"] == [tool]
    assert keys.reserved() == (1, TOTAL, 0)


def test_calls_that_waiting_does_not_help_are_not_retried(
    limiter: Limiter, upstream: Upstream, keys: Keys, earmark_client: Client
) -> None:
    earmark_client.put_limit({"key": keys.tpm, "kind": "rolling", "capacity": 100, "window_seconds": 60})
    with sdk(limiter, upstream, keys) as api:
        with pytest.raises(openai.BadRequestError, match="more than the capacity"):
            api.chat.completions.create(**CHAT)
        with pytest.raises(openai.PermissionDeniedError, match="does not exist; create it first"):
            api.chat.completions.create(**{**CHAT, "model": "gpt-5 mini"})
        with pytest.raises(openai.BadRequestError, match="/images/generations is not metered"):
            api.images.generate(prompt="a cat")
        api.models.list()
    assert upstream.count == 0


def test_earmark_out_of_reach_is_a_503_and_nothing_is_sent(upstream: Upstream, keys: Keys) -> None:
    with Client("http://127.0.0.1:1") as client, Limiter(client) as limiter:
        with sdk(limiter, upstream, keys, timeout=0.2) as api, pytest.raises(openai.InternalServerError) as error:
            api.with_options(max_retries=0).chat.completions.create(**CHAT)
    assert error.value.status_code == 503 and "cannot be reached" in error.value.message
    assert upstream.count == 0


def test_too_little_credit_is_the_providers_own_error(
    limiter: Limiter, upstream: Upstream, earmark_client: Client, prefix: str, tmp_path: Any
) -> None:
    from earmark import Writer

    with Writer(earmark_client, tmp_path / "w", client_id=prefix, vault="main") as writer:
        writer.write([{"open_account": {"account": prefix, "overdraft": "deny"}}])
    key = f"{prefix}:usd"
    credit = {"kind": "credit", "vault": "main", "account": prefix, "asset": "usd", "timeout_seconds": 60}
    earmark_client.put_limit({"key": key, **credit})
    http = earmark.openai.http_client(limiter, limits={key: 5})
    with openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=http) as api:
        with pytest.raises(openai.RateLimitError) as error:
            api.chat.completions.create(**CHAT)
        assert error.value.code == "insufficient_quota"
    paid = earmark.anthropic.http_client(limiter, limits={key: 5})
    with anthropic.Anthropic(api_key="k", base_url=upstream.url, http_client=paid) as api:
        with pytest.raises(anthropic.APIStatusError) as refused:
            api.messages.create(**MESSAGE)
        assert refused.value.status_code == 402 and refused.value.body["error"]["type"] == "billing_error"
    assert upstream.count == 0


def test_mistakes_in_limits_are_named(limiter: Limiter) -> None:
    with pytest.raises(InputError, match="limits.a: found 'token', allowed are integers, requests"):
        earmark.openai.http_client(limiter, limits={"a": "token"})


def test_a_long_stream_is_kept_alive(limiter: Limiter, upstream: Upstream, keys: Keys, earmark_client: Client) -> None:
    key = keys.slots.replace("slots", "short")
    earmark_client.put_limit({"key": key, "kind": "concurrency", "capacity": 1, "timeout_seconds": 2})
    http = earmark.openai.http_client(limiter, limits={key: "requests"}, keep_alive=2.0)
    upstream.events, upstream.event_delay = 8, 0.35
    with openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", http_client=http) as api:
        for number, _ in enumerate(api.chat.completions.create(**CHAT, stream=True)):
            assert earmark_client.usage(key).reserved == 1, number
    assert earmark_client.usage(key).reserved == 0


def test_parallel_async_calls_and_streams_leave_nothing_held(
    earmark_server: EarmarkServer, upstream: Upstream, keys: Keys
) -> None:
    async def stream(api: Any) -> None:
        async for _ in await api.chat.completions.create(**CHAT, stream=True):
            pass

    async def abandoned(api: Any) -> None:
        async with await api.chat.completions.create(**CHAT, max_tokens=1, stream=True) as stream:
            async for _ in stream:
                return

    async def main() -> None:
        async with async_sdk(earmark_server, upstream, keys) as api:
            calls = [api.chat.completions.create(**CHAT) for _ in range(10)]
            await asyncio.gather(*calls, *(stream(api) for _ in range(10)), *(abandoned(api) for _ in range(5)))

    asyncio.run(main())
    rpm, tokens, slots = keys.reserved()
    assert (rpm, slots) == (25, 0)
    assert 20 * TOTAL + 5 * 512 < tokens < 20 * TOTAL + 5 * 1_000


def test_a_cancelled_async_call_frees_its_slot(earmark_server: EarmarkServer, upstream: Upstream, keys: Keys) -> None:
    upstream.delay = 0.5

    async def main() -> None:
        async with async_sdk(earmark_server, upstream, keys) as api:
            task = asyncio.create_task(api.chat.completions.create(**CHAT))
            while upstream.count == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert keys.reserved()[2] == 0


def test_an_async_denial_is_a_native_429(
    earmark_server: EarmarkServer, upstream: Upstream, keys: Keys, earmark_client: Client
) -> None:
    earmark_client.pause_limit(keys.rpm, 60)

    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client, AsyncLimiter(client) as limiter:
            http = earmark.anthropic.async_http_client(limiter, limits=keys.limits)
            async with anthropic.AsyncAnthropic(
                api_key="k", base_url=upstream.url, http_client=http, max_retries=0
            ) as api:
                with pytest.raises(anthropic.RateLimitError):
                    await api.messages.create(**MESSAGE)
                earmark_client.pause_limit(keys.rpm, 0)
                async with api.messages.stream(**MESSAGE) as stream:
                    assert (await stream.get_final_message()).usage.output_tokens == OUTPUT

    asyncio.run(main())
    assert keys.reserved() == (1, TOTAL, 0)
