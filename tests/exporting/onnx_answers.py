"""The logits of an ONNX Runtime session, and those PyTorch wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import penstock as ps

Pair = Callable[[nn.Module, int], tuple[nn.Module, Tensor]]


def feeds_of(session: Any, images: Tensor, density: float | None) -> dict[str, np.ndarray]:
    feeds = {"images": images.numpy()}
    if density is not None:
        feeds["density"] = np.array(density, np.float32)
    return feeds


def logits_of(session: Any, images: Tensor, density: float | None) -> np.ndarray:
    return np.concatenate(
        [session.run(["logits"], feeds_of(session, image[None], density))[0] for image in images]
    )


def wanted_of(network: nn.Module, images: Tensor, density: float | None = None) -> np.ndarray:
    if density is not None:
        ps.set_density(network, density)
    with torch.no_grad():
        return network(images).numpy()
