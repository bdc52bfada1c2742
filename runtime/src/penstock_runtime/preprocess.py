"""From 8-bit images to a network's float input; travels with the network, so nobody guesses a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock_runtime.errors import InputError
from penstock_runtime.inputs import is_torch_tensor, torch_module


@dataclass(frozen=True)
class Preprocess:
    """(image / 255 - mean) / std, channel by channel.

    resize: the shorter side to which a photograph is scaled before the middle is cut out, in pixels; None
    scales it to the network's own size.

    >>> Preprocess(mean=(0.5,), std=(0.25,))(np.full((1, 1, 1, 2), 255, np.uint8)).tolist()
    [[[[2.0, 2.0]]]]
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: float | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.mean) == len(self.std):
            raise InputError(
                f"preprocess: expected as many means as stds, one a channel, got {self.mean} and {self.std}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise InputError(
                "preprocess: expected finite means and positive stds, of pixels from 0 to 1, "
                f"got mean {self.mean} and std {self.std}"
            )

    def __call__(self, images: Any) -> Any:
        """images: uint8 (n, c, h, w), torch or numpy → float32 (n, c, h, w), the same kind."""
        torch = torch_module() if is_torch_tensor(images) else None
        byte = np.uint8 if torch is None else torch.uint8
        shape = tuple(getattr(images, "shape", ()))
        if getattr(images, "dtype", None) != byte or len(shape) != 4 or shape[1] != len(self.mean):
            raise InputError(
                f"preprocess takes uint8 images (n, {len(self.mean)}, h, w), "
                f"got {getattr(images, 'dtype', type(images).__name__)} {shape}"
            )
        if torch is None:
            mean, std = (np.array(part, np.float32).reshape(-1, 1, 1) * 255 for part in (self.mean, self.std))
            return (images.astype(np.float32) - mean) / std
        mean, std = (
            torch.tensor(part, dtype=torch.float32, device=images.device).view(-1, 1, 1) * 255
            for part in (self.mean, self.std)
        )
        return (images.float() - mean) / std
