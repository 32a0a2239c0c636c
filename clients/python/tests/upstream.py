"""A double of the OpenAI and Anthropic APIs."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The usage that every response reports.
INPUT, OUTPUT = 19, 10


class Upstream:
    """Answers calls. Settings change the next answers."""

    def __init__(self) -> None:
        #: Statuses of errors for the next requests.
        self.errors: list[int] = []
        #: Whether streams break before their last events.
        self.is_cut = False
        #: Seconds before an answer.
        self.delay = 0.0
        #: Events in the middle of a stream, and seconds between them.
        self.events = 2
        self.event_delay = 0.0
        self.requests: list[dict[str, Any]] = []
        #: The header with attributes of each request.
        self.attributes: list[str | None] = []
        self.count = 0
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                upstream.handle(self)

            def do_GET(self) -> None:
                upstream._json(self, 200, {"object": "list", "data": []})

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 1_024

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        body = json.loads(http.rfile.read(int(http.headers.get("content-length") or 0)))
        self.count += 1
        self.requests.append(body)
        self.attributes.append(http.headers.get("x-earmark-attributes"))
        time.sleep(self.delay)
        if self.errors:
            self._json(http, self.errors.pop(0), {"error": {"message": "overloaded", "type": "server_error"}})
        elif http.path.endswith("/count_tokens"):
            self._json(http, 200, {"input_tokens": INPUT})
        elif http.path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
            usage = {"prompt_tokens": INPUT, "total_tokens": INPUT}
            self._json(http, 200, {"object": "list", "data": [vector], "model": "m", "usage": usage})
        elif body.get("stream"):
            self._stream(http, _events(http.path, body, self.events))
        else:
            self._json(http, 200, _answer(http.path, body))

    def _json(self, http: BaseHTTPRequestHandler, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        http.send_response(status)
        http.send_header("content-type", "application/json")
        http.send_header("content-length", str(len(body)))
        http.end_headers()
        try:
            http.wfile.write(body)
        except OSError:
            http.close_connection = True

    def _stream(self, http: BaseHTTPRequestHandler, events: list[tuple[str | None, Any]]) -> None:
        http.send_response(200)
        http.send_header("content-type", "text/event-stream; charset=utf-8")
        http.send_header("transfer-encoding", "chunked")
        http.end_headers()
        try:
            for name, data in events[:3] if self.is_cut else events:
                text = data if isinstance(data, str) else json.dumps(data)
                event = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
                # Two chunks for one event, so that readers must join them.
                for part in (event[:9].encode(), event[9:].encode()):
                    http.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                time.sleep(self.event_delay)
            if self.is_cut:
                http.close_connection = True
                http.connection.close()
            else:
                http.wfile.write(b"0\r\n\r\n")
        except OSError:
            http.close_connection = True


def _tool_call(body: dict[str, Any]) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
    return {"tool_calls": [call]} if body.get("tools") else {"content": "Hello"}


def _chat_usage() -> dict[str, Any]:
    return {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}


def _answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    if path.endswith("/messages"):
        return _message([{"type": "text", "text": "Hello"}], OUTPUT)
    if path.endswith("/responses"):
        return _response("completed", True)
    message = {"role": "assistant", **_tool_call(body)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": _chat_usage()}


def _message(content: list[Any], output: int) -> dict[str, Any]:
    usage = {"input_tokens": INPUT - 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 4}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    return {**head, "stop_sequence": None, "content": content, "usage": {**usage, "output_tokens": output}}


def _response(status: str, has_usage: bool) -> dict[str, Any]:
    details = {"input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 2}}
    usage = {"input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT, **details}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m", "output": []}
    more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, **more, "usage": usage if has_usage else None}


def _events(path: str, body: dict[str, Any], count: int) -> list[tuple[str | None, Any]]:
    if path.endswith("/messages"):
        text = {"type": "text_delta", "text": "Hi"}
        deltas = [{"type": "content_block_delta", "index": 0, "delta": text}] * count
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": _message([], 1)},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *deltas,
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": OUTPUT}},
            {"type": "message_stop"},
        ]
        return [(event["type"], event) for event in events]
    if path.endswith("/responses"):
        delta = {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0}
        events = [
            {"type": "response.created", "sequence_number": 0, "response": _response("in_progress", False)},
            *[{**delta, "sequence_number": number + 1, "delta": "Hi", "logprobs": []} for number in range(count)],
            {"type": "response.completed", "sequence_number": 9, "response": _response("completed", True)},
        ]
        return [(event["type"], event) for event in events]
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[Any] = [
        {**head, "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]} for _ in range(count)
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": _chat_usage()})
    return [(None, chunk) for chunk in [*chunks, "[DONE]"]]
