"""A local Ray of two workers: replicas answer as the server does, and folders become parquet files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="these tests need: pip install 'penstock[ray]'")
pytest.importorskip("ray.serve")
parquet = pytest.importorskip("pyarrow.parquet")
httpx = pytest.importorskip("httpx")

from tests.serving.served import CLASSES, IMAGES, free_port, infer, picture, write_network  # noqa: E402

import penstock_runtime as pr  # noqa: E402

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "120"  # a busy machine starts actors slowly
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield ray
    ray.shutdown()


def test_replicas_answer_as_the_engine_does_and_take_up_a_changed_file(cluster: Any, tmp_path: Path) -> None:
    from ray import serve

    from penstock.serving.ray import app

    network, port = write_network(tmp_path / "small.penstock"), free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app({"files": str(network), "replicas": "2", "workers": "1"}), route_prefix="/")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60) as client:
        found = infer(client, IMAGES, density=0.5).json()
        assert found["parameters"]["density"] == 0.5
        before = pr.load(network)(IMAGES, density=0.5)
        np.testing.assert_allclose(found["outputs"][0]["data"], before.reshape(-1), rtol=1e-6)
        assert client.post("classify", content=picture()).json()["classes"][0]["name"] in CLASSES
        assert client.post("classify", content=b"no image").status_code == 400
        write_network(network, seed=1)
        after = pr.load(network)(IMAGES, density=0.5).reshape(-1)
        for _ in range(100):
            logits = infer(client, IMAGES, density=0.5).json()["outputs"][0]["data"]
            if np.allclose(logits, after, rtol=1e-6):
                break
            time.sleep(0.1)
        np.testing.assert_allclose(logits, after, rtol=1e-6)
    serve.shutdown()


def test_a_folder_becomes_rows_and_the_rest_is_done_later(
    cluster: Any, network: Path, tmp_path: Path
) -> None:
    from penstock.serving.batch import classify_all, list_images

    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    for number in range(7):
        (folder / f"{number}.png").write_bytes(picture(20 + number))
    (folder / "bad.jpg").write_bytes(b"no image")
    paths = list_images(str(folder))
    assert classify_all(network, paths, out, density=0.5, workers=2, piece=3) == 3
    rows = {
        Path(row["path"]).name: row
        for part in sorted(out.glob("*.parquet"))
        for row in parquet.read_table(part).to_pylist()
    }
    assert sorted(rows) == sorted(Path(path).name for path in paths)
    assert "cannot be read" in rows["bad.jpg"]["error"]
    engine = pr.load(network)
    guess = engine.classify(folder / "3.png", density=0.5).guesses[0]
    assert rows["3.png"]["class"] == guess.name
    assert rows["3.png"]["probability"] == pytest.approx(guess.probability, abs=1e-5)
    sorted(out.glob("*.parquet"))[1].unlink()
    assert classify_all(network, paths, out, density=0.5, workers=2, piece=3) == 1
    # An image less: the piece that held it is made anew, and no image has two rows.
    (folder / "6.png").unlink()
    assert classify_all(network, list_images(str(folder)), out, density=0.5, workers=2, piece=3) == 1
    left = [row["path"] for part in out.glob("*.parquet") for row in parquet.read_table(part).to_pylist()]
    assert sorted(Path(path).name for path in left) == sorted({*rows} - {"6.png"})
    with pytest.raises(ValueError, match="another network or density"):
        classify_all(network, paths, out, density=1.0, workers=2, piece=3)


def test_a_folder_and_its_address_hold_the_same_images(tmp_path: Path) -> None:
    from penstock.serving.batch import list_images

    (tmp_path / "in").mkdir()
    for name in ("b.png", "A.JPG", "in/c.webp", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    names = ["A.JPG", "b.png", "in/c.webp"]
    assert list_images(str(tmp_path)) == [f"{tmp_path}/{name}" for name in names]
    assert list_images(f"file://{tmp_path}") == [f"file://{tmp_path}/{name}" for name in names]
    assert list_images(str(tmp_path / "b.png")) == [str(tmp_path / "b.png")]


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    from penstock.serving.batch import list_images

    with pytest.raises(ValueError, match="no such folder"):
        list_images(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="holds no image"):
        list_images(str(tmp_path))
