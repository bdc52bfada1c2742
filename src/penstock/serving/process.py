"""The server's process: an application and an address in; it listens until a signal, and loses nothing.

On SIGTERM it stops listening at once. Clients that keep their connections open may have a request on its way
at that moment, and closing those connections would reset it. So for a second everything that arrives is
still answered, with the word that the connection closes; only then are idle connections closed.
"""

from __future__ import annotations

import asyncio
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


def listen(app: App, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C, and answer what was accepted before returning."""
    # A worker that comes back from the engine must not wait until the loop yields: 5 ms by Python's default.
    sys.setswitchinterval(0.0005)
    # uvicorn raises the signal that ended it again: by then all is done, and the exit is a clean one.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", timeout_keep_alive=30, server_header=False
    )
    server = _Server(app, config)
    try:
        server.run()
    except KeyboardInterrupt:
        return
    if not server.started:
        raise SystemExit(3)  # uvicorn has said why: the address is taken, for instance
