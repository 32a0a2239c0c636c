"""Executes every example of the README, in their order, against a real server."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from upstream import Upstream

import earmark
from earmark import Client
from earmark.pytest_plugin import EarmarkServer

README = Path(__file__).parents[1] / "README.md"
URL = "http://127.0.0.1:7878"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, upstream = EarmarkServer(), Upstream()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{upstream.url}/v1")
    names: dict[str, Any] = {"__name__": "readme"}
    try:
        for number, example in enumerate(examples(), 1):
            exec(compile(example.replace(URL, server.url), f"README example {number}", "exec"), names)
        assert names["answer"].usage.total_tokens > 0
        with Client(server.url) as client:
            assert client.usage("gpt-4o:calls").reserved == 0
            names["test_one_call_at_a_time"](client)
        names["api"].close()
        names["client"].close()
    finally:
        server.stop()
        upstream.close()
    assert len(examples()) == 11
    printed = capsys.readouterr().out
    assert "the call needs more than the capacity of gpt-4o:tpm" in printed
    assert "[('gpt-4o:rpm', True), ('gpt-4o:tpm', False)]" in printed


def test_every_public_name_has_a_docstring() -> None:
    for name in earmark.__all__:
        thing = getattr(earmark, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if inspect.isfunction(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_fixtures_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EARMARK_BIN", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="set EARMARK_BIN to the binary `earmark`"):
        EarmarkServer()


def test_the_fixtures_serve(earmark_server: EarmarkServer, earmark_client: Client) -> None:
    assert earmark_client.options.core.servers.urls == (earmark_server.url,)
