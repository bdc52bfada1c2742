"""The HTTP side: what asks for work goes to `Posts`; /metrics, /status, the page and the rest are here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from penstock.serving import protocol
from penstock.serving.metrics import Metrics
from penstock.serving.posts import Posts, Receive, Refused, Scope, Send, check_version
from penstock.serving.service import Served, Settings
from penstock_runtime import __version__

_PAGE = Path(__file__).parent / "page"
_CHECK_FILES = 1.0  # seconds


def make_app(served: Mapping[str, Served], settings: Settings) -> App:
    """served: models by name; the first one answers /classify unless ?model= names another."""
    return App(dict(served), settings)


class App:
    """The ASGI application: `Posts` answers requests for work, Starlette everything else."""

    def __init__(self, served: dict[str, Served], settings: Settings) -> None:
        self.served = served
        self.metrics = Metrics()
        self.posts = Posts(served, settings, self.metrics)
        routes = [
            Route("/", self.page),
            Route("/page.js", self.page),
            Route("/page.css", self.page),
            Route("/status", self.status),
            Route("/metrics", self.metrics_text),
            Route("/v2", self.about),
            Route("/v2/health/live", self.healthy),
            Route("/v2/health/ready", self.healthy),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [Route(base, self.model_about), Route(base + "/ready", self.model_ready)]
        handlers: dict[Any, Any] = {HTTPException: _plain_error, Refused: _refused}
        self.rest = Starlette(routes=routes, lifespan=self.life, exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and await self.posts.answer(scope, receive, send):
            return
        await self.rest(scope, receive, send)

    @contextlib.asynccontextmanager
    async def life(self, app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(self.watch())
        yield
        watching.cancel()
        await asyncio.gather(*(asyncio.to_thread(one.scheduler.close) for one in self.served.values()))

    async def watch(self) -> None:
        """Load files again when they change; runs until it is cancelled."""
        while True:
            await asyncio.sleep(_CHECK_FILES)
            for one in self.served.values():
                await one.reload()

    def find(self, request: Request) -> Served:
        found = self.posts.find(request.path_params["model"])
        check_version(request.path_params.get("version", "1"))
        return found

    async def healthy(self, request: Request) -> Response:
        return Response()

    async def about(self, request: Request) -> Response:
        extensions = ["binary_tensor_data"]
        return JSONResponse({"name": "penstock", "version": __version__, "extensions": extensions})

    async def model_ready(self, request: Request) -> Response:
        self.find(request)
        return Response()

    async def model_about(self, request: Request) -> Response:
        one = self.find(request)
        engine = one.model.engine
        tensor = {"name": protocol.INPUT, "datatype": "FP32", "shape": [-1, *engine.input_shape]}
        result = {"name": protocol.OUTPUT, "datatype": "FP32", "shape": [-1, *engine.output_shape]}
        return JSONResponse(
            {
                "name": one.model.name,
                "versions": ["1"],
                "platform": f"penstock_{engine.info.precision}",
                "inputs": [tensor],
                "outputs": [result],
            }
        )

    async def metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(self.served), media_type=CONTENT_TYPE_LATEST)

    async def status(self, request: Request) -> Response:
        return JSONResponse({name: _status(one) for name, one in self.served.items()})

    async def page(self, request: Request) -> Response:
        name = request.url.path.strip("/") or "index.html"
        return FileResponse(_PAGE / name, headers={"Cache-Control": "no-cache"})


async def _plain_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _refused(request: Request, error: Refused) -> Response:
    return JSONResponse({"error": str(error)}, error.status, headers=error.headers)


def _status(one: Served) -> dict[str, Any]:
    """What the page shows of a model, now."""
    settings, state, model = one.settings, one.scheduler.state(), one.model
    now, given = one.accuracy(state.density)
    grid = [settings.floor + (settings.ceiling - settings.floor) * i / 7 for i in range(8)]
    return {
        "input": list(model.engine.input_shape),
        "precision": model.engine.info.precision,
        "target": settings.target,
        "floor": settings.floor,
        "ceiling": settings.ceiling,
        "density": round(state.density, 4),
        "waiting": state.waiting,
        "rate": round(state.rate, 1),
        **{f"p{100 * share:g}": round(value, 3) for share, value in state.quantiles.items()},
        "answered": state.answered,
        "refused": state.refused,
        "accuracy": now,
        "given_away": given,
        "service": [[round(d, 3), round(model.service(d), 3)] for d in grid],
        "reload_error": one.reload_error,
    }
