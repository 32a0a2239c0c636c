"""The options of a client."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from . import _http, _names
from ._env import Env
from ._rules import Backoff, Core, Servers
from .errors import InputError

_ALLOWED = "http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:7878, without a user, a path or a query"

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Options:
    """The checked options of a client."""

    core: Core
    headers: dict[str, str]
    roots: str | None
    timeout: float
    connect_timeout: float
    attempt_timeout: float
    connections_max: int
    answer_bytes_max: int

    @staticmethod
    def of(
        servers: str | Sequence[str],
        *,
        key: str | None,
        roots: str | None,
        is_plaintext_allowed: bool,
        timeout: float,
        connect_timeout: float,
        attempt_timeout: float,
        connections_max: int,
        answer_bytes_max: int,
        backoff: Backoff | None,
        env: Env | None,
    ) -> Options:
        """Checks the options."""
        if not isinstance(servers, (str, list, tuple)):
            raise InputError(f"servers: found {servers!r}, allowed is {_ALLOWED}, or a list of them")
        urls = tuple(_address(server) for server in ([servers] if isinstance(servers, str) else servers))
        if not urls:
            raise InputError("servers: found none; name at least one")
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "earmark-python"}
        if key is not None:
            headers["authorization"] = f"Bearer {_key(key)}"
            for url in urls:
                if not is_plaintext_allowed and not _is_private(url):
                    raise InputError(
                        f"server: {url} is unencrypted and would expose the key; use https://, or set "
                        "is_plaintext_allowed if a tunnel encrypts the connection"
                    )
        return Options(
            Core(env or Env(), Servers(urls), backoff or Backoff()),
            headers,
            roots,
            _names.seconds("timeout", timeout),
            _names.some_seconds("connect_timeout", connect_timeout),
            _names.some_seconds("attempt_timeout", attempt_timeout),
            _names.count("connections_max", connections_max),
            _names.count("answer_bytes_max", answer_bytes_max),
        )

    def deadline(self, timeout: float | None) -> float:
        """The moment at which a caller stops waiting."""
        seconds = self.timeout if timeout is None else _names.seconds("timeout", timeout)
        return self.core.env.now() + seconds

    def timeouts(self, by: float) -> tuple[float, dict[str, dict[str, float]]]:
        """The end of an attempt, and its timeouts for the HTTP library."""
        now = self.core.env.now()
        end = min(by, now + self.attempt_timeout)
        return end, _http.timeouts(self.connect_timeout, end - now)


def _address(server: str) -> str:
    try:
        parts = urlsplit(server)
        port = parts.port
    except (ValueError, AttributeError) as error:
        raise InputError(f"server: found {server!r}, allowed is {_ALLOWED}") from error
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or has_more:
        # A user part may contain a password, so it is not repeated.
        found = server.rpartition("@")[2]
        raise InputError(f"server: found {found!r}, allowed is {_ALLOWED}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def _key(key: str) -> str:
    # The message does not repeat the key.
    if not isinstance(key, str) or not _VISIBLE.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("key: only visible ASCII characters are allowed, at least one")
    return key


def _is_private(url: str) -> bool:
    """Whether a key may be sent to this server: it is encrypted, or on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
