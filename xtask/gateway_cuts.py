"""Every connection of a gateway is cut at every step of a call, and the gateway is killed there with SIGKILL.

    python gateway_cuts.py EARMARK

After recovery each call is charged exactly once: never less than the upstream generated, never more than the bound.
No slot stays taken. The gateway reaches its server through a proxy that stops, cuts and delays requests.
"""

import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from gateway_processes import Server, credit_limit, slots, start

CREDIT = 10_000_000
INPUT, OUTPUT_OF_FRAME = 30, 5
# Minor units: a token of input costs 1, of output 10.
POLICY = """
[[rules]]
name   = "all"
when   = 'alias != "lost"'
limits = [ { key = "usd", amount = "cost" }, { key = "model:slots", amount = "requests" } ]

[[rules]]
name   = "lost"
when   = 'alias == "lost"'
limits = [ { key = "charge:usd", amount = "cost" }, { key = "model:lost", amount = "requests" } ]

[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
output = 10_000_000
"""


def chunk(choices: list, usage: dict | None = None) -> bytes:
    body: dict = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    if usage is not None:
        body["usage"] = usage
    return f"data: {json.dumps(body)}\n\n".encode()


CONTENT = [chunk([{"index": 0, "delta": {"content": part}, "finish_reason": None}]) for part in ("Hel", "lo ", "you")]
OUTPUT = OUTPUT_OF_FRAME * len(CONTENT)
USAGE = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
FRAMES = [*CONTENT, chunk([], USAGE), b"data: [DONE]\n\n"]
COST = INPUT + 10 * OUTPUT

# The steps of a streamed call, in order. The renewal comes after the first frame.
EARMARK_STEPS = ["calls:before", "calls:after", "extend:before", "extend:after", "complete:before", "complete:after"]
FRAME_STEPS = [f"frame:{number}" for number in range(len(FRAMES))]
STEPS = ["calls:before", "calls:after", "request", "head", "frame:0", "extend:before", "extend:after", *FRAME_STEPS[1:],
         "end", "complete:before", "complete:after"]
CUT = "cut"


class Script:
    """The action at one step of the next call. Proxy and upstream ask it at each of their steps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.step: str | None = None
        self.action: Callable[[], object] = lambda: None
        self.reached: list[str] = []
        self.generated = 0
        # The lease of the call. The release of an earlier one is repeated, and is no step of this one.
        self.lease = ""

    def set(self, step: str, action: Callable[[], object]) -> None:
        self.clear()
        self.step, self.action = step, action

    def at(self, step: str) -> bool:
        """Returns whether the connection is cut here. An action is taken once."""
        with self.lock:
            self.reached.append(step)
            is_here, action = step == self.step, self.action
            if is_here:
                self.step = None
        return is_here and action() == CUT


SCRIPT = Script()


class Upstream(socket.socket):
    """A provider that streams frame by frame, and counts what it has generated."""

    def __init__(self) -> None:
        super().__init__()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.url = f"http://127.0.0.1:{self.getsockname()[1]}"
        threading.Thread(target=self.accept_all, daemon=True).start()

    def accept_all(self) -> None:
        while True:
            connection, _ = self.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        try:
            while self.answer_one(connection):
                pass
        except OSError:
            pass
        finally:
            connection.close()

    def answer_one(self, connection: socket.socket) -> bool:
        read = b""
        while b"\r\n\r\n" not in read:
            piece = connection.recv(65536)
            if not piece:
                return False
            read += piece
        head, body = read.split(b"\r\n\r\n", 1)
        length = int(next(line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")))
        while len(body) < length:
            body += connection.recv(65536)
        if SCRIPT.at("request"):
            return False
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if SCRIPT.at("head"):
            return False
        for number, frame in enumerate(FRAMES):
            if number < len(CONTENT):
                SCRIPT.generated = INPUT + 10 * OUTPUT_OF_FRAME * (number + 1)
            connection.sendall(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
            if SCRIPT.at(f"frame:{number}"):
                return False
            # The gateway renews every second.
            time.sleep(1.3 if number == 0 and b"slow" in body else 0.005)
        connection.sendall(b"0\r\n\r\n")
        return not SCRIPT.at("end")


class Proxy(BaseHTTPRequestHandler):
    """Between the gateway and its server."""

    protocol_version = "HTTP/1.1"
    server_url = ""

    def log_message(self, *_args) -> None:
        pass

    def do_POST(self) -> None:
        name = {"/v1/calls": "calls", "/v1/calls/extend": "extend", "/v1/calls/complete": "complete"}.get(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if name:
            lease = json.loads(body)["lease_id"]
            SCRIPT.lease = lease if name == "calls" else SCRIPT.lease
            name = name if lease == SCRIPT.lease else None
        if name and SCRIPT.at(f"{name}:before"):
            return self.cut()
        server = http.client.HTTPConnection(urlsplit(Proxy.server_url).netloc, timeout=30)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection")}
        server.request(self.command, self.path, body, {**headers, "host": "localhost"})
        answer = server.getresponse()
        text = answer.read()
        if name and SCRIPT.at(f"{name}:after"):
            return self.cut()
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address) -> None:
        """A gateway that was killed takes no answer."""


class Check:
    """A server that stays, and gateways that come and go."""

    def __init__(self, earmark: str, folder: Path) -> None:
        self.earmark, self.folder = earmark, folder
        self.process: subprocess.Popen | None = None
        self.address = ("", 0)
        server = [earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "error"]
        self.server_process, Proxy.server_url, _ = start(server)
        self.server = Server(Proxy.server_url)
        proxy = Quiet(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        self.proxy = f"http://127.0.0.1:{proxy.server_port}"
        self.config = folder / "gateway.toml"
        url = Upstream().url
        text = 'listen = "127.0.0.1:0"\nrenew_seconds = 1\nbody_timeout_seconds = 5\n'
        for name in ("drain", "cancel"):
            text += f'[[upstreams]]\nname = "{name}"\napi = "openai"\nbase_url = "{url}/v1"\ndisconnect = "{name}"\n'
            # Cuts are no outage here: each case must reach the upstream.
            text += "circuit_failures = 1000\n"
        for name, upstream in (("fast", "drain"), ("slow", "drain"), ("lost", "drain"), ("cancelled", "cancel")):
            text += f'[[models]]\nname = "{name}"\ntargets = ["{upstream}/{name}"]\nmax_output_tokens = 100\n'
        self.config.write_text(text)

    def set_up(self) -> None:
        self.server.open_account(CREDIT)
        self.server.put_limits(
            credit_limit("usd", 600), credit_limit("charge:usd", 4, "charge"),
            slots("model:slots", 1), slots("model:lost", 1, 4),
        )
        self.server.http("PUT", "/v1/admin/policy", {"policy": POLICY})

    def start_gateway(self) -> None:
        command = [self.earmark, "gateway", "--config", str(self.config), "--server", self.proxy,
                   "--calls", str(self.folder / "calls"), "--log-level", "off"]
        self.process, url, _ = start(command)
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self.address = (parts.hostname, parts.port)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        self.kill()
        self.server_process.kill()
        self.server_process.wait()

    def call(self, model: str, frames: int | None = None) -> bytes:
        """Streams a call, and leaves after this number of frames. Returns the bytes that came."""
        body = request(model)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        read = b""
        try:
            with socket.create_connection(self.address, timeout=30) as connection:
                connection.sendall(head.encode() + body)
                while frames is None or read.count(b"data: ") < frames:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    read += piece
        except OSError:
            pass
        return read


def request(model: str) -> bytes:
    return json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()


def bound(model: str) -> int:
    """The most that a call may cost: its bytes, the overhead, and 100 tokens of output."""
    return len(request(model)) + 512 + 10 * 100


def is_whole(answer: bytes) -> bool:
    return answer.endswith(b"0\r\n\r\n")


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, f"{what}; reached {SCRIPT.reached}"
        time.sleep(0.01)


def charged(check: Check, before: int, allowed: set[int], what: str) -> None:
    found = before - check.server.balance()
    assert found in allowed, f"{what}: charged {found}, allowed {sorted(allowed)}"
    assert found == 0 or SCRIPT.generated <= found, f"{what}: generated {SCRIPT.generated}, charged {found}"


def the_gateway_is_killed_at_every_step(check: Check) -> None:
    for step in STEPS:
        before = check.server.balance()
        SCRIPT.set(step, lambda: check.kill() or CUT)
        check.call("slow")
        until(lambda: check.process is None, f"{step} was not reached")
        generated = SCRIPT.generated
        check.start_gateway()
        # Before the upstream has the request nothing is charged; the exact usage once the terminal event has come.
        is_sent = step not in ("calls:before", "calls:after")
        has_usage = step in ("complete:before", "complete:after")
        may_have_usage = step in (FRAME_STEPS[-1], "end")
        allowed = {COST} if has_usage else {COST, bound("slow")} if may_have_usage else {bound("slow")} if is_sent else {0}
        charged(check, before, allowed, f"killed at {step}, {generated} generated")


def the_connection_to_earmark_is_cut_at_every_step(check: Check) -> None:
    for step in EARMARK_STEPS:
        before = check.server.balance()
        SCRIPT.set(step, lambda: CUT)
        answer = check.call("slow")
        until(lambda: SCRIPT.step is None, f"{step} was not reached")
        assert is_whole(answer), f"cut at {step}: {answer!r}"
        charged(check, before, {COST}, f"Earmark cut at {step}")


def the_upstream_is_cut_at_every_step(check: Check) -> None:
    for step in ["request", "head", *FRAME_STEPS, "end"]:
        before = check.server.balance()
        SCRIPT.set(step, lambda: CUT)
        answer = check.call("fast")
        has_usage = step in (FRAME_STEPS[-1], "end")
        assert is_whole(answer) == (step == "end") or answer.startswith(b"HTTP/1.1 502"), f"cut at {step}: {answer!r}"
        charged(check, before, {COST if has_usage else bound("fast")}, f"upstream cut at {step}")


def the_client_leaves_at_every_frame(check: Check) -> None:
    for model, allowed in (("fast", {COST}), ("cancelled", {COST, bound("cancelled")})):
        for frames in range(1, len(FRAMES)):
            before = check.server.balance()
            SCRIPT.clear()
            check.call(model, frames)
            charged(check, before, allowed, f"{model} left after {frames}")
        before = check.server.balance()
        # It leaves before the first frame.
        SCRIPT.set("head", lambda: time.sleep(0.2))
        check.call(model, 0)
        # Nothing is charged if the gateway noticed before it sent the call.
        charged(check, before, allowed | ({0} if "request" not in SCRIPT.reached else set()), f"{model} left at once")


def a_reserve_that_arrives_after_the_restart_is_released(check: Check) -> None:
    """A gateway dies while its reserve is on the way. The next one must not leave it to its timeout."""
    before = check.server.balance()
    restarted, released = threading.Event(), threading.Event()

    def delay() -> None:
        check.kill()
        restarted.set()
        assert released.wait(30)

    SCRIPT.set("calls:before", delay)
    threading.Thread(target=check.call, args=("fast",), daemon=True).start()
    assert restarted.wait(30)
    check.start_gateway()
    until(lambda: "complete:after" in SCRIPT.reached, "the next gateway did not release the call")
    released.set()
    until(lambda: "calls:after" in SCRIPT.reached, "the late reserve did not arrive")
    charged(check, before, {0}, "a late reserve")


def a_lost_folder_charges_the_bound_by_the_timeout(check: Check) -> None:
    for step in ("calls:after", "head", "frame:1", "complete:before"):
        before = check.server.balance()
        SCRIPT.set(step, lambda: check.kill() or CUT)
        check.call("lost")
        until(lambda: check.process is None, f"{step} was not reached")
        shutil.rmtree(check.folder / "calls")
        check.start_gateway()
        charged(check, before, {bound("lost")}, f"folder lost at {step}")


CLAIMS = [
    the_gateway_is_killed_at_every_step,
    the_connection_to_earmark_is_cut_at_every_step,
    the_upstream_is_cut_at_every_step,
    the_client_leaves_at_every_frame,
    a_reserve_that_arrives_after_the_restart_is_released,
    a_lost_folder_charges_the_bound_by_the_timeout,
]


def main(earmark: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check = Check(earmark, Path(folder))
        try:
            check.set_up()
            check.start_gateway()
            for claim in CLAIMS:
                claim(check)
                print(f"  {claim.__name__}")
        finally:
            check.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
