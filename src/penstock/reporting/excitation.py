"""What excites a channel: a network, images and a layer in, the channel maxima of every image out.

As in the paper's first figure the value is the maximum over height × width *before* the shortcut is added and
before the activation: for a gated layer π·(norm(conv(x)) + β), for any other module what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from penstock.datasets import ImageArrays
from penstock.errors import DataError, LayerError
from penstock.gating import GatedConv2d, is_gated, set_density
from penstock.reporting.skipping import FloatArray, IntArray, StopForward, for_each_batch
from penstock.surgery.network import keep_densities


@dataclass(frozen=True)
class ChannelMaxima:
    """values: (image, channel), the largest value of the channel's map for that image."""

    layer: str
    values: FloatArray

    def most(self, channel: int, count: int = 4) -> IntArray:
        """The images that excite the channel most, the strongest first; ties to the lower index."""
        return np.argsort(-self._column(channel), kind="stable")[:count]

    def least(self, channel: int, count: int = 4) -> IntArray:
        """The images that excite the channel least, the weakest first; ties to the lower index."""
        return np.argsort(self._column(channel), kind="stable")[:count]

    def most_varied(self, count: int = 2) -> list[int]:
        """The channels whose response differs most between images: the ones worth looking at."""
        return [int(c) for c in np.argsort(-np.ptp(self.values, axis=0), kind="stable")[:count]]

    def _column(self, channel: int) -> FloatArray:
        channels = self.values.shape[1]
        if not 0 <= channel < channels:
            raise LayerError(f"layer {self.layer!r} has channels 0 to {channels - 1}, not {channel}")
        return self.values[:, channel]


def channel_maxima(
    network: nn.Module,
    data: ImageArrays,
    layer: str,
    *,
    density: float | None = None,
    batch_size: int = 250,
    preprocess: Callable[[Tensor], Tensor] | None = None,
) -> ChannelMaxima:
    """The maxima of every channel of `layer` for every image.

    `density`: run all gates at this density and put the network's own back afterwards; 1.0 shows every
    channel's response, also where the gates would skip it.
    """
    modules = dict(network.named_modules())
    if layer not in modules or layer == "":
        named = [name for name, module in modules.items() if isinstance(module, GatedConv2d | nn.Conv2d)]
        raise LayerError(f"no layer is named {layer!r}; convolutions are: {', '.join(named)}")
    if len(data) == 0:
        raise DataError(f"{data.name}: no image to look at")
    rows: list[FloatArray] = []

    def keep(features: Tensor) -> None:
        """Take the maxima of a batch and end its forward pass: what follows the layer is not needed."""
        if features.dim() != 4:
            raise LayerError(
                f"layer {layer!r} gives {tuple(features.shape)}; expected (batch, channel, height, width)"
            )
        rows.append(features.amax(dim=(2, 3)).double().cpu().numpy())
        raise StopForward

    module = modules[layer]
    if isinstance(module, GatedConv2d):
        hook = module.activation.register_forward_pre_hook(lambda _, inputs: keep(inputs[0]))
    else:
        hook = module.register_forward_hook(lambda _, inputs, output: keep(output))
    try:
        with keep_densities(network):
            if density is not None and is_gated(network):
                set_density(network, density)
            for_each_batch(network, data, lambda labels: None, batch_size, preprocess)
    finally:
        hook.remove()
    if not rows:
        raise LayerError(f"layer {layer!r} did not run in the forward pass")
    return ChannelMaxima(layer, np.concatenate(rows))
