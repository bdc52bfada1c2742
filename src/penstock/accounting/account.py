"""What a network costs: per layer and in total, as numbers only.

MACs are per image. Bytes are those that the convolutions must read or write for one image: weights
4·k²·C_in·C_out, activations 4·(input + output), peak the largest weights + input + output of one layer, each
with only the channels that are computed (the paper's memory table).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from penstock.errors import InputError


@dataclass(frozen=True)
class LayerAccount:
    """One convolution or linear layer (or another operation with MACs of its own, such as a matrix product).

    `macs` and the active channels are means over the images; `gate_macs` is the part of `macs` that the
    predictor and the boosting take. `image_macs`: int64 (images,), image by image.
    """

    name: str
    kind: str  # "gated conv" | "conv" | "linear" | "other"
    macs: float
    gate_macs: float
    dense_macs: int  # of the layer without gate, nothing skipped
    weight_bytes: float
    dense_weight_bytes: int
    gate_bytes: float  # the predictor's weights, not part of weight_bytes
    activation_bytes: float
    in_channels: int
    out_channels: int
    active_in: float
    active_out: float
    density: float | None  # the gate's, None without one
    output_size: tuple[int, ...]  # height and width of the output map; empty for a linear layer
    convolutional: bool  # whether it counts for the memory totals
    image_macs: Tensor = field(repr=False, compare=False)

    @property
    def peak_bytes(self) -> float:
        """Weights, input and output together, for one image."""
        return self.weight_bytes + self.activation_bytes

    @property
    def saving(self) -> float:
        """How many times fewer MACs than the layer without gate."""
        return self.dense_macs / self.macs if self.macs else 1.0


@dataclass(frozen=True)
class Account:
    """The whole network. `convention` says how it was counted: "paper" or "executed".

    The memory totals cover what the paper's table covers: convolutions, and a linear layer that reads pooled
    channels (a 1×1 convolution by another name). VGG's dense layers over flattened maps have their MACs in
    `macs` and their bytes in their own `layers[i]` only.

    >>> import torch, penstock as ps
    >>> cost = ps.account(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32))
    >>> cost.macs, cost["conv0"].dense_macs
    (174301824.0, 1555200)
    """

    convention: str
    layers: tuple[LayerAccount, ...]
    images: int
    original_macs: int  # of the network that `saving` compares with

    @property
    def macs(self) -> float:
        """MACs of one image, predictors and boosting included; the mean over the images."""
        return sum(layer.macs for layer in self.layers)

    @property
    def dense_macs(self) -> int:
        """MACs of one image through this network without gates, nothing skipped."""
        return sum(layer.dense_macs for layer in self.layers)

    @property
    def saving(self) -> float:
        """How many times fewer MACs than the original."""
        return self.original_macs / self.macs if self.macs else 1.0

    @property
    def image_macs(self) -> Tensor:
        """int64 (images,): the MACs of each image."""
        total = torch.zeros(self.images, dtype=torch.int64)
        for layer in self.layers:
            total += layer.image_macs
        return total

    @property
    def macs_std(self) -> float:
        """The standard deviation of the MACs over the images."""
        return float(self.image_macs.double().std(correction=0))

    @property
    def macs_min(self) -> int:
        return int(self.image_macs.min())

    @property
    def macs_max(self) -> int:
        return int(self.image_macs.max())

    @property
    def weight_bytes(self) -> float:
        """Weights that the convolutions read for one image."""
        return sum(layer.weight_bytes for layer in self.layers if layer.convolutional)

    @property
    def gate_bytes(self) -> float:
        """Weights that the predictors read for one image; the paper's table leaves them out."""
        return sum(layer.gate_bytes for layer in self.layers)

    @property
    def activation_bytes(self) -> float:
        """Input and output maps that the convolutions read and write for one image."""
        return sum(layer.activation_bytes for layer in self.layers if layer.convolutional)

    @property
    def peak_bytes(self) -> float:
        """The most that one convolution needs at once for one image: weights, input and output."""
        return self.peak_bytes_for(1)

    def peak_bytes_for(self, batch: int) -> float:
        """The same for `batch` images at once. Different images choose different channels, so a batch of more
        than one reads all the weights."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise InputError(f"batch: expected a whole number of images, 1 or more, got {batch!r}")
        return max(
            (
                (layer.weight_bytes if batch == 1 else layer.dense_weight_bytes)
                + batch * layer.activation_bytes
                for layer in self.layers
                if layer.convolutional
            ),
            default=0.0,
        )

    def __getitem__(self, name: str) -> LayerAccount:
        for layer in self.layers:
            if layer.name == name:
                return layer
        names = ", ".join(layer.name for layer in self.layers)
        raise KeyError(f"no layer is named {name!r}; there are: {names}")
