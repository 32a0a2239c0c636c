"""Bad input: every message says what was found and what to do."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import urllib.request
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy

from earmark import (
    AcquireTimeout,
    AsyncClient,
    AsyncLease,
    AsyncLimiter,
    Client,
    Env,
    InputError,
    Job,
    Limiter,
    Usage,
)
from earmark.errors import (
    CallerRefused,
    DeadlinePassed,
    Invalid,
    InvalidRequest,
    NotFound,
    Unauthorized,
    UnknownLimitKey,
)
from earmark.pytest_plugin import EarmarkServer


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ({"a": 1.5}, "requirements.a: found 1.5 (float), allowed are integers; round up a float"),
        ({"a": 1.0}, "found 1.0 (float)"),
        ({"a": True}, "found True (bool)"),
        ({"a": "7"}, "found '7' (str)"),
        ({"a": 0}, "requirements.a: found 0, allowed are integers from 1"),
        ({"a": 2**64}, "allowed are integers from 1 to 18446744073709551615"),
        ({"a b": 1}, "requirements: found key 'a b', allowed are 1 to 256 letters, digits and :._@+-/|=~%"),
        ({"": 1}, "found key ''"),
        ({"!def ault:a": 1}, "!NAMESPACE: in front for a shared limit"),
        ({}, "requirements: found none, allowed are 1 to 32"),
        ("gpt-4o:rpm", "requirements: found 'gpt-4o:rpm', allowed are 1 to 32 limits with their amounts"),
        (["gpt-4o:rpm"], "requirements: found ['gpt-4o:rpm'], allowed are"),
        ({f"k{number}": 1 for number in range(33)}, "requirements: found 33, allowed are at most 32"),
    ],
)
def test_requirements_are_checked_before_anything_is_sent(
    requirements: dict[str, Any], message: str, proxy: Proxy
) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter:
        with pytest.raises(InputError) as error:
            limiter.acquire(requirements)
        assert message in str(error.value)
    assert proxy.count == 0


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"Model": "x"}, "attributes: found the name 'Model', allowed are a-z, 0-9 and _"),
        ({"model": ""}, "attributes.model: found '', allowed are texts of 1 to 256 bytes"),
        ({"model": "a\nb"}, "without control characters"),
        ({"model": 4}, "attributes.model: found 4"),
        ({"model": "\ud800"}, "attributes.model: found '\\ud800'"),
        ("gpt-4o", "attributes: found 'gpt-4o', allowed are texts by name"),
        ({f"a{number}": "x" for number in range(33)}, "attributes: found 33, allowed are at most 32"),
    ],
)
def test_attributes_are_checked_before_anything_is_sent(attributes: dict[str, Any], message: str, proxy: Proxy) -> None:
    with Client(proxy.url) as client, Limiter(client) as limiter:
        with pytest.raises(InputError) as error:
            limiter.call(attributes, input_tokens_max=1, output_tokens_max=1)
        assert message in str(error.value)
        with pytest.raises(InputError, match="output_tokens_max: found 4294967296"):
            limiter.call({}, input_tokens_max=0, output_tokens_max=2**32)
        with pytest.raises(InputError, match=r"usage.input_tokens: found 1.5 \(float\)"):
            Usage(1.5, 0).json()  # type: ignore[arg-type]
    assert proxy.count == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"Model": "x"}, "labels: found the name 'Model', allowed are a-z, 0-9 and _"),
        ({"m" * 65: "x"}, "labels: found the name"),
        ({"model": "x" * 129}, "allowed are texts of 1 to 128 bytes"),
        ({f"a{number}": "x" for number in range(9)}, "labels: found 9, allowed are at most 8"),
    ],
)
def test_labels_are_checked_before_anything_is_sent(labels: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Job({"a": 1}).complete(Env().lease_id(), {}, labels)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("127.0.0.1:7878", "allowed is http://HOST:PORT"),
        ("ftp://host", "allowed is http://HOST:PORT"),
        ("http://host/v1", "without a user, a path or a query"),
        ("http://host:99999", "allowed is http://HOST:PORT"),
        ("http://", "allowed is http://HOST:PORT"),
        ([], "servers: found none; name at least one"),
        (None, "servers: found None, allowed is http://HOST:PORT"),
    ],
)
def test_addresses_are_checked(server: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        Client(server)
    assert message in str(error.value)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(InputError) as error:
        Client("http://user:secret@host:1")
    assert "secret" not in str(error.value)


def test_a_key_is_not_sent_in_plaintext_to_another_machine_and_never_shown() -> None:
    with pytest.raises(InputError, match=r"http://10.0.0.1:7878 is unencrypted and would expose the key"):
        Client("http://10.0.0.1:7878", key="emk_secret")
    with pytest.raises(InputError) as error:
        Client("http://127.0.0.1:1", key="secret\n")
    assert "secret" not in str(error.value)
    Client("http://10.0.0.1:7878", key="emk_secret", is_plaintext_allowed=True).close()
    with Client(["http://127.0.0.1:1", "https://host", "http://localhost:1", "http://[::1]:2"], key="emk_a") as client:
        assert client.options.core.servers.urls[3] == "http://[::1]:2"


def test_a_server_that_is_not_earmark_is_named_at_the_deadline(proxy: Proxy) -> None:
    proxy.always = "not_earmark"
    with Client(proxy.url) as client, Limiter(client, complete_within=0.1) as limiter:
        with pytest.raises(AcquireTimeout) as error:
            limiter.acquire({"a": 1}, timeout=1.0)
    message = str(error.value)
    assert f"{proxy.url} gave an answer that this version does not understand; is it an Earmark server?" in message
    assert "Welcome to nginx" in message


def expiring_key(server: EarmarkServer) -> str:
    """A key that expires after a second."""
    headers = {"authorization": f"Bearer {server.key}", "content-type": "application/json"}
    body = json.dumps({"name": "app", "role": "caller", "expires_in_seconds": 1}).encode()
    request = urllib.request.Request(f"{server.url}/v1/admin/keys", body, headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(json.load(response)["key"])


def test_an_unknown_and_an_expired_key_are_refused_at_once() -> None:
    server = EarmarkServer("--bootstrap-key")
    try:
        expired = expiring_key(server)
        with Client(server.url, key=expired) as client:
            assert client.whoami().role == "caller"
        time.sleep(1.2)
        for key in ("emk_wrong", expired):
            with Client(server.url, key=key) as client, Limiter(client) as limiter:
                with pytest.raises(CallerRefused, match="check the key"):
                    limiter.acquire({"a": 1}, timeout=10)
                with pytest.raises(Unauthorized, match="check the key"):
                    client.limits()
        with Client(server.url) as client, pytest.raises(Unauthorized, match="check the key"):
            client.limits()
        with Client(server.url, key=server.key) as client:
            assert client.limits() == []
            assert client.whoami().role == "admin" and client.whoami().namespace == "default"
    finally:
        server.stop()


class Shifted(Env):
    """A clock that is wrong."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def wall_ms(self) -> int:
        return super().wall_ms() + self.seconds * 1_000


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_is_named(hours: int, earmark_server: EarmarkServer, tokens: str) -> None:
    with Client(earmark_server.url, env=Shifted(hours * 3600)) as client, Limiter(client) as limiter:
        with pytest.raises(InvalidRequest, match="clock"):
            limiter.acquire({tokens: 1}, timeout=10)


def test_unknown_names_are_refused(earmark_client: Client) -> None:
    with Limiter(earmark_client) as limiter:
        with pytest.raises(UnknownLimitKey, match="limit no:such does not exist; create it first"):
            limiter.acquire({"no:such": 1})
    with pytest.raises(NotFound):
        earmark_client.usage("no:such")
    with pytest.raises(InputError, match="allowed are limits of the own namespace"):
        earmark_client.usage("!default:a")
    with pytest.raises(InputError, match="sort: found 'size'"):
        earmark_client.usage_page(sort="size")


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job_id: found 'a/b', allowed are 1 to 128 letters, digits and"):
        Job({"a": 1}, "a/b")  # The server refuses it.
    for options, message in [
        ({"connections_max": 0}, "connections_max: found 0, allowed are integers above 0"),
        ({"answer_bytes_max": 1.5}, "answer_bytes_max: found 1.5"),
        ({"attempt_timeout": 0}, "attempt_timeout: found 0, allowed are seconds above 0"),
        ({"timeout": float("nan")}, "timeout: found nan, allowed are seconds from 0"),
        ({"key": 5}, "key: only visible ASCII characters are allowed"),
    ]:
        with pytest.raises(InputError, match=message):
            Client("http://127.0.0.1:1", **options)  # type: ignore[arg-type]
    for roots in (tmp_path / "missing.pem", Path(__file__)):
        with pytest.raises(InputError, match=f"roots: found '{roots}', allowed is a readable file of PEM certificates"):
            Client("https://127.0.0.1:1", roots=str(roots))


def test_a_limiter_takes_the_client_of_its_own_kind() -> None:
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(InputError, match="client: found Client, allowed is AsyncClient"):
            AsyncLimiter(client)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="client: found AsyncClient, allowed is Client"):
        Limiter(AsyncClient("http://127.0.0.1:1"))  # type: ignore[arg-type]


def test_bodies_that_are_not_json_are_refused_before_they_are_sent(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        definition = {"key": "a", "kind": "rolling", "capacity": Decimal(5), "window_seconds": 60}
        with pytest.raises(InputError, match="cannot be written as JSON: Object of type Decimal"):
            client.put_limit(definition)
        with pytest.raises(InputError, match="found the name 5, allowed are texts"):
            client.lease(5)  # type: ignore[arg-type]
    assert proxy.count == 0


def test_a_lease_is_kept_alive_for_a_time_in_seconds(earmark_client: Client, slots: str) -> None:
    with Limiter(earmark_client) as limiter, limiter.acquire({slots: 1}) as lease:
        for timeout in (0, -1, "60"):
            with pytest.raises(InputError, match="timeout: found"):
                lease.keep_alive(timeout)  # type: ignore[arg-type]


def test_a_revision_that_differs_is_refused_at_once(earmark_client: Client) -> None:
    """A conflict was taken for the answer of something else than Earmark, and was retried until the deadline."""
    revision = earmark_client.put_policy('unmatched = "allow"\n')
    with pytest.raises(Invalid, match="revision"):
        earmark_client.put_policy('unmatched = "refuse"\n', expected_revision=revision + 7)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_of_another_event_loop_is_named(earmark_server: EarmarkServer, tokens: str) -> None:
    client = AsyncClient(earmark_server.url)
    limiter = AsyncLimiter(client)

    async def acquire() -> AsyncLease:
        return await limiter.acquire({tokens: 1})

    async def complete(lease: AsyncLease) -> None:
        with pytest.raises(InputError, match="make a client and a limiter for each one"):
            await lease.complete()
        with pytest.raises(InputError, match="another event loop"):
            await limiter.acquire({tokens: 1})

    lease = asyncio.run(acquire())
    asyncio.run(complete(lease))
    # Its connection was left open. Python warns of it here, where that is expected.
    del client, limiter, lease
    gc.collect()


def test_a_server_without_tls_is_named(earmark_server: EarmarkServer) -> None:
    with Client(earmark_server.url.replace("http:", "https:")) as client:
        with pytest.raises(DeadlinePassed, match="it does not speak TLS: use http://"):
            client.limits(timeout=0.3)
