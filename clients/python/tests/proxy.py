"""A proxy between a client and a server that loses, repeats and replaces messages."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

#: Seconds for which a hanging answer is held back.
HANG = 1.5


@dataclass
class Seen:
    """A request that reached the proxy."""

    server: int
    kind: str
    lease_id: str | None
    body: dict[str, Any]


@dataclass
class Trace:
    """All requests of one scenario, in their order."""

    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Proxy:
    """A proxy on a free port. The nth request gets the fault with that number, from 1."""

    def __init__(self, upstream: str, trace: Trace | None = None, server: int = 0) -> None:
        self.faults: dict[int, str] = {}
        #: The fault of requests without one of their own.
        self.always: str | None = None
        self.trace = trace or Trace()
        self.server = server
        self.count = 0
        self.upstream = urlsplit(upstream).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_any(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        self._http.shutdown()
        self._http.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Notes a request, and answers it as its fault says."""
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        with self.trace.lock:
            self.count += 1
            fault = self.faults.get(self.count, self.always)
            self._note(request.path, body)
        if fault == "lose_request":
            self._drop(request)
        elif fault == "unavailable":
            self._answer(request, 503, b'{"error":"overloaded","message":"the queue is full"}')
        elif fault == "not_earmark":
            self._answer(request, 200, b"<html>Welcome to nginx!</html>")
        else:
            status, answer = self._forward(request, body)
            if fault == "duplicate":
                status, answer = self._forward(request, body)
            if fault == "lose_answer":
                self._drop(request)
            elif fault == "unavailable_after":
                self._answer(request, 503, b'{"error":"overloaded","message":"no leader"}')
            else:
                if fault == "late_answer":
                    time.sleep(HANG)
                self._answer(request, status, answer)

    def _note(self, path: str, body: bytes) -> None:
        kind = path.removeprefix("/v1/").removesuffix("/batch")
        data: dict[str, Any] = json.loads(body) if body else {}
        for item in data.get("requests", [data]):
            self.trace.seen.append(Seen(self.server, kind, item.get("lease_id"), item))

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=10)
        headers = {name: value for name, value in request.headers.items() if name.lower() in ("authorization",)}
        connection.request(request.command, request.path, body or None, headers | {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer

    def _answer(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        try:
            request.send_response(status)
            request.send_header("content-type", "application/json")
            request.send_header("content-length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
        except OSError:
            request.close_connection = True

    def _drop(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.connection.close()
