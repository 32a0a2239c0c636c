"""Fixtures of all tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from proxy import Proxy

from earmark import Client
from earmark.pytest_plugin import EarmarkServer

_numbers = itertools.count(1)


@pytest.fixture
def prefix() -> str:
    """The beginning of keys that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def proxy(earmark_server: EarmarkServer) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    proxy = Proxy(earmark_server.url)
    yield proxy
    proxy.close()


@pytest.fixture
def tokens(earmark_client: Client, prefix: str) -> str:
    """A limit of 100 tokens an hour."""
    key = f"{prefix}:tokens"
    earmark_client.put_limit({"key": key, "kind": "rolling", "capacity": 100, "window_seconds": 3600})
    return key


@pytest.fixture
def slots(earmark_client: Client, prefix: str) -> str:
    """A limit of 2 concurrent calls."""
    key = f"{prefix}:slots"
    earmark_client.put_limit({"key": key, "kind": "concurrency", "capacity": 2, "timeout_seconds": 600})
    return key


@pytest.fixture
def reserved(earmark_client: Client) -> Callable[[str], int]:
    """The reserved amount of a limit."""
    return lambda key: earmark_client.usage(key).reserved
