"""A provider of both APIs for `gateway_sdk.py`, which knows what it generated."""

import json
import time
from http.server import BaseHTTPRequestHandler

TEXT = ["Hel", "lo ", "wor", "ld"]
INPUT, OUTPUT = 30, 20


class Upstream(BaseHTTPRequestHandler):
    """A provider of both APIs. The model's name says how it behaves."""

    protocol_version = "HTTP/1.1"
    seen: list[dict] = []
    failures = 0

    def log_message(self, *_args) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Upstream.seen.append({"path": self.path, "body": body, "headers": dict(self.headers)})
        model = body["model"]
        if model == "bad":
            return self.answer({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}, 400)
        if model == "fails" and Upstream.failures > 0:
            Upstream.failures -= 1
            return self.answer({"error": {"message": "down", "type": "server_error", "param": None, "code": None}}, 500)
        handler = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completion,
            "/v1/embeddings": self.embeddings,
            "/v1/responses": self.response,
            "/v1/moderations": self.moderation,
            "/v1/messages": self.message,
            "/v1/messages/count_tokens": lambda _body: self.answer({"input_tokens": INPUT}),
        }[self.path]
        return handler(body)

    def answer(self, body: dict, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.send_header("openai-organization", "secret-org")
        self.end_headers()
        self.wfile.write(text)

    def stream(self, events: list[tuple[str | None, dict | str]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data)
            frame = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
            self.wfile.write(f"{len(frame.encode()):x}\r\n{frame}\r\n".encode())
            self.wfile.flush()
            time.sleep(0.01)
        self.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def openai_usage(body: dict) -> dict:
        cached = {"prompt_tokens_details": {"cached_tokens": 10}} if body["model"] == "cached" else {}
        return {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT, **cached}

    def chat(self, body: dict) -> None:
        base = {"id": "chat-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message: dict = {"role": "assistant", "content": "".join(TEXT)}
            if body.get("tools"):
                call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {} if body["model"] == "no-usage" else {"usage": self.openai_usage(body)}
            return self.answer({**base, "object": "chat.completion", "choices": [choice], "unknown": [1], **usage})
        base["object"] = "chat.completion.chunk"
        events: list[tuple[str | None, dict | str]] = [
            (None, {**base, "choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]}) for part in TEXT
        ]
        if (body.get("stream_options") or {}).get("include_usage") and body["model"] != "no-usage":
            events.append((None, {**base, "choices": [], "usage": self.openai_usage(body)}))
        events.append((None, "[DONE]"))
        return self.stream(events)

    def completion(self, body: dict) -> None:
        choice = {"index": 0, "text": "".join(TEXT), "finish_reason": "stop", "logprobs": None}
        self.answer(
            {"id": "c-1", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice],
             "usage": self.openai_usage(body)}
        )

    def embeddings(self, body: dict) -> None:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        usage = {"prompt_tokens": INPUT, "total_tokens": INPUT}
        self.answer({"object": "list", "data": data, "model": body["model"], "usage": usage})

    def moderation(self, body: dict) -> None:
        result = {"flagged": False, "categories": {}, "category_scores": {}, "category_applied_input_types": {}}
        self.answer({"id": "modr-1", "model": body["model"], "results": [result]})

    def response(self, body: dict) -> None:
        content = {"type": "output_text", "text": "".join(TEXT), "annotations": []}
        item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [content]}
        usage = {"input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT,
                 "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": body["model"], "status": "completed",
                 "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}
        if not body.get("stream"):
            return self.answer(whole)
        started = {**whole, "status": "in_progress", "output": [], "usage": None}
        events: list[tuple[str | None, dict | str]] = [
            ("response.created", {"type": "response.created", "sequence_number": 0, "response": started})
        ]
        for number, part in enumerate(TEXT, 1):
            delta = {"type": "response.output_text.delta", "sequence_number": number, "item_id": "msg_1",
                     "output_index": 0, "content_index": 0, "delta": part, "logprobs": []}
            events.append(("response.output_text.delta", delta))
        events.append(("response.completed", {"type": "response.completed", "sequence_number": 9, "response": whole}))
        return self.stream(events)

    def message(self, body: dict) -> None:
        whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_reason": "end_turn",
                 "stop_sequence": None}
        usage = {"input_tokens": 10, "cache_read_input_tokens": 15, "cache_creation_input_tokens": 5, "output_tokens": OUTPUT}
        if not body.get("stream"):
            content = [{"type": "text", "text": "".join(TEXT)}]
            if body.get("tools"):
                content = [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]
            return self.answer({**whole, "content": content, "usage": usage})
        start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        events: list[tuple[str | None, dict | str]] = [
            ("message_start", {"type": "message_start", "message": start}),
            ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            ("ping", {"type": "ping"}),
        ]
        for part in TEXT:
            delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
            events.append(("content_block_delta", delta))
        delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                 "usage": {"output_tokens": OUTPUT}}
        events += [
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
            ("message_delta", delta),
            ("message_stop", {"type": "message_stop"}),
        ]
        return self.stream(events)
