"""What to try a network with: images of the size that it takes, and gates that nobody has trained yet."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import interpolate

from penstock.datasets import preprocess_of, sample
from penstock.errors import InputError
from penstock.gating import gated_layers
from penstock.surgery import shape_of

_MOST_VALUES = 1 << 22  # of one image, when only a file names its size: 3 x 1182 x 1182


def probe_images(network: nn.Module, shape: tuple[int, ...], count: int) -> tuple[Tensor, str]:
    """`count` images of `shape` (channel, height, width), preprocessed for the network; and which they are.

    They are spread over the sample's classes, and resized where the network takes another size. Networks
    that do not take three channels get noise.
    """
    weight = next(network.parameters())
    if len(shape) != 3 or shape[0] != 3:
        noise = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
        return noise.to(weight), f"{count} images of noise"
    data = sample()
    pixels = data.images[:: max(1, len(data) // count)][:count]
    words = f"{len(pixels)} images of the embedded sample"
    if tuple(pixels.shape[2:]) != shape[1:]:
        pixels = resized(pixels, shape[1:])
        words += f", resized to {shape[1]}×{shape[2]}"
    prepare = preprocess_of(network)
    return prepare(pixels).to(weight), words


def resized(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """uint8 (n, c, h, w) → uint8 (n, c, *size)."""
    if tuple(pixels.shape[2:]) == tuple(size):
        return pixels
    other = interpolate(pixels.float(), size=size, mode="bilinear", antialias=True)
    return other.round().clamp(0, 255).to(torch.uint8)


def parse_shape(text: str) -> tuple[int, ...]:
    """ "3x32x32" → (3, 32, 32).

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text):
        raise InputError(f"--input: expected channels x height x width, as in 3x32x32, got {text!r}")
    channels, height, width = map(int, text.split("x"))
    return channels, height, width


def shape_for(network: nn.Module, text: str) -> tuple[int, ...]:
    """The size of one input that --input says, or the network's own."""
    return parse_shape(text) if text else known_shape(network)


def known_shape(network: nn.Module) -> tuple[int, ...]:
    """What the network was traced with, or what its kind is made for.

    A file may name any size, and running the network on it takes memory to match: a large one is the user's
    to name.
    """
    if isinstance(network, fx.GraphModule):
        entry = next(node for node in network.graph.nodes if node.op == "placeholder")
        shape = shape_of(entry) if "shape" in entry.meta else None
        if shape is not None and math.prod(shape[1:]) > _MOST_VALUES:
            text = "x".join(map(str, shape[1:]))
            raise InputError(
                f"the network was traced with images of {text}; --input {text} runs it at that size"
            )
        if shape is not None:
            return shape[1:]
    definition: dict[str, Any] = getattr(network, "definition", None) or {}
    return (3, 32, 32) if definition.get("zoo") == "m_cifarnet" else (3, 224, 224)


@torch.no_grad()
def draw_winners(gated: nn.Module, chance: torch.Generator | None = None) -> None:
    """Let each gated layer's winners be drawn at random, the same for every image.

    Fresh gates all tie, so every layer would keep the same first channels, and residual sums would look
    sparser than any trained network's. All saliencies are above zero, so exactly ⌈d · C⌉ channels win.
    """
    for _, layer in gated_layers(gated):
        layer.gate.weight.zero_()
        layer.gate.bias.copy_(1 + torch.rand(layer.gate.bias.shape, generator=chance))
