"""Fixtures for tests against a real server: `earmark serve --in-memory` on a free port.

The binary is `EARMARK_BIN`, or `earmark` on the path. Without it, tests that use the fixtures fail and say so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

from .client import Client

#: Seconds for the server to print its address.
START_MAX = 30.0

_LISTENS = re.compile(r"listens on (https?://\S+)")
_KEY = re.compile(r"^key:\s+(emk_\S+)")


class EarmarkServer:
    """A server in memory. Its state is gone with it."""

    def __init__(self, *arguments: str) -> None:
        """Starts a server with further arguments of `earmark serve`, such as `--bootstrap-key`."""
        command = [binary(), "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        #: The address.
        self.url = ""
        #: The key of an admin, if it was started with `--bootstrap-key`.
        self.key: str | None = None
        self._is_ready = threading.Event()
        # The thread drains standard output, because the process would block on a full pipe.
        threading.Thread(target=self._read, daemon=True).start()
        if not self._is_ready.wait(START_MAX) or not self.url:
            self.stop()
            raise RuntimeError(f"`{' '.join(command)}` did not print its address; run it by hand to see why")

    def stop(self) -> None:
        """Ends the server."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        try:
            for line in self.process.stdout or ():
                if key := _KEY.search(line):
                    self.key = key[1]
                if listens := _LISTENS.search(line):
                    self.url = listens[1]
                    self._is_ready.set()
        except ValueError:
            pass  # Closed by `stop`.
        self._is_ready.set()


def binary() -> str:
    """The binary of the server."""
    found = os.environ.get("EARMARK_BIN") or shutil.which("earmark")
    if not found:
        raise RuntimeError("the server is missing; set EARMARK_BIN to the binary `earmark`, or put it on the path")
    return found


@pytest.fixture(scope="session")
def earmark_server() -> Iterator[EarmarkServer]:
    """A server for the whole test session. Give each test its own keys."""
    server = EarmarkServer()
    yield server
    server.stop()


@pytest.fixture
def earmark_client(earmark_server: EarmarkServer) -> Iterator[Client]:
    """A synchronous client of the server."""
    with Client(earmark_server.url, key=earmark_server.key, timeout=10.0) as client:
        yield client
