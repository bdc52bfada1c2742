"""Shared set-up: torchvision's two missing operators, single-threaded torch, and reproducible chance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# torchvision has no CPU build for this torch: without these stubs its import fails.
_torchvision_stubs = torch.library.Library("torchvision", "DEF")
_torchvision_stubs.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_torchvision_stubs.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

settings.register_profile("penstock", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("penstock")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
