"""A real server process, asked by real clients: tritonclient, httpx, raw sockets, and hostile senders."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs: pip install 'penstock[serve]'")
httpx = pytest.importorskip("httpx")

from tests.serving.served import CLASSES, picture, server, write_network  # noqa: E402

import penstock_runtime as pr  # noqa: E402

IMAGES = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("served") / "small.penstock")


@pytest.fixture(scope="module")
def address(network: Path) -> Iterator[str]:
    with server(network, options=("--target-ms", "50")) as (found, _):
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as found:
        yield found


def infer(client: httpx.Client, images: np.ndarray, **parameters: float) -> httpx.Response:
    tensor = {"name": "images", "datatype": "FP32", "shape": list(images.shape), "data": images.tolist()}
    return client.post("v2/models/small/infer", json={"inputs": [tensor], "parameters": parameters})


@pytest.mark.parametrize("binary", [False, True])
def test_tritonclient_infers_what_the_engine_computes(address: str, network: Path, binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(address.removeprefix("http://").rstrip("/"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert client.get_model_metadata("small")["inputs"][0]["shape"] == [-1, 3, 16, 16]
    tensor = triton.InferInput("images", list(IMAGES.shape), "FP32")
    tensor.set_data_from_numpy(IMAGES, binary_data=binary)
    wanted = triton.InferRequestedOutput("logits", binary_data=binary)
    found = client.infer("small", [tensor], outputs=[wanted], parameters={"density": 0.5})
    expected = pr.load(network)(IMAGES, density=0.5)
    np.testing.assert_array_equal(found.as_numpy("logits"), expected)
    assert found.get_response()["parameters"]["density"] == 0.5
    client.close()


def test_an_image_file_is_classified_as_the_runtime_does_it(client: httpx.Client, network: Path) -> None:
    found = client.post("classify?density=1&layers=1", content=picture()).json()
    expected = pr.load(network).classify(picture())
    assert [one["name"] for one in found["classes"]] == [guess.name for guess in expected.guesses][:5]
    assert found["classes"][0]["probability"] == pytest.approx(expected.guesses[0].probability, abs=1e-4)
    assert {one["name"] for one in found["classes"]} == set(CLASSES)
    assert found["density"] == 1.0
    assert all(len(layer["computed"]) <= layer["channels"] for layer in found["layers"].values())


def test_pixels_are_preprocessed_and_floats_are_not(client: httpx.Client, network: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (1, 3, 16, 16), np.uint8)
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 3, 16, 16], "data": pixels.tolist()}
    body = {"inputs": [tensor], "parameters": {"density": 1.0}}
    found = client.post("v2/models/small/infer", json=body).json()["outputs"][0]["data"]
    engine = pr.load(network)
    expected = engine((pixels.astype(np.float32) / 255 - 0.5) / 0.25, density=1.0)
    np.testing.assert_allclose(found, expected[0], atol=1e-4)


def test_metrics_and_status_show_the_accuracy_that_is_given_away(client: httpx.Client) -> None:
    infer(client, IMAGES)
    text = client.get("metrics").text
    assert 'penstock_accuracy_percent{model="small"}' in text
    assert 'penstock_requests_total{model="small",status="200"}' in text
    status = client.get("status").json()["small"]
    assert status["accuracy"] == pytest.approx(80 + 10 * status["density"], abs=0.2)


def test_a_deadline_that_cannot_be_met_is_a_504(client: httpx.Client) -> None:
    assert infer(client, IMAGES, deadline_ms=1e-6).status_code == 504
    assert infer(client, IMAGES, deadline_ms=5000).status_code == 200


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
    for header in ("-5", "99999999", "abc", ""):
        found.append(
            (path, json.dumps({"inputs": [good]}).encode(), {"Inference-Header-Content-Length": header})
        )
    for density in (0, -1, 1.5, "x", "nan", 1e400):
        body = {"inputs": [good], "parameters": {"density": str(density)}}
        found.append((path, json.dumps(body).encode(), {}))
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
    import io

    from PIL import Image

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


def test_a_replaced_file_is_taken_up_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = write_network(tmp_path / "small.penstock")
    with server(path) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        before = infer(client, IMAGES, density=1.0).json()["outputs"]
        write_network(path, seed=1)
        expected = pr.load(path)(IMAGES, density=1.0)
        for _ in range(100):
            now = infer(client, IMAGES, density=1.0)
            assert now.status_code == 200
            if now.json()["outputs"] != before:
                break
            time.sleep(0.1)
        found = now.json()["outputs"][0]["data"]
        np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-6)
        (tmp_path / "broken").write_bytes(path.read_bytes()[:-40])
        (tmp_path / "broken").replace(path)
        for _ in range(100):
            if client.get("status").json()["small"]["reload_error"]:
                break
            time.sleep(0.1)
        assert infer(client, IMAGES, density=1.0).json()["outputs"][0]["data"] == found


def test_terminated_under_load_every_accepted_request_is_answered(network: Path) -> None:
    statuses: list[int] = []

    def ask(address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            for _ in range(2000):
                try:
                    statuses.append(infer(client, IMAGES).status_code)
                except httpx.ConnectError:  # it no longer listens: nothing was accepted
                    return

    with server(network) as (address, process):
        threads = [threading.Thread(target=ask, args=(address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(statuses) < 40:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(20) == 0
    assert set(statuses) == {200}  # and no connection was reset: that would have failed in its thread


def test_more_than_the_floor_can_carry_gets_a_503_with_a_time(network: Path) -> None:
    from penstock.serving.scheduler import Overloaded
    from penstock.serving.service import Served, Settings

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


def test_bad_options_are_refused_with_words(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import main

    for words, said in (
        (["serve"], "no file to serve"),
        (["serve", str(network), "--density", "2..3"], "--density"),
        (["serve", str(network), "--target-ms", "0"], "--target-ms"),
        (["serve", str(network), str(network)], "two files have one name"),
        (["serve", "none.penstock"], "none.penstock"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
