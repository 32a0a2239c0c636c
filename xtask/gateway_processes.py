"""Starts servers and gateways for the scripts that check the gateway, and asks a server for what was charged."""

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path


def start(command: list[str], log: Path | None = None, **env: str) -> tuple[subprocess.Popen, str, str]:
    """Starts a program with its log in a file, and returns the URL that it prints, and the key before it."""
    process, urls, key = start_with_urls(command, 1, log, **env)
    return process, urls[0], key


def start_with_urls(
    command: list[str], count: int, log: Path | None = None, **env: str
) -> tuple[subprocess.Popen, list[str], str]:
    """Starts a program that prints this number of URLs."""
    stderr = None if log is None else log.open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **env})
    assert process.stdout is not None
    key, urls = "", []
    for line in process.stdout:
        if line.startswith("key:"):
            key = line.split()[1]
        found = [word for word in line.split() if word.startswith("http://")]
        if "listens on" in line and found:
            urls.append(found[0])
        if len(urls) == count:
            # Drains the rest, because a full pipe would stop the program.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, urls, key
    raise AssertionError(f"{command} ended without its URLs: {urls}")


class Server:
    """An open server with accounts in one vault, as its HTTP API shows it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def http(self, method: str, path: str, body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error
        assert "error" not in found or not found["error"], found
        return found

    def open_account(self, credit: int, account: str = "acme") -> None:
        self.write(1, {"open_account": {"account": account, "overdraft": "deny"}},
                   {"issue": {"account": account, "asset": "usd", "amount": str(credit)}}, client=account)

    def write(self, sequence: int, *operations: dict, client: str = "test") -> None:
        self.http("POST", "/v1/write", {"namespace": "default", "vault": "main", "client_id": client,
                                        "sequence": sequence, "operations": list(operations)})

    def put_limits(self, *limits: dict) -> None:
        for limit in limits:
            self.http("PUT", "/v1/admin/limits", limit)

    def balance(self, slots: str = "model:", seconds: float = 15, account: str = "acme") -> int:
        """The balance once every call is settled and no slot with this prefix is taken."""
        end = time.monotonic() + seconds
        while True:
            balances = self.http("GET", f"/v1/vaults/main/accounts/{account}/balances")["balances"]
            usage = self.http("GET", f"/v1/usage?prefix={slots}")["usage"]
            if int(balances[0]["held"]) == 0 and all(limit["reserved"] == 0 for limit in usage):
                return int(balances[0]["available"])
            assert time.monotonic() < end, (balances, usage)
            time.sleep(0.02)


def credit_limit(key: str, timeout_seconds: int, on_timeout: str = "release", account: str = "acme") -> dict:
    return {"key": key, "kind": "credit", "vault": "main", "account": account, "asset": "usd",
            "timeout_seconds": timeout_seconds, "on_timeout": on_timeout}


def slots(key: str, capacity: int, timeout_seconds: int = 600) -> dict:
    return {"key": key, "kind": "concurrency", "capacity": capacity, "timeout_seconds": timeout_seconds}
