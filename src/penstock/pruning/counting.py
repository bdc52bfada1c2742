"""What networks that skip cost, and the densities that a budget asks for.

A gated network's images differ in how many channels they use, so its cost is a mean over images. The engine
runs such a network image by image, with each image's own counts (`image_densities`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from penstock.accounting import account
from penstock.errors import PruningError
from penstock.gating import gated_layers, is_gated, set_density
from penstock.pruning.protocol import Budget, Cost
from penstock.surgery.network import eval_mode, keep_densities


def gated_cost(network: nn.Module, images: Tensor, extra: float = 0.0, predictors: bool = True) -> Cost:
    """The cost of a gated network on `images`; extra: MACs of a decision network beside it.

    predictors: whether the authors' count has the gates' own MACs (ours always has).
    """
    counted = account(network, images, "executed")
    gates = 0.0 if predictors else sum(layer.gate_macs for layer in counted.layers)
    return Cost(counted.dense_macs, counted.macs - gates + extra, counted.macs + extra)


@torch.no_grad()
def image_densities(network: nn.Module, images: Tensor) -> list[dict[str, float]]:
    """For every image {gated layer: the share of its channels that was computed}: the engine's `density`."""
    layers = dict(gated_layers(network))
    with eval_mode(network):
        network(images)
    shares: list[dict[str, float]] = [{} for _ in images]
    for name, layer in layers.items():
        assert layer.gains is not None
        for own, count in zip(shares, (layer.gains != 0).sum(1).tolist(), strict=True):
            own[name] = max(1, count) / layer.conv.out_channels
    return shares


def density_for(gated: nn.Module, example: Tensor, budget: Budget, least: float = 0.02) -> float:
    """The one density of all gated layers that meets the budget, by the paper's count; it is not set."""
    if not is_gated(gated):
        raise PruningError(f"{type(gated).__name__} has no convolution that can be gated")
    if budget.ratio is not None:
        return 1 - budget.ratio
    assert budget.saving is not None
    if (most := saving_at(gated, example, least)) < budget.saving:
        most_words = f"{most:.4g}, at density {least:g},"
        raise PruningError(f"saving {budget.saving:g}: {most_words} is the most that can be had")
    found = least

    def move(knob: float) -> None:
        nonlocal found
        found = least + knob * (1.0 - least)

    meet_saving(lambda: saving_at(gated, example, found), budget.saving, move, halvings=20)
    return found


def saving_at(gated: nn.Module, example: Tensor, density: float) -> float:
    """How many times fewer MACs the network takes at one density of all layers, by the paper's count."""
    with keep_densities(gated):
        set_density(gated, density)
        counted = account(gated, example[:1], "paper")
    return counted.dense_macs / counted.macs


def meet_saving(
    saving: Callable[[], float], wanted: float, move: Callable[[float], None], halvings: int = 14
) -> None:
    """Move a knob, from 0, the least work, to 1, the most, to the last place where `wanted` is still saved.

    saving: how many times fewer MACs an image takes now, on average. Where even 0 saves too little, it stays
    there.

    >>> at = [1.0]
    >>> meet_saving(lambda: 1 / at[0], 4.0, lambda x: at.__setitem__(0, x))
    >>> round(at[0], 3)
    0.25
    """
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        move(middle)
        low, high = (middle, high) if saving() >= wanted else (low, middle)
    move(low)
