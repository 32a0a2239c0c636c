"""The official SDKs of OpenAI and Anthropic, through a gateway to an upstream that counts what it generates.

    python gateway_sdk.py EARMARK NODE_PACKAGES

It starts a server, a gateway and the upstream, and checks each claim below. The SDKs for Node do a few calls too.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anthropic
import openai

# Minor units for a million tokens. A token of input costs 1, of output 10.
POLICY = """
[[rules]]
name   = "credit"
limits = [
  { key = "acme:usd", amount = "cost" },
  { key = "model:{model}:slots", amount = "requests" },
]

[[rules]]
name   = "one-a-second"
when   = 'alias == "slow"'
limits = [ { key = "slow:rps", amount = "requests" } ]

[[rules]]
name   = "small"
when   = 'alias == "small"'
limits = [ { key = "small:tpm", amount = "tokens" } ]

[[rules]]
name = "forbidden"
when = 'alias == "forbidden"'
deny = "this plan does not have this model"

[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
cached_input = 500_000
output = 10_000_000
"""

MODELS = ["fast", "slow", "small", "forbidden", "no-usage", "fails", "bad", "cached"]
TEXT = ["Hel", "lo ", "wor", "ld"]
INPUT, OUTPUT = 30, 20
COST = INPUT + 10 * OUTPUT


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


class Check:
    """A server, a gateway, and clients of it."""

    def __init__(self, server: str, gateway: str, node_packages: str) -> None:
        self.server = server
        self.gateway = gateway
        self.node_packages = node_packages
        self.openai = openai.OpenAI(base_url=f"{gateway}/v1", api_key="unused", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=gateway, api_key="unused", max_retries=0)

    def http(self, method: str, path: str, body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.server}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error
        assert "error" not in found or not found["error"], found
        return found

    def set_up(self) -> None:
        def write(sequence: int, *operations: dict) -> None:
            self.http("POST", "/v1/write", {"namespace": "default", "vault": "main", "client_id": "test",
                                            "sequence": sequence, "operations": list(operations)})

        write(1, {"open_account": {"account": "acme", "overdraft": "deny"}})
        write(2, {"issue": {"account": "acme", "asset": "usd", "amount": "1000000"}})
        limits: list[dict] = [
            {"key": "acme:usd", "kind": "credit", "vault": "main", "account": "acme", "asset": "usd", "timeout_seconds": 600},
            {"key": "slow:rps", "kind": "rolling", "capacity": 1, "window_seconds": 1},
            {"key": "small:tpm", "kind": "rolling", "capacity": 10, "window_seconds": 60},
        ]
        for model in [*MODELS, "claude"]:
            limits.append({"key": f"model:{model}:slots", "kind": "concurrency", "capacity": 4, "timeout_seconds": 600})
        for limit in limits:
            self.http("PUT", "/v1/admin/limits", limit)
        self.http("PUT", "/v1/admin/policy", {"policy": POLICY})

    def balance(self) -> int:
        """The balance once every call is settled and no slot is taken."""
        end = time.monotonic() + 10
        while True:
            balances = self.http("GET", "/v1/vaults/main/accounts/acme/balances")["balances"]
            usage = self.http("GET", "/v1/usage?prefix=model:")["usage"]
            if int(balances[0]["held"]) == 0 and all(limit["reserved"] == 0 for limit in usage):
                return int(balances[0]["available"])
            assert time.monotonic() < end, (balances, usage)
            time.sleep(0.02)

    def charged(self, cost: int, call):
        """Makes a call that must cost exactly this."""
        before = self.balance()
        result = call()
        found = before - self.balance()
        assert found == cost, f"charged {found}, expected {cost}"
        return result


def messages(text: str = "hi") -> list:
    return [{"role": "user", "content": text}]


def chat_is_answered_and_charged_exactly(check: Check) -> None:
    create = check.openai.chat.completions.with_raw_response.create
    raw = check.charged(COST, lambda: create(model="fast", messages=messages(), max_tokens=100))
    answer = raw.parse()
    assert answer.choices[0].message.content == "".join(TEXT)
    assert answer.usage.total_tokens == INPUT + OUTPUT
    assert raw.headers["x-earmark-lease"]
    assert raw.headers["x-earmark-cost"] == str(COST), raw.headers
    assert "openai-organization" not in raw.headers
    assert json.loads(raw.text if isinstance(raw.text, str) else raw.text())["unknown"] == [1]
    sent = Upstream.seen[-1]
    assert "unused" not in json.dumps(sent["headers"]), "the client's key went upstream"


def tools_pass_through(check: Check) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    answer = check.charged(
        COST, lambda: check.openai.chat.completions.create(model="fast", messages=messages(), tools=[tool])
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "f"
    tool = {"name": "f", "input_schema": {"type": "object"}}
    answer = check.anthropic.messages.create(model="claude", max_tokens=50, messages=messages(), tools=[tool])
    assert answer.content[0].type == "tool_use"


def a_missing_cap_is_inserted(check: Check) -> None:
    check.openai.chat.completions.create(model="fast", messages=messages())
    assert Upstream.seen[-1]["body"]["max_completion_tokens"] == 200
    check.openai.responses.create(model="fast", input="hi")
    assert Upstream.seen[-1]["body"]["max_output_tokens"] == 200


def a_stream_is_charged_exactly_and_hides_the_usage_chunk(check: Check) -> None:
    def read(**options) -> list:
        stream = check.openai.chat.completions.create(
            model="fast", messages=messages(), max_tokens=100, stream=True, **options
        )
        return list(stream)

    chunks = check.charged(COST, read)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "".join(TEXT)
    assert all(chunk.usage is None for chunk in chunks)
    assert Upstream.seen[-1]["body"]["stream_options"] == {"include_usage": True}
    asked = check.charged(COST, lambda: read(stream_options={"include_usage": True}))
    assert asked[-1].choices == []
    assert asked[-1].usage.total_tokens == INPUT + OUTPUT


def cached_tokens_are_priced_as_cached(check: Check) -> None:
    create = check.openai.chat.completions.create
    check.charged(COST - 5, lambda: create(model="cached", messages=messages(), max_tokens=100))


def a_call_without_usage_is_charged_its_bound(check: Check) -> None:
    create = check.openai.chat.completions.create
    before = check.balance()
    list(create(model="no-usage", messages=messages(), max_tokens=100, stream=True))
    charged = before - check.balance()
    assert charged > 10 * 100 + 512, charged


def responses_completions_and_embeddings_are_served(check: Check) -> None:
    answer = check.charged(COST, lambda: check.openai.responses.create(model="fast", input="hi", max_output_tokens=100))
    assert answer.output_text == "".join(TEXT)
    events = check.charged(
        COST, lambda: list(check.openai.responses.create(model="fast", input="hi", max_output_tokens=100, stream=True))
    )
    assert events[-1].type == "response.completed"
    answer = check.charged(COST, lambda: check.openai.completions.create(model="fast", prompt="hi", max_tokens=100))
    assert answer.choices[0].text == "".join(TEXT)
    answer = check.charged(INPUT, lambda: check.openai.embeddings.create(model="fast", input="hi"))
    assert list(answer.data[0].embedding) == [0.5, 0.25]


def models_are_those_of_the_configuration(check: Check) -> None:
    names = {model.id for model in check.openai.models.list()}
    assert {"fast", "claude"} <= names, names


def messages_are_answered_streamed_and_counted(check: Check) -> None:
    # 10 fresh, 15 read from the cache, 5 written to it.
    cost = 10 + 8 + 5 + 10 * OUTPUT
    create = check.anthropic.messages.create
    answer = check.charged(cost, lambda: create(model="claude", max_tokens=50, messages=messages()))
    assert answer.content[0].text == "".join(TEXT)

    def read() -> str:
        with check.anthropic.messages.stream(model="claude", max_tokens=50, messages=messages()) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens == OUTPUT
            return text

    assert check.charged(cost, read) == "".join(TEXT)
    count = check.anthropic.messages.count_tokens
    assert check.charged(0, lambda: count(model="claude", messages=messages())).input_tokens == INPUT


def raised(kind: type, call) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind}")


def errors_are_those_that_each_sdk_knows(check: Check) -> None:
    create, ask = check.openai.chat.completions.create, check.anthropic.messages.create
    before, sent = check.balance(), len(Upstream.seen)
    error = raised(openai.NotFoundError, lambda: create(model="gpt-9", messages=messages()))
    assert (error.code, error.param) == ("model_not_found", "model")
    raised(anthropic.NotFoundError, lambda: ask(model="gpt-9", max_tokens=5, messages=messages()))
    error = raised(
        openai.BadRequestError,
        lambda: check.openai.responses.create(model="fast", input="hi", previous_response_id="resp_1"),
    )
    assert error.param == "previous_response_id", error
    raised(openai.BadRequestError, lambda: create(model="fast", messages=messages(), service_tier="priority"))
    raised(
        anthropic.BadRequestError,
        lambda: ask(model="claude", max_tokens=5, messages=messages(),
                    tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    )
    error = raised(openai.BadRequestError, lambda: create(model="small", messages=messages()))
    assert error.code == "exceeds_capacity"
    error = raised(openai.PermissionDeniedError, lambda: create(model="forbidden", messages=messages()))
    assert "plan" in str(error)
    raised(openai.NotFoundError, lambda: check.openai.files.list())
    assert len(Upstream.seen) == sent, "a refused call went upstream"
    assert check.balance() == before
    # The upstream's own errors pass, and cost nothing.
    check.charged(0, lambda: raised(openai.BadRequestError, lambda: create(model="bad", messages=messages())))


def an_outage_of_the_provider_charges_nobody(check: Check) -> None:
    Upstream.failures = 1
    create = check.openai.with_options(max_retries=2).chat.completions.create
    sent = len(Upstream.seen)
    check.charged(COST, lambda: create(model="fails", messages=messages()))
    assert len(Upstream.seen) == sent + 2


def a_rate_limit_is_waited_for(check: Check) -> None:
    create = check.openai.with_options(max_retries=5).chat.completions.create
    for _ in range(3):
        create(model="slow", messages=messages(), max_tokens=5)
    error = raised(
        openai.RateLimitError, lambda: [check.openai.chat.completions.create(model="slow", messages=messages()) for _ in range(2)]
    )
    assert error.response.headers["x-earmark-limited-by"] == "slow:rps"
    assert int(error.response.headers["retry-after-ms"]) <= 1000


def a_client_that_disconnects_does_not_get_a_free_call(check: Check) -> None:
    def read_one() -> None:
        stream = check.openai.chat.completions.create(model="fast", messages=messages(), max_tokens=100, stream=True)
        next(iter(stream))
        stream.close()

    check.charged(COST, read_one)


def the_sdks_for_node_work_too(check: Check) -> None:
    script = str(Path(__file__).with_suffix(".mjs"))
    anthropic_cost = 10 + 8 + 5 + 10 * OUTPUT
    check.charged(
        2 * COST + anthropic_cost,
        lambda: subprocess.run(["node", script, check.gateway, check.node_packages], check=True, timeout=60),
    )


def credit_denials_are_not_retried(check: Check) -> None:
    left = check.balance()
    check.http("POST", "/v1/write", {"namespace": "default", "vault": "main", "client_id": "test", "sequence": 3,
                                     "operations": [{"retire": {"account": "acme", "asset": "usd", "amount": str(left)}}]})
    sent = len(Upstream.seen)
    start = time.monotonic()
    patient = check.openai.with_options(max_retries=5)
    error = raised(openai.RateLimitError, lambda: patient.chat.completions.create(model="fast", messages=messages()))
    assert error.code == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"
    ask = check.anthropic.with_options(max_retries=5).messages.create
    error = raised(anthropic.APIStatusError, lambda: ask(model="claude", max_tokens=5, messages=messages()))
    assert error.status_code == 402
    assert error.body["error"]["type"] == "billing_error"
    # Six attempts would take more than a second of backoff.
    assert time.monotonic() - start < 1.0
    assert len(Upstream.seen) == sent


CLAIMS = [
    chat_is_answered_and_charged_exactly,
    tools_pass_through,
    a_missing_cap_is_inserted,
    a_stream_is_charged_exactly_and_hides_the_usage_chunk,
    cached_tokens_are_priced_as_cached,
    a_call_without_usage_is_charged_its_bound,
    responses_completions_and_embeddings_are_served,
    models_are_those_of_the_configuration,
    messages_are_answered_streamed_and_counted,
    errors_are_those_that_each_sdk_knows,
    an_outage_of_the_provider_charges_nobody,
    a_rate_limit_is_waited_for,
    a_client_that_disconnects_does_not_get_a_free_call,
    the_sdks_for_node_work_too,
    credit_denials_are_not_retried,
]


def configuration(upstream: str) -> str:
    text = f"""
listen = "127.0.0.1:0"
[[upstreams]]
name = "openai"
api = "openai"
base_url = "{upstream}/v1"
[[upstreams]]
name = "anthropic"
api = "anthropic"
base_url = "{upstream}"
[[models]]
name = "claude"
targets = ["anthropic/claude"]
max_output_tokens = 200
"""
    for model in MODELS:
        text += f'[[models]]\nname = "{model}"\ntargets = ["openai/{model}"]\nmax_output_tokens = 200\n'
    return text


def start(command: list[str]) -> tuple[subprocess.Popen, str]:
    """Starts a program, and returns the URL that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        found = [word.rstrip(".,") for word in line.split() if word.startswith("http://")]
        if found:
            # Drains the rest, because a full pipe would stop the program.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, found[0]
    raise AssertionError(f"{command} ended without a URL")


def main(earmark: str, node_packages: str) -> None:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    upstream.daemon_threads = True
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            server, server_url = start([earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"])
            processes.append(server)
            config = Path(folder) / "gateway.toml"
            config.write_text(configuration(f"http://127.0.0.1:{upstream.server_port}"))
            calls = str(Path(folder) / "calls")
            gateway, gateway_url = start(
                [earmark, "gateway", "--config", str(config), "--server", server_url, "--calls", calls,
                 "--log-level", "error"]
            )
            processes.append(gateway)
            check = Check(server_url, gateway_url, node_packages)
            check.set_up()
            for claim in CLAIMS:
                claim(check)
                print(f"  {claim.__name__}")
            assert gateway.poll() is None, "the gateway ended"
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
