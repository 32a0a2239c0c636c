"""A real Envoy in front of an upstream, with Earmark behind it. `cargo xtask envoy` runs it.

    python envoy_check.py EARMARK ENVOY CONFIGURATIONS

The configurations are those of docs/envoy.md, with other ports and a key. The first claim that does not hold ends it.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

from gateway_upstream import INPUT, OUTPUT, TEXT, Upstream

SECONDS_MAX = 30
PATH = "/v1/chat/completions"


class SlowUpstream(Upstream):
    """The upstream of the gateway's check, whose streams can be held open."""

    may_end = threading.Event()

    def stream(self, events: list[tuple[str | None, dict | str]]) -> None:
        if self.headers["x-tenant"] in ("leaves", "crash"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            frame = f"data: {json.dumps(events[0][1])}\n\n"
            self.wfile.write(f"{len(frame):x}\r\n{frame}\r\n".encode())
            self.wfile.flush()
            SlowUpstream.may_end.wait(SECONDS_MAX)
            self.wfile.write(b"0\r\n\r\n")
            return None
        return super().stream(events)


class Server(ThreadingHTTPServer):
    """A server that does not complain about connections that Envoy cuts."""

    def handle_error(self, _request, _address) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            raise


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(what: str, check):
    """Polls until the check returns something true."""
    end = time.monotonic() + SECONDS_MAX
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.05)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Earmark:
    """A node with keys, whose limits are those of the documentation."""

    def __init__(self, binary: str, folder: Path, limits: Path) -> None:
        self.binary, self.folder, self.port = binary, folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.context: ssl.SSLContext | None = None
        self.process = self.start("--bootstrap-key")
        self.admin = self.said("key:")
        self.wait()
        self.environment = {**os.environ, "EARMARK_SERVER": self.url, "EARMARK_KEY": self.admin}
        self.command("apply", str(limits))
        self.key = json.loads(self.command("key", "create", "--name", "envoy", "--role", "gateway", "--json"))["key"]

    def start(self, *more: str) -> subprocess.Popen:
        command = [self.binary, "serve", "--data", str(self.folder), "--listen", f"127.0.0.1:{self.port}", *more]
        return subprocess.Popen([*command, "--log-level", "warn"], stdout=subprocess.PIPE, text=True)

    def said(self, name: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(name):
                return line.removeprefix(name).strip()
        raise AssertionError(f"the server did not print {name}")

    def wait(self) -> None:
        def is_ready() -> bool:
            try:
                return urllib.request.urlopen(f"{self.url}/readyz", timeout=1, context=self.context).status == 200
            except OSError:
                return False

        wait_for("the server is not ready", is_ready)

    def command(self, *arguments: str) -> str:
        done = subprocess.run([self.binary, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return done.stdout

    def http(self, method: str, path: str, body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.admin}"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=self.context) as answer:
            return json.load(answer)

    def reserved(self, key: str) -> int:
        return self.http("GET", f"/v1/admin/limits/{key}/usage")["reserved"]

    def settled(self, tenant: str) -> tuple[int, int]:
        """Requests of the last minute and tokens of the day, once no call is open."""
        wait_for("a call is still open", lambda: self.reserved(f"tenant:{tenant}:calls") == 0)
        return self.reserved(f"tenant:{tenant}:rpm"), self.reserved(f"tenant:{tenant}:tpd")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self, *more: str) -> None:
        self.process = self.start(*more)
        self.wait()

    def restart_with_certificates(self, certificates: "Certificates") -> None:
        """Serves over TLS, and lets the certificate of `envoy.mesh.example` act as the key of Envoy."""
        self.kill()
        self.url = f"https://127.0.0.1:{self.port}"
        self.context = ssl.create_default_context(cafile=str(certificates.authority))
        cert, key = certificates.issue("server", "serverAuth", "IP:127.0.0.1")
        bound = f"envoy.mesh.example={self.key.split('_')[1]}"
        flags = ("--tls-cert", cert, "--tls-key", key, "--client-ca", str(certificates.authority))
        self.restart(*flags, "--client-certificate", bound)


class Certificates:
    """An authority, and certificates of it."""

    KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, folder / "ca.pem"
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self.openssl("req", "-x509", *self.KEY, "-subj", "/CN=authority", *usage, "-keyout", "ca.key", "-out", "ca.pem")

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def issue(self, name: str, usage: str, names: str) -> tuple[str, str]:
        """A certificate and its private key."""
        self.openssl("req", *self.KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        extensions = f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage={usage}\nsubjectAltName={names}\n"
        (self.folder / f"{name}.ext").write_text(extensions)
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext")
        self.openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem")
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def changes(self, earmark: Earmark, name: str) -> dict[str, str]:
        """The changes of a configuration whose Envoy presents a certificate for this name, and no key."""
        cert, key = self.issue("client", "clientAuth", f"DNS:{name}")
        files = {"certificate_chain": {"filename": cert}, "private_key": {"filename": key}}
        trusted = {"trusted_ca": {"filename": str(self.authority)}}
        context = {"tls_certificates": [files], "validation_context": trusted}
        kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        config = {"@type": kind, "common_tls_context": context}
        socket_of = {"name": "envoy.transport_sockets.tls", "typed_config": config}
        metadata = f'initial_metadata:\n{" " * 28}- {{ key: authorization, value: "Bearer {earmark.key}" }}\n'
        timeout = "connect_timeout: 0.25s\n"
        return {metadata: "\n", timeout: f"{timeout}      transport_socket: {json.dumps(socket_of)}\n"}


class Envoy:
    """An Envoy with a configuration of the documentation."""

    def __init__(self, binary: str, configuration: Path, folder: Path, earmark: Earmark, upstream: int, **changes) -> None:
        self.port = free_port()
        text = configuration.read_text()
        replaced = {"port_value: 10000": f"port_value: {self.port}", "port_value: 9000": f"port_value: {upstream}",
                    "port_value: 7878": f"port_value: {earmark.port}", "EARMARK_KEY": earmark.key, **changes}
        for old, new in replaced.items():
            assert text.count(old) == 1, (old, text.count(old))
            text = text.replace(old, new)
        file = folder / f"{self.port}.yaml"
        file.write_text(text)
        command = [binary, "-c", str(file), "--use-dynamic-base-id", "--concurrency", "2", "--log-level", "error"]
        self.process = subprocess.Popen(command)
        wait_for("Envoy does not listen", lambda: accepts(self.port))

    def ask(self, tenant: str | None, body: dict | None = None, **headers: str) -> tuple[int, dict, bytes]:
        sent = {"content-type": "application/json", **headers}
        if tenant is not None:
            sent["x-tenant"] = tenant
        data = json.dumps(body or chat()).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{PATH}", data, sent, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def open_stream(self, tenant: str) -> http.client.HTTPConnection:
        """A stream whose first event has arrived, and whose upstream waits."""
        SlowUpstream.may_end.clear()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS_MAX)
        headers = {"content-type": "application/json", "x-tenant": tenant}
        connection.request("POST", PATH, json.dumps(chat(stream=True)), headers)
        assert connection.getresponse().readline().startswith(b"data: ")
        return connection

    def stop(self) -> None:
        assert self.process.poll() is None, "Envoy has ended by itself"
        self.process.terminate()
        self.process.wait(SECONDS_MAX)


def chat(**more: object) -> dict:
    return {"model": "gpt-4o", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}], **more}


def bound(body: dict) -> int:
    return len(json.dumps(body)) + body["max_tokens"]


def a_request_is_admitted_and_counted(envoy: Envoy, earmark: Earmark) -> None:
    status, _headers, body = envoy.ask("acme")
    assert status == 200, body
    assert json.loads(body)["choices"][0]["message"]["content"] == "".join(TEXT)
    assert earmark.reserved("tenant:acme:rpm") == 1


def a_denial_has_a_body_and_headers(envoy: Envoy, earmark: Earmark) -> None:
    small = {"key": "tenant:small:rpm", "kind": "rolling", "capacity": 1, "window_seconds": 600}
    earmark.http("PUT", "/v1/admin/limits", small)
    assert envoy.ask("small")[0] == 200
    seen = len(Upstream.seen)
    status, headers, body = envoy.ask("small")
    assert (status, headers["content-type"]) == (429, "application/json"), (status, headers)
    assert json.loads(body)["limited_by"] == ["tenant:small:rpm"], body
    assert 0 < int(headers["retry-after"]) <= 660, headers
    assert 0 < int(headers["retry-after-ms"]) <= 660_000, headers
    assert len(Upstream.seen) == seen, "a denied request reached the upstream"


def a_value_of_a_client_denies_its_own_request(envoy: Envoy, _earmark: Earmark) -> None:
    status, headers, body = envoy.ask(None)
    assert (status, json.loads(body)["error"]) == (429, "missing_attribute:tenant"), body
    assert headers["x-should-retry"] == "false", headers
    status, _headers, body = envoy.ask("x" * 300)
    assert (status, json.loads(body)["error"]) == (429, "invalid_request"), body


def a_request_id_of_a_client_does_not_share_a_lease(envoy: Envoy, earmark: Earmark) -> None:
    constant = {"x-request-id": "7f9c2ba4-e88f-427d-8b2d-1a2b3c4d5e6f"}
    for _ in range(3):
        assert envoy.ask("constant", **constant)[0] == 200
    assert earmark.reserved("tenant:constant:rpm") == 3


def a_json_answer_settles_its_exact_usage(envoy: Envoy, earmark: Earmark) -> None:
    assert envoy.ask("json")[0] == 200
    assert earmark.settled("json") == (1, INPUT + OUTPUT)


def a_stream_settles_its_exact_usage(envoy: Envoy, earmark: Earmark) -> None:
    status, _headers, body = envoy.ask("sse", chat(stream=True, stream_options={"include_usage": True}))
    assert status == 200, body
    assert body.endswith(b"data: [DONE]\n\n"), body
    assert earmark.settled("sse") == (1, INPUT + OUTPUT)


def an_answer_without_usage_settles_the_bound(envoy: Envoy, earmark: Earmark) -> None:
    body = chat(stream=True)
    assert envoy.ask("no-usage", body)[0] == 200
    assert earmark.settled("no-usage") == (1, bound(body))


def an_error_of_the_upstream_releases_everything(envoy: Envoy, earmark: Earmark) -> None:
    limit = {"key": "bad:tpm", "kind": "rolling", "capacity": 100_000, "window_seconds": 600}
    earmark.http("PUT", "/v1/admin/limits", limit)
    assert envoy.ask("bad", chat(model="bad"))[0] == 400
    assert earmark.settled("bad") == (0, 0)


def a_request_without_a_bound_is_denied(envoy: Envoy, earmark: Earmark) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=SECONDS_MAX)
    headers = {"content-type": "application/json", "x-tenant": "chunked", "transfer-encoding": "chunked"}
    connection.request("POST", PATH, iter([json.dumps(chat()).encode()]), headers, encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, b"earmark_input_tokens_max is required" in answer.read()) == (429, True)
    status, _headers, body = envoy.ask("plain", **{"content-type": "text/plain"})
    assert (status, json.loads(body)["error"]) == (429, "unknown_limit_key:missing:tpm"), body
    assert earmark.reserved("tenant:chunked:rpm") == 0


def a_client_that_disconnects_pays_the_bound(envoy: Envoy, earmark: Earmark) -> None:
    connection = envoy.open_stream("leaves")
    assert earmark.reserved("tenant:leaves:calls") == 1
    connection.close()
    assert earmark.settled("leaves") == (1, bound(chat(stream=True)))
    SlowUpstream.may_end.set()


def a_killed_earmark_denies_and_comes_back_with_what_was_held(envoy: Envoy, earmark: Earmark) -> None:
    connection = envoy.open_stream("crash")
    earmark.kill()
    status, _headers, body = envoy.ask("json")
    assert status == 500, (status, body)
    SlowUpstream.may_end.set()
    connection.close()
    # The end of the stream found no service. Versions before the fix of GHSA-c23c-rp3m-vpg3 could crash here.
    for _ in range(5):
        assert envoy.ask("json")[0] == 500
    assert envoy.process.poll() is None, "Envoy has crashed"
    earmark.restart()
    wait_for("Envoy does not call again", lambda: envoy.ask("back")[0] == 200)
    assert earmark.settled("back")[1] == INPUT + OUTPUT
    assert earmark.reserved("tenant:json:tpd") == INPUT + OUTPUT, "what was settled before is still there"
    held = earmark.reserved("tenant:crash:calls"), earmark.reserved("tenant:crash:tpd")
    assert held == (1, bound(chat(stream=True))), "a lost end stays held until its timeout"


def a_request_passes_without_earmark_only_if_the_failure_mode_says_so(envoy: Envoy, earmark: Earmark) -> None:
    assert envoy.ask("open")[0] == 200
    earmark.kill()
    assert envoy.ask("open")[0] == 200, "failure_mode_deny is false"
    earmark.restart()


def a_certificate_stands_in_for_the_key(envoy: Envoy, earmark: Earmark) -> None:
    assert envoy.ask("mesh")[0] == 200
    assert earmark.reserved("tenant:mesh:rpm") == 1


def a_certificate_without_a_key_is_refused(envoy: Envoy, earmark: Earmark) -> None:
    assert envoy.ask("unbound")[0] == 500
    assert earmark.reserved("tenant:unbound:rpm") == 0


REQUESTS = [
    a_request_is_admitted_and_counted,
    a_denial_has_a_body_and_headers,
    a_value_of_a_client_denies_its_own_request,
    a_request_id_of_a_client_does_not_share_a_lease,
]
TOKENS = [
    a_json_answer_settles_its_exact_usage,
    a_stream_settles_its_exact_usage,
    an_answer_without_usage_settles_the_bound,
    an_error_of_the_upstream_releases_everything,
    a_request_without_a_bound_is_denied,
    a_client_that_disconnects_pays_the_bound,
    a_killed_earmark_denies_and_comes_back_with_what_was_held,
]
OPEN = [a_request_passes_without_earmark_only_if_the_failure_mode_says_so]
BOUND = [a_certificate_stands_in_for_the_key]
UNBOUND = [a_certificate_without_a_key_is_refused]


class Check:
    """Runs an Envoy for some claims, and counts them."""

    def __init__(self, binary: str, configurations: Path, folder: Path, earmark: Earmark, upstream: int) -> None:
        self.binary, self.configurations, self.folder = binary, configurations, folder
        self.earmark, self.upstream, self.held = earmark, upstream, 0

    def claims(self, name: str, claims: list, changes: dict[str, str]) -> None:
        file = self.configurations / f"{name}.yaml"
        envoy = Envoy(self.binary, file, self.folder, self.earmark, self.upstream, **changes)
        try:
            for claim in claims:
                claim(envoy, self.earmark)
                print(f"envoy: {claim.__name__.replace('_', ' ')}", flush=True)
                self.held += 1
            envoy.stop()
        finally:
            envoy.process.kill()

    def certificates(self) -> None:
        certificates = Certificates(self.folder)
        self.earmark.restart_with_certificates(certificates)
        self.claims("requests", BOUND, certificates.changes(self.earmark, "envoy.mesh.example"))
        self.claims("requests", UNBOUND, certificates.changes(self.earmark, "other.example"))


def main() -> None:
    binary, envoy_binary, configurations = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    upstream = Server(("127.0.0.1", 0), SlowUpstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        earmark = Earmark(binary, folder / "data", configurations / "limits.yaml")
        check = Check(envoy_binary, configurations, folder, earmark, upstream.server_address[1])
        try:
            check.claims("requests", REQUESTS, {})
            check.claims("tokens", TOKENS, {})
            check.claims("requests", OPEN, {"failure_mode_deny: true": "failure_mode_deny: false"})
            if shutil.which("openssl"):
                check.certificates()
            else:
                print("envoy: certificates are skipped, because there is no openssl")
        finally:
            earmark.kill()
    print(f"envoy: {check.held} claims hold")


main()
