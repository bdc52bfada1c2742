"""A small folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve pictures in two classes."""
    chance = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for index in range(count // 2):
                pixels = chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"
