"""Load for a server on this machine: server processes, and requests from this process over loopback.

Not a benchmark of its own; `serving.py` is.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import uvloop

T = TypeVar("T")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_DENSITY = re.compile(rb'"density": ([\d.]+)')


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on uvloop: the load shares its processors with the server, and should take little."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class Line(asyncio.Protocol):
    """A connection: one request at a time, and its status and body."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.buffer = b""
        self.told_to_close = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is of another class

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self.answer, self.buffer = asyncio.get_running_loop().create_future(), b""
        if self.transport.is_closing():
            self.answer.set_exception(ConnectionError("closed"))
        else:
            self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        said = _LENGTH.search(head)
        if end and said and len(body) >= int(said[1]) and self.answer and not self.answer.done():
            self.told_to_close = b"connection: close" in head.lower()
            self.answer.set_result((int(head.split(b" ", 2)[1]), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer and not self.answer.done():
            self.answer.set_exception(error or ConnectionError("closed"))


@dataclass(frozen=True)
class Reply:
    """due: seconds from the start; latency: milliseconds; status 0: no answer."""

    due: float
    latency: float
    status: int
    density: float


def infer_request(name: str, side: int) -> bytes:
    """The bytes of one binary request."""
    raw = np.random.default_rng(0).standard_normal((1, 3, side, side), np.float32).tobytes()
    tensor: dict[str, Any] = {"name": "images", "datatype": "FP32", "shape": [1, 3, side, side]}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    size = len(header) + len(raw)
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
    )
    return head.encode() + header + raw


class Load:
    """Connections to a server, as many as are needed."""

    def __init__(self, port: int, request: bytes) -> None:
        self.port, self.request = port, request
        self.idle: deque[Line] = deque()
        self.replies: list[Reply] = []
        self.retried = 0

    async def ask(self, due: float, start: float) -> None:
        """One request, its latency from when it was due.

        A kept connection that the server closes before it answers is no fault, and every client tries once
        more on a fresh one; `retried` counts them.
        """
        status, density = 0, 0.0
        try:
            line = self.idle.popleft() if self.idle else None
            kept = line is not None
            try:
                line, status, density = await self._exchange(line)
            except OSError:
                if not kept:
                    raise
                self.retried += 1
                line, status, density = await self._exchange(None)
            if not line.told_to_close:
                self.idle.append(line)
        except OSError:
            pass
        self.replies.append(Reply(due, 1000 * (time.perf_counter() - start - due), status, density))

    async def _exchange(self, line: Line | None) -> tuple[Line, int, float]:
        """Ask on a connection, or on a new one: the connection, the status, and the density."""
        if line is None:
            _, line = await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", self.port)
        status, body = await line.ask(self.request)
        said = _DENSITY.search(body)
        return line, status, float(said[1]) if said else 0.0

    async def run(
        self, phases: list[tuple[float, float]], seed: int = 0, forgive: float = math.inf
    ) -> list[Reply]:
        """Open loop. phases: (seconds, requests a second), one after the other.

        forgive: when this process itself is late by more seconds than this (it was stopped), the schedule
        moves on by as much, and what it missed is not sent all at once.
        """
        rng = random.Random(seed)
        tasks: set[asyncio.Task[None]] = set()
        start, due, end = time.perf_counter(), 0.0, 0.0
        for seconds, rate in phases:
            end += seconds
            while True:
                due += rng.expovariate(rate)
                if due >= end:
                    due = end
                    break
                await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
                late = time.perf_counter() - start - due
                start += late if late > forgive else 0.0
                task = asyncio.create_task(self.ask(due, start))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=60)
        for line in self.idle:
            line.transport.close()
        return self.replies

    async def closed_loop(self, connections: int, count: int) -> float:
        """Milliseconds from one answer to the next when every connection asks again once it is answered."""
        left = iter(range(count))

        async def ask() -> None:
            for _ in left:
                await self.ask(0.0, time.perf_counter())

        start = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(connections)))
        return 1000 * (time.perf_counter() - start) / count


def serve(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A server process and its port; it ends with this process at the latest."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, text=True)
    atexit.register(process.kill)
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return process, port
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


def serve_network(file: Path, target: float, density: str) -> tuple[subprocess.Popen[str], int]:
    """`penstock serve` with one worker."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(file), "--workers", "1"]
    return serve([*command, "--target-ms", str(target), "--density", density])


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def p95(replies: list[Reply]) -> float:
    values = sorted(reply.latency for reply in replies)
    return values[int(0.95 * len(values))] if values else 0.0
