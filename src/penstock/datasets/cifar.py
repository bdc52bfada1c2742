"""CIFAR-10: four verified arrays in the cache folder, and the `ImageArrays` made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from penstock.datasets.arrays import ImageArrays
from penstock.errors import DataError
from penstock.files import data_folder, write_atomically

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHA256 = {
    "train-images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train-labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test-images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test-labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
_COUNTS = {"train": 50_000, "test": 10_000}


def cifar10(part: str = "train") -> ImageArrays:
    """CIFAR-10 as `penstock data cifar10` fetched it. part: "train" (50,000 images) or "test" (10,000).

    >>> test = cifar10("test")  # doctest: +SKIP
    >>> cifar10("val")
    Traceback (most recent call last):
    penstock.errors.DataError: CIFAR-10 has the parts 'train' and 'test', not 'val'
    """
    if part not in _COUNTS:
        raise DataError(f"CIFAR-10 has the parts 'train' and 'test', not {part!r}")
    images, labels = (read_array(f"{part}-{kind}") for kind in ("images", "labels"))
    count = _COUNTS[part]
    if images.shape != (count, 3, 32, 32) or labels.shape != (count,):
        raise DataError(
            f"{array_path(f'{part}-images').parent}: CIFAR-10 {part} has images {images.shape} and labels "
            f"{labels.shape}, expected {count:,}; run: penstock data cifar10"
        )
    return ImageArrays(
        torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), CLASSES, f"cifar10/{part}"
    )


def array_path(key: str) -> Path:
    """Where the array `key` ("train-images", …) is kept."""
    return data_folder() / "cifar10" / f"{key}.npy"


def read_array(key: str) -> np.ndarray:
    """One array of the cache."""
    path = array_path(key)
    if not path.exists():
        raise DataError(f"{path} does not exist; run: penstock data cifar10")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}); run: penstock data cifar10") from error
    if array.dtype != np.uint8:
        raise DataError(f"{path}: expected bytes, got {array.dtype}; run: penstock data cifar10")
    return array


def is_whole() -> bool:
    """Whether the cache holds all four arrays, every byte as it should be."""
    try:
        return all(sha256(read_array(key)) == expected for key, expected in SHA256.items())
    except DataError:
        return False


def keep_arrays(arrays: Mapping[str, np.ndarray], source: str) -> Path:
    """Check the four arrays against their SHA-256 and keep them, each written whole; returns their folder."""
    for key, expected in SHA256.items():
        if key not in arrays:
            raise DataError(f"{source}: CIFAR-10 {key} is missing")
        found = sha256(arrays[key])
        if found != expected:
            raise DataError(f"{source}: CIFAR-10 {key} is altered (SHA-256 {found}, expected {expected})")
    for key in SHA256:
        write = partial(np.save, arr=arrays[key], allow_pickle=False)
        write_atomically(array_path(key), write)
    return array_path("train-images").parent


def sha256(array: np.ndarray) -> str:
    """Of the array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
