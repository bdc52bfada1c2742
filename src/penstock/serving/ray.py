"""The same server as replicas on a Ray cluster.

    serve run penstock.serving.ray:app files=/models/net.penstock target_ms=20

Every replica holds the networks itself and controls its density from its own latency. Ray starts replicas
when more requests are under way than each may have, and ends them when they are idle. Density answers a rush
within a second, replicas within half a minute. The two do not fight: a replica's latency falls as soon as
another one takes a share of its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from penstock.serving.app import make_app
from penstock.serving.service import Served, Settings


class Replica:
    """One copy of the server inside Ray. files: compiled networks that every node can read."""

    def __init__(self, files: list[str], settings: Settings) -> None:
        served = {Path(name).stem: Served(Path(name), settings) for name in files}
        self.app = make_app(served, settings)
        self.watching: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Response:
        if self.watching is None:  # Ray starts no lifespan, and only now is there a loop
            self.watching = asyncio.create_task(self.app.watch())
        return await through(self.app, request)


async def through(app: Any, request: Request) -> Response:
    """Hand a request to an ASGI application, and collect what it answers."""
    found: dict[str, Any] = {"status": 500, "headers": []}
    parts: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            found.update(status=message["status"], headers=message.get("headers", []))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(dict(request.scope), request.receive, send)
    response = Response(b"".join(parts), found["status"])
    response.raw_headers = list(found["headers"])
    return response


def app(arguments: dict[str, str]) -> serve.Application:
    """arguments: files (paths with commas between), target_ms, floor, ceiling, workers, replicas."""
    files = [name for name in arguments.get("files", "").split(",") if name]
    if not files:
        raise ValueError("files: expected the paths of compiled networks, as in files=/models/net.penstock")
    settings = Settings(
        target=float(arguments.get("target_ms", "20")),
        floor=float(arguments.get("floor", "0.3")),
        ceiling=float(arguments.get("ceiling", "1.0")),
        workers=int(arguments.get("workers", "1")),
    )
    most = int(arguments.get("replicas", "4"))
    deployment = serve.deployment(
        name="penstock",
        max_ongoing_requests=64,
        max_queued_requests=256,  # beyond these Ray itself answers 503
        ray_actor_options={"num_cpus": settings.workers},
        autoscaling_config={"min_replicas": 1, "max_replicas": most, "target_ongoing_requests": 4},
    )(Replica)
    made: serve.Application = deployment.bind(files, settings)
    return made
