"""The largest magnitude of every step's values over calibration images.

One set serves every density: the network runs at its own density and, if its layers have levels, at each of
them. The maximum is kept, not a percentile: skipped channels are zeros, so a percentile would clip too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from penstock.errors import InputError
from penstock.gating import gated_layers, set_density
from penstock.surgery.trace import trace

_BATCH = 32


@dataclass(frozen=True)
class Ranges:
    """largest: {name of a step in the traced network: its largest |value|}; images: how many were run.

    keep_float: layers that stay in float32, because they lose too much in int8.
    """

    largest: dict[str, float]
    images: int
    keep_float: tuple[str, ...] = ()

    @staticmethod
    def from_json(stored: Any) -> Ranges:
        """What `dataclasses.asdict` made; anything else is refused with an InputError."""
        largest = stored.get("largest") if isinstance(stored, dict) else None
        images = stored.get("images") if isinstance(stored, dict) else None
        if not isinstance(largest, dict) or not isinstance(images, int) or isinstance(images, bool):
            raise InputError("ranges: expected {'images': number, 'largest': {step: number}}")
        for name, value in largest.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise InputError(f"ranges: step {name!r} has {value!r}, expected a number of 0 or more")
        kept = stored.get("keep_float", ())
        if not isinstance(kept, list | tuple) or not all(isinstance(name, str) for name in kept):
            raise InputError(f"ranges: keep_float is {kept!r}, expected names of layers")
        return Ranges({str(name): float(value) for name, value in largest.items()}, images, tuple(kept))


class _Recorder(fx.Interpreter):
    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=True)
        self.extra_traceback = False
        self.largest: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            found = float(value.detach().abs().max())
            if not math.isfinite(found):
                raise InputError(
                    f"calibration: step {n.name!r} yields NaN or infinity on these images; give images as "
                    "the network takes them, preprocessed"
                )
            self.largest[n.name] = max(found, self.largest.get(n.name, 0.0))
        return value


@torch.no_grad()
def calibrate(network: nn.Module, images: Tensor) -> Ranges:
    """Run `images` (batch, channel, height, width), preprocessed, and keep each step's largest magnitude.

    A few hundred images of the training set are enough. The network itself is not changed.
    """
    if not isinstance(images, Tensor) or images.ndim != 4:
        given = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"calibration: expected images as one tensor (batch, channel, height, width), got {given}"
        )
    if images.shape[0] == 0:
        raise InputError("calibration: no images were given; a few hundred of the training set are enough")
    if not bool(torch.isfinite(images).all()):
        raise InputError("calibration: the images hold NaN or infinity")
    traced = trace(network, images[:1]).eval()
    recorder = _Recorder(traced)
    for level in (None, *_levels(traced)):
        if level is not None:
            set_density(traced, level)
        for batch in images.split(_BATCH):
            recorder.run(batch)
    return Ranges(recorder.largest, images.shape[0])


def _levels(network: nn.Module) -> list[float]:
    """Every density at which some layer has values of its own."""
    return sorted({level for _, layer in gated_layers(network) for level in layer.levels})
