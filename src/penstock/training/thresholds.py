"""Thresholds of a whole network: images and a mean density for every gated layer in, thresholds out.

While a network trains, a layer's winners are those above the threshold that fits the batch, and the layer's
own threshold follows at a distance, as a norm's running statistics do. When the training ends the layers'
thresholds are fitted once more, to images as inference sees them.

Which channels a layer sees depends on the thresholds before it, so layers are fitted in passes over the
images: each pass fits every layer to the saliencies that the last thresholds made. A layer is right once
those before it are, so there are at most as many passes as layers, and as a rule three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from penstock.errors import DensityError, LayerError, TrainingError
from penstock.gating import (
    GatedConv2d,
    check_density,
    fit_threshold,
    gated_layers,
    winner_count,
    winners_take_all,
)
from penstock.surgery.network import eval_mode

_FOLLOWS = 0.1  # of the way to the batch's threshold, a step
_NEAR = 0.002  # a mean share this close to its density, as a share of it, is good enough


def cap_of(density: float, cap: float) -> float:
    """The most that one image may have where the mean is `density`: the cap, unless the mean is above it."""
    return max(density, cap)


def choose_by_threshold(layer: GatedConv2d, saliency: Tensor, choice: Tensor | None, cap: float) -> Tensor:
    """π in training: saliencies above the threshold with which the batch's mean share is the layer's density.

    saliency: (batch, channel). choice: what the winners are chosen by, if not the saliencies themselves.
    """
    channels = saliency.shape[1]
    mean, most = layer.density * channels, winner_count(cap_of(layer.density, cap), channels)
    found = fit_threshold(saliency, mean, most)
    if layer.threshold is not None:
        layer.threshold.lerp_(found.to(layer.threshold), _FOLLOWS if float(layer.threshold) else 1.0)
    if choice is not None:
        found = fit_threshold(choice, mean, most)
    return winners_take_all(saliency, most, choice, found)


def start_thresholds(network: nn.Module, cap: float) -> None:
    """Make a network ready to train with thresholds or, with cap 0, refuse one that has some."""
    for name, layer in gated_layers(network):
        if cap and layer.threshold is None:
            layer.drop_levels()
            layer.set_threshold(0.0)
        if not cap and layer.threshold is not None:
            raise TrainingError(
                f"layer {name!r} has a threshold, which would not follow the training; give "
                "recipe.gates.threshold_cap, or take it away with layer.set_threshold(None)"
            )


def fit_mean_shares(
    network: nn.Module, batches: Sequence[Tensor], densities: Mapping[str, float], cap: float
) -> dict[str, float]:
    """Give every gated layer the threshold with which its mean share of winners is its density; in place.

    batches: of the network's input. densities: {gated layer: the mean share}. Layers keep the level that
    serves their density, and `cap` becomes theirs. Returns the mean shares: {layer: of the last pass}.
    """
    layers = dict(gated_layers(network))
    if not layers:
        raise LayerError("the network has no gated layer; add some with penstock.add_gates(model, example)")
    check_density(cap, "cap")
    if set(densities) != set(layers):
        raise DensityError(f"densities: expected one for each of {', '.join(layers)}, got {dict(densities)}")
    for name, layer in layers.items():
        # Exactly k winners are where the first pass starts; a layer that has a threshold starts from it.
        if layer.threshold is None:
            layer.density = check_density(densities[name], f"density of layer {name!r}")
            layer.drop_levels()
        else:
            layer.density = cap_of(densities[name], cap)
    shares: dict[str, float] = {}
    for _ in range(len(layers) + 1):
        saliencies, shares = _look(network, batches)
        fitted = True
        for name, layer in layers.items():
            off = shares[name] / densities[name] - 1
            empty = layer.threshold is not None and not float(layer.threshold) and off < 0
            fitted = fitted and layer.threshold is not None and (abs(off) <= _NEAR or empty)
        if fitted:
            break
        for name, layer in layers.items():
            channels = layer.conv.out_channels
            most = winner_count(cap_of(densities[name], cap), channels)
            found = fit_threshold(saliencies[name], densities[name] * channels, most)
            layer.density = cap_of(densities[name], cap)
            layer.set_threshold(float(found))
    return shares


def _look(network: nn.Module, batches: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Every gated layer's saliencies, (image, channel), and the mean share of channels that it computed."""
    kept: dict[str, list[Tensor]] = {name: [] for name, _ in gated_layers(network)}
    won: dict[str, int] = dict.fromkeys(kept, 0)
    with eval_mode(network), torch.no_grad():
        for batch in batches:
            network(batch)
            for name, layer in gated_layers(network):
                assert layer.saliency is not None
                assert layer.gains is not None
                kept[name].append(layer.saliency)
                won[name] += int((layer.gains != 0).sum())
    found = {name: torch.cat(parts) for name, parts in kept.items()}
    return found, {name: won[name] / found[name].numel() for name in found}
