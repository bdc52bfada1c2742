"""Senders that mean harm, or just send rubbish, to a real server: they are refused, and harm nobody."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the server needs: pip install 'penstock[serve]'")
httpx = pytest.importorskip("httpx")

from tests.serving.served import IMAGES, infer, picture  # noqa: E402

from penstock.serving.app import App, make_app  # noqa: E402
from penstock.serving.scheduler import Overloaded  # noqa: E402
from penstock.serving.service import Served, Settings  # noqa: E402


def bad_requests() -> list[tuple[str, bytes, dict[str, str]]]:
    """Two hundred: shapes, types, JSON, images, paths, methods of all kinds of wrong."""
    rng = np.random.default_rng(5)
    good = {"name": "images", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": [0.0] * 768}
    found: list[tuple[str, bytes, dict[str, str]]] = []
    path = "v2/models/small/infer"
    for shape in (
        [1],
        [1, 3, 16, 17],
        [0, 3, 16, 16],
        [10**9, 3, 16, 16],
        [-1, 3, 16, 16],
        "x",
        None,
        [1.5] * 4,
    ):
        found.append((path, json.dumps({"inputs": [{**good, "shape": shape}]}).encode(), {}))
    for kind in ("INT64", "BYTES", "", 7, None):
        found.append((path, json.dumps({"inputs": [{**good, "datatype": kind}]}).encode(), {}))
    for data in ([], [1] * 767, ["a"] * 768, {"a": 1}, "AAAA", None, [[1], [1, 2]]):
        found.append((path, json.dumps({"inputs": [{**good, "data": data}]}).encode(), {}))
    nan = json.dumps({"inputs": [{**good, "data": [float("nan")] * 768}]}).encode()
    found.append((path, nan, {}))
    for body in (b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 50_000, b'{"inputs": 5}'):
        found.append((path, body, {}))
    for header in ("-5", "99999999", "abc", "", "9" * 5000):
        found.append(
            (path, json.dumps({"inputs": [good]}).encode(), {"Inference-Header-Content-Length": header})
        )
    for density in (0, -1, 1.5, "x", "nan", 1e400):
        body = {"inputs": [good], "parameters": {"density": str(density)}}
        found.append((path, json.dumps(body).encode(), {}))
    huge = {"inputs": [good], "parameters": {"density": 10**400}}
    found.append((path, json.dumps(huge).encode(), {}))
    found.append((path, json.dumps({"inputs": [good]}).encode(), {"Content-Encoding": "gzip"}))
    found += [("v2/models/none/infer", b"{}", {}), ("v2/models/small/versions/9/infer", b"{}", {})]
    whole = picture(64, "JPEG")
    for cut in range(0, len(whole) - 2, max(1, len(whole) // 60)):
        found.append(("classify", whole[:cut][: max(0, cut - 700)], {}))
    while len(found) < 200:
        found.append(("classify", rng.bytes(int(rng.integers(0, 400))), {}))
    found.append(("classify", picture(), {"Content-Type": "multipart/form-data; boundary=x"}))
    found.append(("classify?density=7", picture(), {}))
    found.append(("classify?model=none", picture(), {}))
    return found


def test_two_hundred_bad_requests_are_refused_and_harm_nobody(client: httpx.Client) -> None:
    expected = infer(client, IMAGES, density=1.0).json()["outputs"]
    for number, (path, body, headers) in enumerate(bad_requests()):
        answer = client.post(path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500, (number, path, body[:80], answer.text)
        assert answer.json()["error"], (number, path)
    assert infer(client, IMAGES, density=1.0).json()["outputs"] == expected


def test_a_bomb_is_refused_before_it_is_decoded(client: httpx.Client) -> None:
    stream = io.BytesIO()
    Image.new("1", (9000, 9000)).save(stream, "PNG")
    answer = client.post("classify", content=stream.getvalue())
    assert answer.status_code == 400
    assert "pixels" in answer.json()["error"]


def test_ten_gigabytes_announced_and_a_slow_sender_are_turned_away(
    address: str, client: httpx.Client
) -> None:
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), 10) as line:
        line.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n")
        assert b" 413 " in line.recv(200)
    with socket.create_connection((host, int(port)), 30) as line:
        line.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert infer(client, IMAGES).status_code == 200  # others are served meanwhile
        assert b" 408 " in line.recv(200)


def test_more_than_the_floor_can_carry_gets_a_503_with_a_time(network: Path) -> None:
    one = Served(network, Settings(target=0.001, floor=0.9, patience=1.0))
    held = threading.Event()
    answers: list[object] = []
    one.scheduler.submit(lambda _: held.wait(10), answers.append)
    accepted, seconds = 1, 0.0
    for _ in range(1000):
        try:
            one.scheduler.submit(lambda _: True, answers.append)
        except Overloaded as error:
            seconds = error.seconds
            break
        accepted += 1
    held.set()
    assert seconds >= 1
    one.scheduler.close()
    assert len(answers) == accepted  # what was accepted is answered
    assert not any(isinstance(answer, BaseException) for answer in answers)


def ask_app(app: App, content: bytes) -> httpx.Response:
    """One image, to an application inside this process."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/classify", content=content)

    return asyncio.run(ask())


def test_bodies_that_wait_are_bounded_together(network: Path) -> None:
    settings = Settings(most_held=len(picture()))
    app = make_app({"small": Served(network, settings)}, settings)
    assert ask_app(app, picture()).status_code == 200
    assert app.posts.held == 0
    app.posts.held = 1  # of somebody else
    refused = ask_app(app, picture())
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert app.posts.held == 1


def test_a_fault_of_the_server_is_a_500_that_is_counted_and_logged(
    network: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings()
    app = make_app({"small": Served(network, settings)}, settings)
    del app.served["small"].model  # nobody can send that
    answer = ask_app(app, picture())
    assert answer.status_code == 500
    assert "log" in answer.json()["error"]
    assert "AttributeError" in caplog.text
    assert app.metrics.registry.get_sample_value(
        "penstock_requests_total", {"model": "small", "status": "500"}
    )
