"""The requests that ask for work: the protocol's infer, and /classify. An ASGI scope in, an answer out.

They are answered on ASGI itself: Starlette's middleware, routing and request objects would cost about as much
as everything else that the server does for a request. A body is read only as far as the limits allow, every
error becomes an answer in JSON, and every answer is counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from penstock.serving import protocol
from penstock.serving.metrics import Metrics
from penstock.serving.scheduler import Overloaded, TooLate
from penstock.serving.service import Served, Settings
from penstock_runtime.errors import PenstockError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_JSON = {"Content-Type": "application/json"}
log = logging.getLogger("penstock.serving")


class Refused(Exception):
    """An answer other than 200. words: what the client reads."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.headers = headers or {}


class Posts:
    """What answers the requests that carry tensors or images."""

    def __init__(self, served: Mapping[str, Served], settings: Settings, metrics: Metrics) -> None:
        self.served = served
        self.settings = settings
        self.metrics = metrics
        self.closing = False  # answers then say that their connection closes
        self.held = 0  # bytes of the bodies that are not answered yet

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request, if it is one of these; returns whether it was."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == "/classify":
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            name = query.get("model") or next(iter(self.served))
            work = self._classify(name, query, scope, receive)
        elif path.endswith("/infer") and (place := _place(path)) is not None:
            name, version = place
            work = self._infer(name, version, scope, receive)
        else:
            return False
        status, body, headers = await self._outcome(path, work)
        self.metrics.count(name if name in self.served else "", status)
        raw = [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        if self.closing:
            raw.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})
        return True

    async def _outcome(
        self, path: str, work: Awaitable[tuple[bytes, dict[str, str]]]
    ) -> tuple[int, bytes, dict[str, str]]:
        """What a request's work comes to: status, body and headers, whatever happens to it."""
        try:
            body, headers = await work
            return 200, body, headers
        except Refused as error:
            return error.status, _error(error), {**_JSON, **error.headers}
        except (protocol.BadRequest, PenstockError) as error:
            return 400, _error(error), _JSON
        except Overloaded as error:
            return 503, _error(error), {**_JSON, "Retry-After": str(math.ceil(error.seconds))}
        except TooLate as error:
            return 504, _error(error), _JSON
        except Exception:  # a fault of ours must not look like the client's, nor end the connection
            log.exception("%s: the request failed", path)
            return 500, b'{"error": "the server failed at this request; its log says more"}', _JSON

    def find(self, name: str) -> Served:
        if name not in self.served:
            raise Refused(404, f"there is no model {name[:80]!r}; there are: {', '.join(self.served)}")
        return self.served[name]

    async def _infer(
        self, name: str, version: str, scope: Scope, receive: Receive
    ) -> tuple[bytes, dict[str, str]]:
        headers = _headers(scope)
        one = self.find(name)
        check_version(version)
        async with self._body(headers, receive) as body:
            shape, most = one.model.engine.input_shape, self.settings.most_images
            said = protocol.parse(body, headers.get(protocol.HEADER.lower()), shape, most)
            done = await one.infer(said.images, said.density, said.deadline)
        self.metrics.note(name, done.density, done.latency)
        parameters = {"density": round(done.density, 4), "milliseconds": round(done.milliseconds, 3)}
        return protocol.answer(name, said, done.value, parameters)

    async def _classify(
        self, name: str, query: Mapping[str, str], scope: Scope, receive: Receive
    ) -> tuple[bytes, dict[str, str]]:
        headers = _headers(scope)
        one = self.find(name)
        density = protocol.number(query.get("density"), "density", 0.0, 1.0)
        deadline = protocol.number(query.get("deadline_ms"), "deadline_ms", 0.0, 3.6e6)
        if headers.get("content-type", "").startswith("multipart/"):
            raise Refused(415, "send the image file itself as the body: curl --data-binary @cat.jpg")
        async with self._body(headers, receive) as content:
            if not content:
                raise Refused(400, "the request has no body; send the bytes of an image file")
            done = await one.classify(content, density, deadline, query.get("layers") == "1")
        self.metrics.note(name, done.density, done.latency)
        found: dict[str, Any] = {
            "model": name,
            "classes": [{"name": name, "probability": round(share, 5)} for name, share in done.value.classes],
            "density": round(done.density, 4),
            "milliseconds": round(done.value.milliseconds, 3),
            "latency_milliseconds": round(done.latency, 3),
        }
        if done.value.layers is not None:
            found["layers"] = done.value.layers
        return json.dumps(found).encode(), _JSON

    @asynccontextmanager
    async def _body(self, headers: Mapping[str, str], receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, if it is small enough and arrives in time; held until the request is answered."""
        announced = headers.get("content-length", "0")
        if not protocol.is_length(announced) or int(announced) > self.settings.most_bytes:
            raise self._too_large(announced[:20])
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "compressed bodies are not taken; send it as it is")
        parts: list[bytes] = []
        try:
            await self._collect(parts, receive)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.held -= sum(map(len, parts))

    async def _collect(self, parts: list[bytes], receive: Receive) -> None:
        """Append a body's parts as they arrive, up to the limits: of one body, and of all together."""
        size, more = 0, True
        try:
            async with asyncio.timeout(self.settings.timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the sender hung up before the body was complete")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self.settings.most_bytes:
                        raise self._too_large(f"{size} or more")
                    if self.held + len(part) > self.settings.most_held:
                        words = f"requests that wait hold {self.held:,} bytes already; try again in 1 s"
                        raise Refused(503, words, {"Retry-After": "1", "Connection": "close"})
                    parts.append(part)
                    self.held += len(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            words = f"the body did not arrive in {self.settings.timeout:g} s"
            raise Refused(408, words, {"Connection": "close"}) from None

    def _too_large(self, size: str) -> Refused:
        words = f"the body has {size} bytes; at most {self.settings.most_bytes:,} are taken"
        return Refused(413, words, {"Connection": "close"})


def check_version(version: str) -> None:
    if version != "1":
        raise Refused(404, f"there is version 1 only, got {version[:40]!r}")


def _place(path: str) -> tuple[str, str] | None:
    """A model's name and version, of a path of the protocol.

    >>> _place("/v2/models/cat/infer"), _place("/v2/models/cat/versions/3/infer"), _place("/infer")
    (('cat', '1'), ('cat', '3'), None)
    """
    match path.split("/"):
        case ["", "v2", "models", name, "infer"]:
            return name, "1"
        case ["", "v2", "models", name, "versions", version, "infer"]:
            return name, version
    return None


def _headers(scope: Scope) -> dict[str, str]:
    if scope["method"] != "POST":
        raise Refused(405, f"expected POST, got {scope['method'][:20]}", {"Allow": "POST"})
    return {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}


def _error(error: Exception) -> bytes:
    return json.dumps({"error": str(error)}).encode()
