"""What the pixel methods share: convolutions in a network replaced by ones that skip, and their MACs counted.

A layer that skips keeps the convolution it replaces as `conv` and notes, in `work`, what its last forward
computed of it. The engine runs those that skip whole pixels (`penstock.surgery.pixels` says which).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, fx, nn

from penstock.accounting import account
from penstock.errors import PruningError
from penstock.pruning.protocol import Budget, Cost, Skipping, nothing_left
from penstock.surgery import trace, weight_layers
from penstock.surgery.network import eval_mode
from penstock.surgery.pixels import PixelConv


@dataclass(frozen=True)
class Work:
    """MACs of one forward, image by image, (batch,): by the authors' count, and as vectors execute them."""

    authors: Tensor
    executed: Tensor


class PixelLayer(PixelConv):
    """A convolution that does not compute everything. `dense_macs`: of the convolution, for one image."""

    def __init__(self, conv: nn.Conv2d, dense_macs: int) -> None:
        super().__init__()
        self.conv = conv
        self.dense_macs = dense_macs
        self.work: Work | None = None
        self.fits = False  # whether a forward fits the layer's threshold to what it sees


L = TypeVar("L", bound=PixelLayer)


def pixel_layers(network: nn.Module) -> Iterator[tuple[str, PixelLayer]]:
    """Every layer that skips, with its name."""
    for name, module in network.named_modules():
        if isinstance(module, PixelLayer):
            yield name, module


def layers_of(network: nn.Module, kind: type[L]) -> list[L]:
    """The layers that skip in the way of one method."""
    return [layer for _, layer in pixel_layers(network) if isinstance(layer, kind)]


@dataclass(frozen=True)
class Candidate:
    """A convolution that may be replaced. shape: of its output, (channel, height, width)."""

    name: str
    conv: nn.Conv2d
    dense_macs: int
    shape: tuple[int, int, int]
    first: bool


@dataclass(frozen=True)
class Chosen:
    """The convolutions of a traced copy that a method replaces, and why it leaves other layers alone.

    dense: MACs of the whole network as it was, for one image.
    """

    traced: fx.GraphModule
    candidates: list[Candidate]
    left_alone: dict[str, str]
    dense: float

    @property
    def skipping(self) -> int:
        """MACs of the convolutions that are replaced."""
        return sum(one.dense_macs for one in self.candidates)

    def replace_by(self, make: Callable[[Candidate], PixelLayer]) -> None:
        """Put a layer that skips in each convolution's place."""
        for candidate in self.candidates:
            layer = make(candidate)
            layer.train(candidate.conv.training)
            self.traced.set_submodule(candidate.name, layer)

    def result(self) -> Skipping:
        """What `prune` returns."""
        return Skipping(self.traced, "pixels", count_pixels, self.left_alone)


def choose_convolutions(
    network: nn.Module, example: Tensor, refuse: Callable[[Candidate], str | None]
) -> Chosen:
    """The convolutions that run once in `network` and that a method does not refuse with a reason."""
    traced = trace(network, example)
    found, left_alone = list[Candidate](), dict[str, str]()
    layers = weight_layers(traced)
    names = [layer.name for layer in layers]
    for layer in layers:
        if not isinstance(layer.weights, nn.Conv2d) or layer.gated:
            left_alone[layer.name] = "not a plain convolution"
        elif names.count(layer.name) > 1:
            left_alone[layer.name] = "it runs more than once in a forward"
        else:
            _, *size = layer.output_shape
            macs = layer.weights.weight[0].numel() * size[0] * size[1] * size[2]
            first = not any(isinstance(one.weights, nn.Conv2d) for one in layers[: names.index(layer.name)])
            one = Candidate(layer.name, layer.weights, macs, (size[0], size[1], size[2]), first)
            reason = refuse(one)
            if reason is None:
                found.append(one)
            else:
                left_alone[one.name] = reason
    if not found:
        raise nothing_left("convolution that can skip pixels", network, left_alone)
    return Chosen(traced, found, left_alone, dense_macs(traced, example[:1]))


@torch.no_grad()
def fit_front_to_back(network: nn.Module, images: Tensor) -> None:
    """Every layer that skips fits its threshold to what the fitted layers before it make of `images`."""
    layers = [layer for _, layer in pixel_layers(network)]
    for layer in layers:
        layer.fits = True
    try:
        with eval_mode(network):
            network(images)
    finally:
        for layer in layers:
            layer.fits = False


def count_pixels(network: nn.Module, images: Tensor) -> Cost:
    """Mean MACs of an image: what the skipping layers computed, and all of the others."""
    totals = torch.zeros(2, dtype=torch.float64)
    with eval_mode(network), torch.no_grad():
        for batch in images.split(64):
            network(batch)
            for name, layer in pixel_layers(network):
                if layer.work is None:
                    raise PruningError(f"layer {name!r} has not run: its MACs cannot be counted")
                totals += torch.stack([layer.work.authors.double().sum(), layer.work.executed.double().sum()])
    dense = dense_macs(network, images[:1])
    fixed = dense - sum(layer.dense_macs for _, layer in pixel_layers(network))
    return Cost(dense, fixed + float(totals[0]) / len(images), fixed + float(totals[1]) / len(images))


def dense_macs(network: nn.Module, example: Tensor) -> float:
    """MACs with every skipping layer replaced by its convolution again."""
    twin = deepcopy(network)
    for name, layer in list(pixel_layers(twin)):
        twin.set_submodule(name, layer.conv)
    return account(twin, example, "paper").macs


def share_for(budget: Budget, dense: float, skipping: float, extra: float = 0.0, least: float = 0.0) -> float:
    """The share of the `skipping` layers' MACs to compute, the same for all, so that the budget is met.

    extra: MACs added by what decides; least: the smallest share that the method can reach.
    """
    if budget.ratio is not None:
        share = 1 - budget.ratio
        if share < least:
            raise PruningError(f"ratio {budget.ratio:g}: at most {1 - least:.4g} can be skipped")
        return share
    assert budget.saving is not None
    share = (dense / budget.saving - (dense - skipping) - extra) / skipping
    if share < least:
        most = dense / (dense - skipping + extra + least * skipping)
        raise PruningError(f"saving {budget.saving:g}: {most:.4g} is the most that can be had")
    return min(1.0, share)
