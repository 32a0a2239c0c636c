"""Every connection of a gateway is cut at every step of a call, and the gateway is killed there with SIGKILL.

    python gateway_cuts.py EARMARK [ROUNDS]

After recovery each call is charged exactly once: never less than the upstream generated, never more than the bound.
No slot stays taken. A gateway reaches its server through a proxy that stops, cuts and delays requests. Calls at different
steps run at the same time, each with an account and a slot of its own. ROUNDS is the number of kills at random moments.
"""

import http.client
import itertools
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from gateway_processes import Server, credit_limit, slots, start

CREDIT = 10_000
INPUT, OUTPUT_OF_FRAME = 30, 5
# Seconds until the limits of a call that nobody settles charge its bound. The gateway renews every second.
LOST_SECONDS = 5
# Kills at random moments, half of them with the loss of the folder, and the calls of each.
ROUNDS, CALLS_OF_ROUND = 6, 12
# Seconds in which Earmark is out of reach after its connections were cut.
OUTAGE = 0.3
# Minor units: a token of input costs 1, of output 10.
POLICY = """
[[rules]]
name   = "kept"
when   = 'alias != "lost"'
limits = [ { key = "usd:{call}", amount = "cost" }, { key = "slot:{call}", amount = "requests" } ]

[[rules]]
name   = "lost"
when   = 'alias == "lost"'
limits = [ { key = "charge:{call}", amount = "cost" }, { key = "lost:{call}", amount = "requests" } ]

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
# The step of a request to Earmark. Calls and completes that wait share a request.
STEP_OF_PATH = {"/v1/calls": "calls", "/v1/calls/batch": "calls", "/v1/calls/extend": "extend",
                "/v1/calls/complete": "complete", "/v1/calls/complete/batch": "complete"}


class Call:
    """A streamed call, and the action at one of its steps. Proxy and upstream ask it at each step.

    They find it by its name, which every request of the call carries. While one script was shared by all calls, the
    upstream of a call whose gateway was killed during the pause after `frame:0` went on with `frame:1` of the next call:
    it killed the next gateway before that call was sent, and the run ended with `killed at frame:1: charged 0`.
    """

    numbers = itertools.count()
    by_name: dict[str, "Call"] = {}

    def __init__(self, model: str, step: str = "", action: "Callable[[Call], object]" = lambda _: None) -> None:
        self.model, self.step, self.action = model, step, action
        self.name = f"c{next(Call.numbers):04}"
        self.reached: list[str] = []
        self.is_renewed = threading.Event()
        self.generated = 0
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": self.name}]}
        self.body = json.dumps(body).encode()
        # The most that it may cost: its bytes, the overhead, and 100 tokens of output.
        self.bound = len(self.body) + 512 + 10 * 100
        Call.by_name[self.name] = self

    def at(self, step: str) -> bool:
        """Returns whether the connection is cut here."""
        self.reached.append(step)
        is_cut = step == self.step and self.action(self) == CUT
        if step == "extend:after":
            self.is_renewed.set()
        return is_cut

    def is_slow(self) -> bool:
        """Whether the upstream pauses after the first frame until the call is renewed."""
        return self.step.startswith("extend")


def cut(call: Call) -> str:
    """Cuts the connection, once."""
    call.step = ""
    return CUT


class Gate:
    """Holds calls at their steps until it is opened, and then cuts them off."""

    def __init__(self) -> None:
        self.arrived: set[str] = set()
        self.opened = threading.Event()

    def hold(self, call: Call) -> str:
        self.arrived.add(call.name)
        assert self.opened.wait(60)
        return CUT


class Upstream(socket.socket):
    """A provider that streams frame by frame, and counts what it has generated."""

    def __init__(self) -> None:
        super().__init__()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(("127.0.0.1", 0))
        self.listen(64)
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
        call = Call.by_name[json.loads(body)["messages"][0]["content"]]
        # Behind a whole answer the gateway would send another call to a connection that is held there.
        is_slow, more = call.is_slow(), b"connection: close\r\n" if call.step == "end" else b""
        if call.at("request"):
            return False
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        connection.sendall(head + more + b"\r\n")
        if call.at("head"):
            return False
        for number, frame in enumerate(FRAMES):
            if number < len(CONTENT):
                call.generated = INPUT + 10 * OUTPUT_OF_FRAME * (number + 1)
            connection.sendall(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
            if call.at(f"frame:{number}"):
                return False
            if number == 0 and is_slow:
                call.is_renewed.wait(20)
            time.sleep(0.005)
        connection.sendall(b"0\r\n\r\n")
        return not call.at("end")


class Handler(BaseHTTPRequestHandler):
    """A connection between a gateway and its server."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_args) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        name, calls = STEP_OF_PATH.get(self.path), []
        if name:
            parsed = json.loads(body)
            calls = [Call.by_name[one["attributes"]["call"]] for one in parsed.get("requests", [parsed])]
        if time.monotonic() < self.server.is_out_until or any([call.at(f"{name}:before") for call in calls]):
            return self.cut()
        server = http.client.HTTPConnection(self.server.target, timeout=30)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection")}
        server.request(self.command, self.path, body, {**headers, "host": "localhost"})
        answer = server.getresponse()
        text = answer.read()
        server.close()
        if any([call.at(f"{name}:after") for call in calls]):
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


class Proxy(ThreadingHTTPServer):
    """Between a gateway and its server."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server_url: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = urlsplit(server_url).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.connections: set[socket.socket] = set()
        self.is_out_until = 0.0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        """A gateway that was killed takes no answer."""

    def cut_all(self) -> None:
        """Cuts every connection. For a moment the server is out of reach."""
        self.is_out_until = time.monotonic() + OUTAGE
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Gateway:
    """A gateway that is killed and starts again, with a folder and a proxy of its own."""

    numbers = itertools.count()

    def __init__(self, check: "Check") -> None:
        self.proxy = Proxy(check.server.url)
        self.folder = check.folder / f"calls-{next(Gateway.numbers)}"
        self.command = [check.earmark, "gateway", "--config", str(check.config), "--server", self.proxy.url,
                        "--calls", str(self.folder), "--log-level", "off"]
        self.process: subprocess.Popen | None = None
        check.gateways.append(self)
        self.start()

    def start(self) -> None:
        self.process, url, _ = start(self.command)
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self.address = (parts.hostname, parts.port)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process:
            process.kill()
            process.wait()

    def call(self, call: Call, frames: int | None = None) -> bytes:
        """Streams a call, and leaves after this number of frames. Returns the bytes that came."""
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                f"x-earmark-attributes: call={call.name}\r\ncontent-length: {len(call.body)}\r\n\r\n")
        read = b""
        try:
            with socket.create_connection(self.address, timeout=30) as connection:
                connection.sendall(head.encode() + call.body)
                while frames is None or read.count(b"data: ") < frames:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    read += piece
        except OSError:
            pass
        return read

    def call_all(self, calls: list[Call]) -> list[bytes]:
        """Streams calls at the same time."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(self.call, calls))

    def kill_at_steps(self, calls: list[Call], gate: Gate) -> None:
        """Kills the gateway once each call is held at its step.

        A held request to Earmark keeps others of its kind waiting, so calls start one by one, with the last step first.
        """
        clients = [threading.Thread(target=self.call, args=(call,), daemon=True) for call in reversed(calls)]
        for client, call in zip(clients, reversed(calls), strict=True):
            client.start()
            until(lambda: call.name in gate.arrived, lambda: f"{call.step} was not reached, {call.reached} were")
        self.kill()
        for call in calls:
            call.step = ""
        gate.opened.set()
        for client in clients:
            client.join(30)


class Check:
    """A server that stays, and gateways that come and go."""

    def __init__(self, earmark: str, folder: Path, rounds: int) -> None:
        self.earmark, self.folder, self.rounds = earmark, folder, rounds
        self.gateways: list[Gateway] = []
        server = [earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "error"]
        self.server_process, url, _ = start(server)
        self.server = Server(url)
        self.config = folder / "gateway.toml"
        url = Upstream().url
        text = 'listen = "127.0.0.1:0"\nrenew_seconds = 1\nbody_timeout_seconds = 5\n'
        for name in ("drain", "cancel"):
            text += f'[[upstreams]]\nname = "{name}"\napi = "openai"\nbase_url = "{url}/v1"\ndisconnect = "{name}"\n'
            # Cuts are no outage here: each call must reach the upstream.
            text += "circuit_failures = 1000\n"
        for name, upstream in (("kept", "drain"), ("lost", "drain"), ("cancelled", "cancel")):
            text += f'[[models]]\nname = "{name}"\ntargets = ["{upstream}/{name}"]\nmax_output_tokens = 100\n'
        self.config.write_text(text)

    def set_up(self) -> None:
        for template in (
            credit_limit("usd:{call}", 600, account="{call}"),
            credit_limit("charge:{call}", LOST_SECONDS, "charge", account="{call}"),
            slots("slot:{call}", 1),
            slots("lost:{call}", 1, LOST_SECONDS),
        ):
            self.server.http("PUT", "/v1/admin/templates", template)
        self.server.http("PUT", "/v1/admin/policy", {"policy": POLICY})

    def calls(self, model: str, steps: list[str], action: Callable[[Call], object]) -> list[Call]:
        """A call for each step, with credit of its own."""
        calls = [Call(model, step, action) for step in steps]
        for call in calls:
            self.server.open_account(CREDIT, call.name)
        return calls

    def charged(self, call: Call, allowed: set[int], what: str) -> None:
        """Checks what a call is charged, once nothing is held for it and its slot is free."""
        slot = f"{'lost' if call.model == 'lost' else 'slot'}:{call.name}"
        found = CREDIT - self.server.balance(slot, 30, call.name)
        assert found in allowed, f"{what}: charged {found}, allowed {sorted(allowed)}, reached {call.reached}"
        assert call.generated <= found, f"{what}: generated {call.generated}, charged {found}"

    def stop(self) -> None:
        for gateway in self.gateways:
            gateway.kill()
        self.server_process.kill()
        self.server_process.wait()


def is_whole(answer: bytes) -> bool:
    return answer.endswith(b"0\r\n\r\n")


def until(is_so: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


def the_gateway_is_killed_at_every_step(check: Check) -> None:
    gateway, gate = Gateway(check), Gate()
    calls = check.calls("kept", STEPS, gate.hold)
    gateway.kill_at_steps(calls, gate)
    gateway.start()
    for step, call in zip(STEPS, calls, strict=True):
        # Before the upstream has the request nothing is charged; the exact usage once the stream has ended.
        is_sent = step not in ("calls:before", "calls:after")
        has_usage = step in ("complete:before", "complete:after")
        may_have_usage = step in (FRAME_STEPS[-1], "end")
        allowed = {COST} if has_usage else {COST, call.bound} if may_have_usage else {call.bound} if is_sent else {0}
        check.charged(call, allowed, f"killed at {step}")


def the_folder_is_lost_at_every_step(check: Check) -> None:
    gateway, gate = Gateway(check), Gate()
    calls = check.calls("lost", STEPS, gate.hold)
    gateway.kill_at_steps(calls, gate)
    shutil.rmtree(gateway.folder)
    gateway.start()
    for step, call in zip(STEPS, calls, strict=True):
        # A call that the server never saw costs nothing, and a settled one stays settled.
        allowed = {0} if step == "calls:before" else {COST} if step == "complete:after" else {call.bound}
        check.charged(call, allowed | ({COST} if step == "end" else set()), f"folder lost at {step}")


def the_gateway_is_killed_at_random_moments(check: Check) -> None:
    """Nothing waits at a step here, so that a kill meets writes and answers that are under way."""
    seed = random.randrange(1 << 32)
    dice, calls = random.Random(seed), []
    for number in range(check.rounds):
        model = "lost" if number % 2 else "kept"
        gateway = Gateway(check)
        clients = []
        for call in check.calls(model, [""] * CALLS_OF_ROUND, lambda _: None):
            client = threading.Timer(dice.uniform(0, 0.1), gateway.call, (call,))
            client.start()
            clients.append(client)
            calls.append(call)
        time.sleep(dice.uniform(0.02, 0.2))
        gateway.kill()
        for client in clients:
            client.join(30)
        if model == "lost":
            shutil.rmtree(gateway.folder)
        gateway.start()
    for call in calls:
        is_free = "request" not in call.reached
        check.charged(call, {COST, call.bound} | ({0} if is_free else set()), f"killed at random, seed {seed}")


def the_connection_to_earmark_is_cut_at_every_step_and_frame(check: Check) -> None:
    gateway = Gateway(check)

    def cut_all(call: Call) -> None:
        call.step = ""
        gateway.proxy.cut_all()

    calls = check.calls("kept", EARMARK_STEPS, cut) + check.calls("kept", ["request", "head", *FRAME_STEPS, "end"], cut_all)
    steps = [call.step for call in calls]
    for step, call, answer in zip(steps, calls, gateway.call_all(calls), strict=True):
        assert is_whole(answer), f"Earmark cut at {step}: {answer!r}, reached {call.reached}"
        check.charged(call, {COST}, f"Earmark cut at {step}")
        assert call.step == "", f"{step} was not reached"


def the_upstream_is_cut_at_every_step(check: Check) -> None:
    gateway = Gateway(check)
    calls = check.calls("kept", ["request", "head", *FRAME_STEPS, "end"], cut)
    steps = [call.step for call in calls]
    for step, call, answer in zip(steps, calls, gateway.call_all(calls), strict=True):
        has_usage = step in (FRAME_STEPS[-1], "end")
        assert is_whole(answer) == (step == "end") or answer.startswith(b"HTTP/1.1 502"), f"cut at {step}: {answer!r}"
        check.charged(call, {COST if has_usage else call.bound}, f"upstream cut at {step}")


def the_client_leaves_at_every_frame(check: Check) -> None:
    gateway, leavers = Gateway(check), []
    for model in ("kept", "cancelled"):
        leavers += [(call, frames) for frames, call in enumerate(check.calls(model, [""] * len(FRAMES), lambda _: None))]
    for call, frames in leavers:
        if frames == 0:
            # It leaves before the first frame.
            call.step, call.action = "head", lambda _: time.sleep(0.2)
    with ThreadPoolExecutor(len(leavers)) as pool:
        list(pool.map(lambda leaver: gateway.call(*leaver), leavers))
    for call, frames in leavers:
        allowed = {COST} if call.model == "kept" else {COST, call.bound}
        # Nothing is charged if the gateway noticed before it sent the call.
        is_free = frames == 0 and "request" not in call.reached
        check.charged(call, allowed | ({0} if is_free else set()), f"{call.model} left after {frames}")


def a_reserve_that_arrives_after_the_restart_is_released(check: Check) -> None:
    """A gateway dies while its reserve is on the way. The next one must not leave it to its timeout."""
    gateway = Gateway(check)
    killed, released = threading.Event(), threading.Event()

    def delay(call: Call) -> None:
        call.step = ""
        gateway.kill()
        killed.set()
        assert released.wait(30)

    [call] = check.calls("kept", ["calls:before"], delay)
    threading.Thread(target=gateway.call, args=(call,), daemon=True).start()
    assert killed.wait(30)
    gateway.start()
    until(lambda: "complete:after" in call.reached, lambda: "the next gateway did not release the call")
    released.set()
    until(lambda: "calls:after" in call.reached, lambda: "the late reserve did not arrive")
    check.charged(call, {0}, "a late reserve")


# At the same time, because they wait for timeouts most of the time.
CLAIMS = [
    the_gateway_is_killed_at_every_step,
    the_folder_is_lost_at_every_step,
    the_gateway_is_killed_at_random_moments,
    the_connection_to_earmark_is_cut_at_every_step_and_frame,
    the_upstream_is_cut_at_every_step,
    the_client_leaves_at_every_frame,
    a_reserve_that_arrives_after_the_restart_is_released,
]


def main(earmark: str, rounds: str = str(ROUNDS)) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check = Check(earmark, Path(folder), int(rounds))
        try:
            check.set_up()
            with ThreadPoolExecutor(len(CLAIMS)) as pool:
                running = {pool.submit(claim, check): claim for claim in CLAIMS}
                for claim in as_completed(running):
                    claim.result()
                    print(f"  {running[claim].__name__}")
        finally:
            check.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
