"""A real server process, asked by real clients (tritonclient, httpx), reloaded, and told to stop."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs: pip install 'penstock[serve]'")
httpx = pytest.importorskip("httpx")

from tests.serving.served import CLASSES, IMAGES, infer, picture, server, write_network  # noqa: E402

import penstock_runtime as pr  # noqa: E402
from penstock.serving.process import log_to_stderr  # noqa: E402


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
        path.write_bytes(path.read_bytes()[:5000])  # over it, as cp does, not beside it and renamed
        for _ in range(100):
            if client.get("status").json()["small"]["reload_error"]:
                break
            time.sleep(0.1)
        assert infer(client, IMAGES, density=1.0).json()["outputs"][0]["data"] == found


def test_the_running_server_has_no_pytorch(
    running: tuple[str, subprocess.Popen[str]], client: httpx.Client
) -> None:
    assert client.post("classify", content=picture()).status_code == 200
    assert "libtorch" not in Path(f"/proc/{running[1].pid}/maps").read_text()


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


def test_the_log_can_be_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("penstock.serving")
    before = (logger.handlers[:], logger.propagate, logger.level)
    log_to_stderr(as_json=True)
    try:
        logger.warning("%s: kept", "net.penstock")
    finally:
        logger.handlers[:], logger.propagate, logger.level = before
        logging.getLogger("uvicorn").handlers.clear()
    said = json.loads(capsys.readouterr().err)
    assert (said["level"], said["message"]) == ("warning", "net.penstock: kept")


def test_bad_options_are_refused_with_words(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import main

    for words, said in (
        (["serve"], "no file to serve"),
        (["serve", str(network), "--density", "2..3"], "--density"),
        (["serve", str(network), "--target-ms", "0"], "--target-ms"),
        (["serve", str(network), "--body-seconds", "0"], "--body-seconds"),
        (["serve", str(network), str(network)], "two files have one name"),
        (["serve", "none.penstock"], "none.penstock"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
