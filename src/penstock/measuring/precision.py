"""What int8 costs in accuracy: all of it, layer by layer, and which layers had better stay in float32."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from penstock.engine import Engine
from penstock.engine import compile as compile_engine
from penstock.quantizing import Ranges

_BATCH = 500
_LAYER_IMAGES = 2000  # on which single layers are compared


@dataclass(frozen=True)
class LayerLoss:
    """One layer alone in int8: the share of images, in percent, whose first class is another one then."""

    layer: str
    changed: float


@dataclass(frozen=True)
class Precision:
    """top-1 in percent with every step in float32, and in int8 but for `ranges.keep_float`.

    first: with every layer in int8, before any was kept in float32.
    """

    images: int
    float32: float
    first: float
    int8: float
    layers: tuple[LayerLoss, ...]
    ranges: Ranges

    @property
    def loss(self) -> float:
        return self.float32 - self.int8


def weigh_precision(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    ranges: Ranges,
    tolerance: float,
    say: Callable[[str], None] = lambda text: None,
) -> Precision:
    """Score int8 on `images` (n, …), preprocessed; keep layers in float32 until it loses at most `tolerance`.

    Layers are kept in the order of what each of them changes when it alone is in int8.
    """
    example = images[:1]
    plain = compile_engine(network, example)
    classes = _classes(plain, images)
    float32 = _top1(classes, labels)
    say(f"float32: top-1 {float32:.2f}%")
    names = [name for name in plain.layers if name not in _always_float(network, example, ranges)]

    def int8_without(kept: Collection[str]) -> Engine:
        return compile_engine(network, example, precision="int8", calibration=ranges, keep_float=kept)

    first = int8 = _top1(_classes(int8_without(()), images), labels)
    say(f"int8: top-1 {int8:.2f}%")
    some = images[:_LAYER_IMAGES]
    layers = []
    for name in names:
        alone = _classes(int8_without([other for other in names if other != name]), some)
        layers.append(LayerLoss(name, 100 * float((alone != classes[: len(some)]).float().mean())))
    kept: list[str] = []
    for worst in sorted(layers, key=lambda one: -one.changed):
        if float32 - int8 <= tolerance:
            break
        kept.append(worst.layer)
        int8 = _top1(_classes(int8_without(kept), images), labels)
        say(f"int8 with {', '.join(kept)} in float32: top-1 {int8:.2f}%")
    chosen = replace(ranges, keep_float=(*ranges.keep_float, *kept))
    return Precision(len(images), float32, first, int8, tuple(layers), chosen)


def _always_float(network: nn.Module, example: Tensor, ranges: Ranges) -> dict[str, str]:
    return compile_engine(network, example, precision="int8", calibration=ranges).float_steps


def _classes(engine: Engine, images: Tensor) -> Tensor:
    return torch.cat([engine(batch).flatten(1).argmax(1) for batch in images.split(_BATCH)])


def _top1(classes: Tensor, labels: Tensor) -> float:
    return 100 * float((classes == labels).float().mean())
