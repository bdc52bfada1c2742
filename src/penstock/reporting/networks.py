"""The page's part about one network: a gated network and labelled images in, figures with their words out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from penstock.datasets import ImageArrays
from penstock.errors import LayerError
from penstock.gating import gated_layers
from penstock.reporting.excitation import ChannelMaxima, channel_maxima
from penstock.reporting.figures import excitation_figure, history_figure, maxima_figure, skipping_figure
from penstock.reporting.history import EpochSkips
from penstock.reporting.page import NetworkPart, Picture, identifier, picture
from penstock.reporting.skipping import SkipMap
from penstock.reporting.spread import Array, spread_pictures
from penstock.reporting.tables import Table

_MOST_EPOCHS = 12  # what the paper shows, and what fits


def describe_network(
    name: str,
    network: nn.Module,
    data: ImageArrays,
    maps: Sequence[SkipMap],
    *,
    layer: str | None = None,
    channels: Sequence[int] | None = None,
    history: Sequence[EpochSkips] = (),
    measured: Table | None = None,
    image_costs: tuple[Array, Array | None] | None = None,
) -> NetworkPart:
    """`layer`: the one whose history and exciting images are shown (default: the middle gated layer, as the
    paper took conv4 of eight); `channels`: of that layer (default: the two whose maxima differ most).
    `image_costs`: MACs and milliseconds of each image, where images differ."""
    names = [one.layer for one in maps]
    layer = layer or names[len(names) // 2]
    if layer not in names:
        raise LayerError(f"no gated layer is named {layer!r}; there are: {', '.join(names)}")
    id_ = identifier(f"network {name}")
    gates = [gate for _, gate in gated_layers(network)]
    densities = sorted({gate.density for gate in gates})
    said = f"{densities[0]:g}" if len(densities) == 1 else f"{densities[0]:g} to {densities[-1]:g}"
    above = any(gate.threshold is not None for gate in gates)
    said = f"Channels above thresholds, at most {said} of them" if above else f"Density {said}"
    return NetworkPart(
        id=id_,
        title=name,
        lead=f"{said}, seen with {len(data):,} images of {data.name}.",
        measured=measured,
        spread=() if image_costs is None else spread_pictures(*image_costs, id_),
        skipping=tuple(skipping_pictures(maps, data.classes, id_)),
        history=tuple(history_pictures(history, layer, id_)),
        excitation=tuple(
            excitation_pictures(channel_maxima(network, data, layer, density=1.0), data, channels, id_)
        ),
    )


def skipping_pictures(maps: Sequence[SkipMap], classes: Sequence[str], id_: str) -> list[Picture]:
    """One heat map a layer."""
    pictures = []
    for index, one in enumerate(maps):
        channels, unused = one.skipped.shape[1], int(one.never_used.sum())
        alt = (
            f"Heat map of layer {one.layer}: {len(classes)} classes by {channels} channels; on average "
            f"{one.computed:.1f} channels are computed for an image, {unused} are never used."
        )
        figure = skipping_figure(one.probability, one.never_used, one.order, classes, title=one.layer)
        pictures.append(picture(figure, f"{id_} skipping {index}", alt))
    return pictures


def history_pictures(history: Sequence[EpochSkips], layer: str, id_: str) -> list[Picture]:
    """The chosen layer epoch by epoch, in the first epoch's order of channels; a dozen epochs at most."""
    kept = [(epochs.epoch, one) for epochs in history for one in epochs.maps if one.layer == layer]
    kept = [pair for pair in kept if pair[1].skipped.shape == kept[0][1].skipped.shape]
    if not kept:
        return []
    if len(kept) > _MOST_EPOCHS:
        kept = [kept[i] for i in np.linspace(0, len(kept) - 1, _MOST_EPOCHS).round().astype(int)]
    maps = [(epoch, one.probability, one.never_used) for epoch, one in kept]
    figure = history_figure(maps, kept[0][1].order, title=f"{layer} over {kept[-1][0]} epochs")
    shown = ", ".join(str(epoch) for epoch, _ in kept)
    alt = f"Heat maps of layer {layer} after epochs {shown}, one below the other."
    return [picture(figure, f"{id_} history", alt)]


def excitation_pictures(
    maxima: ChannelMaxima, data: ImageArrays, channels: Sequence[int] | None, id_: str
) -> list[Picture]:
    """The images that most and least excite each chosen channel, then how the maxima are distributed."""
    pictures = []
    images = data.images.numpy()
    for channel in maxima.most_varied() if channels is None else channels:
        column = maxima.values[:, channel] if 0 <= channel < maxima.values.shape[1] else None
        most, least = maxima.most(channel), maxima.least(channel)
        assert column is not None
        figure = excitation_figure(
            [(images[i], float(column[i])) for i in most],
            [(images[i], float(column[i])) for i in least],
            title=f"{maxima.layer}, channel {channel}",
        )
        words = [
            f"{name}: " + ", ".join(f"{data.classes[int(data.labels[i])]} {column[i]:.3f}" for i in rows)
            for name, rows in (("highest", most), ("lowest", least))
        ]
        alt = f"Images by their maximum in channel {channel} of layer {maxima.layer}; {'; '.join(words)}."
        pictures.append(picture(figure, f"{id_} channel {channel}", alt))
    shown = min(20, maxima.values.shape[1])
    middle = np.median(maxima.values[:, :shown], axis=0)
    alt = (
        f"Distribution of the maxima of the first {shown} channels of layer {maxima.layer}: "
        f"medians from {middle.min():.2f} to {middle.max():.2f}, values from "
        f"{maxima.values[:, :shown].min():.2f} to {maxima.values[:, :shown].max():.2f}."
    )
    figure = maxima_figure(maxima.values, channels=shown, title=f"{maxima.layer}, first {shown} channels")
    caption = "Box: the middle half of the images; line: the median; whiskers: 1% to 99%."
    pictures.append(picture(figure, f"{id_} maxima", alt, caption))
    return pictures
