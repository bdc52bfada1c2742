"""A small network in a file, a server around it, and a client of that."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serving.served import server, write_network


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("served") / "small.penstock")


@pytest.fixture(scope="module")
def running(network: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with server(network, options=("--target-ms", "50", "--body-seconds", "1.5")) as found:
        yield found


@pytest.fixture(scope="module")
def address(running: tuple[str, subprocess.Popen[str]]) -> str:
    return running[0]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    httpx = pytest.importorskip("httpx")
    with httpx.Client(base_url=address, timeout=30) as found:
        yield found
