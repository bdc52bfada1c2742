"""A small gated network, compiled, and images for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from penstock.engine import compile as compile_engine
from penstock.surgery import add_gates
from penstock_runtime import Engine, Measurement, Preprocess
from penstock_runtime.file import Image, pack
from penstock_runtime.native import native

CLASSES = ("cat", "dog", "große Möwe")


@pytest.fixture(scope="package")
def images() -> npt.NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((4, 3, 16, 12)).astype(np.float32)


@pytest.fixture(scope="package")
def engine(images: npt.NDArray[np.float32]) -> Engine:
    """Three gated layers, a sum, a pooling, a linear layer; with everything a file can say."""
    torch.manual_seed(5)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    ).eval()
    gated = add_gates(network, torch.from_numpy(images), density=0.5, init="paper")
    gated.preprocess = Preprocess((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), resize=18.5)
    made = compile_engine(gated, torch.from_numpy(images))
    info = replace(
        made.info,
        name="small",
        classes=CLASSES,
        measured=(Measurement(0.5, 71.25, 0.5), Measurement(1.0, 75.0, 1.5)),
        conditions="one thread of some machine, 400 images",
        licence="Apache-2.0\nuse it as you like",
    )
    return Engine(made.to_bytes(info))


def changed(engine: Engine, **sections: Any) -> Image:
    """The engine's file with sections replaced (or, with None, left out); "__" stands for "/"."""
    find = engine._native.array
    kept = {name: find(name) for name in engine._native.section_names}
    kept.update({name.replace("__", "/"): content for name, content in sections.items()})
    return pack({name: content for name, content in kept.items() if content is not None})


@pytest.fixture(scope="package")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, right in every other respect, whose feature maps take almost 4 GiB."""
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *head).eval()
    small = compile_engine(network, torch.zeros(1, 3, 16, 12))
    tensors = small._native.array("program/tensors").copy()
    field = native().SCHEMA["TensorField"].index
    maps = tensors[:, field("height")] > 1
    tensors[maps, field("height")] = tensors[maps, field("width")] = 8000
    tensors[:, field("offset")] = np.arange(len(tensors)) * 2**30
    path = tmp_path_factory.mktemp("huge") / "huge.penstock"
    path.write_bytes(changed(small, program__tensors=tensors))
    return path
