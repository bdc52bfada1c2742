"""How often each class skips each channel: a gated network and labelled images in, one array a layer out.

A channel c of a layer is skipped for an image x when its gain π_c(x) is 0 (the paper's wta, or a saliency
that relu already put to 0). The paper's heat maps show, for every class, the share of its images that skip c.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.datasets import ImageArrays, preprocess_of
from penstock.errors import DataError, LayerError
from penstock.gating import gated_layers
from penstock.surgery.network import eval_mode

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class SkipMap:
    """skipped: (class, channel), images of a class that skipped a channel; images: (class,), of how many."""

    layer: str
    skipped: IntArray
    images: IntArray

    @property
    def probability(self) -> FloatArray:
        """(class, channel): the share of a class's images that skip the channel; NaN without images."""
        shown = np.where(self.images > 0, self.images, 1)[:, None]
        return np.where(self.images[:, None] > 0, self.skipped / shown, np.nan)

    @property
    def never_used(self) -> BoolArray:
        """(channel,): True where every image skipped the channel."""
        return np.asarray(self.skipped.sum(axis=0) == self.images.sum())

    @property
    def order(self) -> IntArray:
        """(channel,): the channels by how often they are evaluated, least first; equals keep their order."""
        return np.argsort(-self.skipped.sum(axis=0), kind="stable")

    @property
    def remaining(self) -> int:
        """The channels that at least one image used: what is left when the never-used ones are removed."""
        return int((~self.never_used).sum())

    @property
    def computed(self) -> float:
        """The mean number of channels computed for an image."""
        return self.skipped.shape[1] - float(self.skipped.sum()) / max(1, int(self.images.sum()))


class StopForward(Exception):
    """Raised by a hook: the rest of this forward pass is not needed."""


def skip_maps(
    network: nn.Module,
    data: ImageArrays,
    *,
    batch_size: int = 250,
    preprocess: Callable[[Tensor], Tensor] | None = None,
) -> list[SkipMap]:
    """One map a gated layer, in the network's order, at the densities that the network has now."""
    layers = list(gated_layers(network))
    if not layers:
        raise LayerError(
            "the network has no gated layer, so it skips nothing; add some with penstock.add_gates"
        )
    if len(data) == 0:
        raise DataError(f"{data.name}: no image to look at")
    classes = len(data.classes)
    skipped = {
        name: torch.zeros(classes, layer.conv.out_channels, dtype=torch.int64) for name, layer in layers
    }

    def count(labels: Tensor) -> None:
        for name, layer in layers:
            if layer.gains is None:
                raise LayerError(f"layer {name!r} did not run in the forward pass")
            skipped[name].index_add_(0, labels, (layer.gains == 0).to(torch.int64).cpu())

    for_each_batch(network, data, count, batch_size, preprocess)
    images = torch.bincount(data.labels, minlength=classes).numpy()
    return [SkipMap(name, skipped[name].numpy(), images) for name, _ in layers]


def for_each_batch(
    network: nn.Module,
    data: ImageArrays,
    then: Callable[[Tensor], None],
    batch_size: int,
    preprocess: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Run all images through the network in evaluation mode; `then` gets each batch's labels afterwards.

    A hook that has seen enough of a batch raises `StopForward`.
    """
    prepare = preprocess or preprocess_of(network)
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    with eval_mode(network), torch.no_grad():
        for start in range(0, len(data), batch_size):
            with suppress(StopForward):
                network(prepare(data.images[start : start + batch_size].to(device)))
            then(data.labels[start : start + batch_size])
