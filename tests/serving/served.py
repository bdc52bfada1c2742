"""A small compiled network in a file, and a real server process around it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import penstock as ps

CLASSES = ("cat", "dog", "frog", "ship")
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)


def write_network(path: Path, seed: int = 0) -> Path:
    """A gated network of two convolutions on 3x16x16 images with four classes, compiled to `path`."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    ).eval()
    example = torch.randn(1, 3, 16, 16)
    engine = ps.compile(ps.add_gates(network, example), example)
    from penstock_runtime import Measurement, Preprocess

    info = dataclasses.replace(
        engine.info,
        name="small",
        classes=CLASSES,
        preprocess=Preprocess((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        measured=tuple(Measurement(d, 80 + 10 * d, d) for d in (0.25, 0.5, 1.0)),
    )
    engine.save(path, info)
    return path


def picture(side: int = 40, kind: str = "PNG") -> bytes:
    """An image file's bytes."""
    pixels = np.random.default_rng(1).integers(0, 255, (side, side, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(*files: Path, options: tuple[str, ...] = ()) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`penstock serve` in a process of its own: its address, and the process."""
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli.main", "serve", *map(str, files), "--json"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--workers", "1", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        address = json.loads(process.stdout.readline())["address"]
        wait_for(port)
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


def wait_for(port: int) -> None:
    """Until something listens."""
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), 0.1):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


def infer(client: Any, images: np.ndarray, **parameters: float) -> Any:
    tensor = {"name": "images", "datatype": "FP32", "shape": list(images.shape), "data": images.tolist()}
    return client.post("v2/models/small/infer", json={"inputs": [tensor], "parameters": parameters})
