"""Shared set-up: torchvision's missing operators, single-threaded torch, and reproducible chance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from penstock.exporting.libraries import mend_torchvision

mend_torchvision()  # tests import torchvision and timm directly

settings.register_profile("penstock", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("penstock")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
