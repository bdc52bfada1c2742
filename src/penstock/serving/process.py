"""The server's process: an application and an address in; it listens until a signal, and loses nothing.

On SIGTERM it stops listening at once. Clients that keep their connections open may have a request on its way
at that moment, and closing those connections would reset it. So for a second everything that arrives is
still answered, with the header `Connection: close`; only then are idle connections closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys

import uvicorn

from penstock.serving.app import App

_GRACE = 1.0  # seconds


class _Server(uvicorn.Server):
    def __init__(self, app: App, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in self.servers:
            listening.close()
        self.app.posts.closing = True
        if self.server_state.connections:
            await asyncio.sleep(_GRACE)
        await super().shutdown(sockets)


class _Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {"time": record.created, "level": record.levelname.lower()}
        said |= {"from": record.name, "message": record.getMessage()}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_to_stderr(as_json: bool) -> None:
    """What the server says while it runs: as lines for people, or as JSON lines."""
    handler = logging.StreamHandler()
    words = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_Lines() if as_json else words)
    for name, level in (("penstock.serving", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def listen(app: App, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C, and answer what was accepted before returning."""
    # A worker that comes back from the engine must not wait until the loop yields: 5 ms by Python's default.
    sys.setswitchinterval(0.0005)
    # uvicorn raises the signal that ended it again: by then all is done, and the exit is a clean one.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    config = uvicorn.Config(
        app, host=host, port=port, log_config=None, timeout_keep_alive=30, server_header=False
    )
    server = _Server(app, config)
    try:
        server.run()
    except KeyboardInterrupt:
        return
    if not server.started:
        raise SystemExit(3)  # uvicorn has said why: the address is taken, for instance
