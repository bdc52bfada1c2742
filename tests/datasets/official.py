"""Small data sets in the layouts of the two sources, byte for byte as those write them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

BATCHES = (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch")


def python2_string(value: bytes) -> bytes:
    return (
        b"U" + bytes([len(value)]) + value
        if len(value) < 256
        else b"T" + struct.pack("<i", len(value)) + value
    )


def batch_file(pixels: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2's cPickle (protocol 2) made of {"batch_label", "labels", "data", "filenames"}."""
    places = iter(range(1, 1000))

    def kept() -> bytes:
        return b"q" + bytes([next(places)])

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    rows, columns = pixels.shape
    return b"".join((
        b"\x80\x02}", kept(), b"(",
        python2_string(b"batch_label"), kept(), python2_string(b"training batch 1 of 5"), kept(),
        python2_string(b"labels"), kept(), b"]", kept(), b"(", *(number(one) for one in labels), b"e",
        python2_string(b"data"), kept(),
        b"cnumpy.core.multiarray\n_reconstruct\n", kept(), b"cnumpy\nndarray\n", kept(),
        b"K\x00\x85", kept(), python2_string(b"b"), b"\x87", kept(), b"R", kept(),
        b"(K\x01", number(rows), number(columns), b"\x86", kept(),
        b"cnumpy\ndtype\n", kept(), python2_string(b"u1"), b"K\x00K\x01\x87", kept(), b"R", kept(),
        b"(K\x03", python2_string(b"|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t", kept(), b"b",
        b"\x89", python2_string(pixels.tobytes()), b"t", kept(), b"b",
        python2_string(b"filenames"), kept(), b"]", kept(), b"(", python2_string(b"camion_s.png"), b"eu.",
    ))  # fmt: skip


def small_batches(each: int = 20, seed: int = 0) -> Iterator[tuple[str, np.ndarray, list[int]]]:
    """(name, pixels (each, 3072), labels) of the six batches."""
    rng = np.random.default_rng(seed)
    for name in BATCHES:
        pixels = rng.integers(0, 256, (each, 3072), dtype=np.uint8)
        yield name, pixels, [int(one) for one in rng.integers(0, 10, each)]


def official_files() -> dict[str, bytes]:
    return {name: batch_file(pixels, labels) for name, pixels, labels in small_batches()}


def npm_files() -> dict[str, bytes]:
    files, labels = {}, {"train": [], "test": []}
    for name, pixels, given in small_batches():
        rows = pixels.reshape(-1, 3, 1024).transpose(0, 2, 1)
        stream = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows)).save(stream, "PNG")
        files[f"{name}.png"] = stream.getvalue()
        labels["test" if name == "test_batch" else "train"] += given
    return files | {f"{part}_lables.json": json.dumps(given).encode() for part, given in labels.items()}


def archive(files: dict[str, bytes], folder: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def arrays() -> dict[str, np.ndarray]:
    """The four arrays that either layout stands for."""
    batches = list(small_batches())
    parts = {"train": batches[:5], "test": batches[5:]}
    found = {}
    for part, chosen in parts.items():
        found[f"{part}-images"] = np.concatenate([p for _, p, _ in chosen]).reshape(-1, 3, 32, 32)
        found[f"{part}-labels"] = np.asarray([one for _, _, given in chosen for one in given], np.uint8)
    return found


def write(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
