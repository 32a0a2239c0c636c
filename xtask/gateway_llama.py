"""A gateway before llama.cpp's server for Python, which nobody here wrote.

    python gateway_llama.py EARMARK LLAMA_PYTHON

LLAMA_PYTHON has llama-cpp-python[server] and gguf. The model is made here. Streams of this server never report usage.
"""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai

from gateway_processes import Server, credit_limit, slots, start

POLICY = """
[[rules]]
name   = "all"
limits = [ { key = "usd", amount = "cost" }, { key = "model:slots", amount = "requests" } ]

[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
output = 10_000_000
"""
CAP = 40
MESSAGES = [{"role": "user", "content": "hi"}]


class Check:
    def __init__(self, server: str, gateway: str) -> None:
        self.server, self.gateway = Server(server), gateway
        self.openai = openai.OpenAI(base_url=f"{gateway}/v1", api_key="unused", max_retries=0)
        self.create = self.openai.chat.completions.create

    def charged(self, call) -> tuple[int, object]:
        before = self.server.balance()
        result = call()
        return before - self.server.balance(), result

    def settled(self, by: str) -> int:
        with urllib.request.urlopen(f"{self.gateway}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        series = f'earmark_gateway_settled_total{{by="{by}"}} '
        return next(int(line.removeprefix(series)) for line in lines if line.startswith(series))


def an_answer_is_charged_exactly(check: Check) -> None:
    charged, answer = check.charged(lambda: check.create(model="tiny", messages=MESSAGES, max_tokens=10))
    usage = answer.usage
    assert usage.completion_tokens <= 10
    assert charged == usage.prompt_tokens + 10 * usage.completion_tokens, (charged, usage)


def a_cap_that_the_server_ignores_is_sent_as_one_that_it_obeys(check: Check) -> None:
    _, answer = check.charged(lambda: check.create(model="tiny", messages=MESSAGES, max_completion_tokens=3))
    assert answer.usage.completion_tokens <= 3, answer.usage
    _, answer = check.charged(lambda: check.create(model="tiny", messages=MESSAGES))
    assert answer.usage.completion_tokens <= CAP, answer.usage


def a_stream_pays_its_bound_and_the_metric_says_so(check: Check) -> None:
    before = check.settled("bound")
    stream = lambda: list(check.create(model="tiny", messages=MESSAGES, max_tokens=10, stream=True))
    charged, chunks = check.charged(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert 10 * 10 + 512 < charged < 10 * 10 + 512 + 300, charged
    assert check.settled("bound") == before + 1


def a_client_that_leaves_pays_its_bound(check: Check) -> None:
    def leave() -> None:
        stream = check.create(model="tiny", messages=MESSAGES, max_tokens=CAP, stream=True)
        next(iter(stream))
        stream.close()

    charged, _ = check.charged(leave)
    assert 10 * CAP + 512 < charged < 10 * CAP + 512 + 300, charged


def a_refusal_of_the_server_costs_nothing(check: Check) -> None:
    def refused() -> None:
        try:
            check.create(model="tiny", messages=[{"role": "user", "content": "x" * 5_000}], max_tokens=5)
        except openai.APIStatusError as error:
            assert error.status_code >= 400
            return
        raise AssertionError("a prompt beyond the context was answered")

    charged, _ = check.charged(refused)
    assert charged == 0, charged


CLAIMS = [
    an_answer_is_charged_exactly,
    a_cap_that_the_server_ignores_is_sent_as_one_that_it_obeys,
    a_stream_pays_its_bound_and_the_metric_says_so,
    a_client_that_leaves_pays_its_bound,
    a_refusal_of_the_server_costs_nothing,
]


def start_llama(python: str, folder: Path) -> tuple[subprocess.Popen, str]:
    model = folder / "tiny.gguf"
    script = str(Path(__file__).with_name("gateway_llama_model.py"))
    subprocess.run([python, "-B", script, str(model)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
               "--n_ctx", "512"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, end = f"http://127.0.0.1:{port}/v1", time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=5).close()
            return process, url
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, "the server of llama.cpp ended"
            assert time.monotonic() < end, "the server of llama.cpp does not answer"
            time.sleep(0.2)


def main(earmark: str, llama_python: str) -> None:
    processes = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            llama, upstream = start_llama(llama_python, folder)
            processes.append(llama)
            server, server_url, _ = start(
                [earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"]
            )
            processes.append(server)
            config = folder / "gateway.toml"
            config.write_text(
                f'listen = "127.0.0.1:0"\n[[upstreams]]\nname = "llama"\napi = "openai"\nbase_url = "{upstream}"\n'
                f'cap_field = "max_tokens"\n[[models]]\nname = "tiny"\ntargets = ["llama/tiny"]\nmax_output_tokens = {CAP}\n'
            )
            command = [earmark, "gateway", "--config", str(config), "--server", server_url, "--calls",
                       str(folder / "calls"), "--log-level", "error"]
            gateway, gateway_url, _ = start(command)
            processes.append(gateway)
            check = Check(server_url, gateway_url)
            check.server.open_account(1_000_000)
            check.server.put_limits(credit_limit("usd", 600), slots("model:slots", 1))
            check.server.http("PUT", "/v1/admin/policy", {"policy": POLICY})
            for claim in CLAIMS:
                claim(check)
                print(f"  {claim.__name__}")
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
