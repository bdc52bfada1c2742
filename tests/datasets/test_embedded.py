"""The embedded sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.datasets import embedded, sample
from penstock.errors import DataError


def test_the_sample_has_a_hundred_images_of_each_class() -> None:
    data = sample()
    assert data.images.shape == (1000, 3, 32, 32)
    assert data.labels.bincount().tolist() == [100] * 10
    assert data.classes[3] == "cat"
    assert len(torch.unique(data.images.flatten(1), dim=0)) == 1000


def test_a_mosaic_gives_its_images_back() -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 3, 32, 32), dtype=np.uint8)
    picture = embedded.to_mosaic(images)
    assert picture.shape == (64, 1280, 3)
    assert np.array_equal(picture[:32, 32:64].transpose(2, 0, 1), images[1])
    assert np.array_equal(embedded.from_mosaic(picture), images)


def test_an_altered_sample_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"sample.*altered"):
        sample()
