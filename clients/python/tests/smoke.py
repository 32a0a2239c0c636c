"""Checks an installed package: `python smoke.py URL`. It runs in an environment with nothing but the package."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import earmark
from earmark import Client, Limiter


def main(url: str) -> None:
    folder = Path(earmark.__file__).parent
    assert folder.parent.name == "site-packages", folder
    assert (folder / "py.typed").exists()
    distribution = importlib.metadata.distribution("earmark")
    assert [name for name in distribution.requires or () if "extra" not in name] == ["httpx<1,>=0.27"]
    assert {point.value for point in distribution.entry_points} == {"earmark.pytest_plugin"}
    with Client(url) as client, Limiter(client) as limiter:
        client.put_limit({"key": "smoke", "kind": "concurrency", "capacity": 1, "timeout_seconds": 60})
        with limiter.acquire({"smoke": 1}, timeout=10) as lease:
            assert lease.complete().reconciled
    print(f"earmark {distribution.version} works in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
