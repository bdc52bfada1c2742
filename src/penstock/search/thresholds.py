"""fit_thresholds: a gated network, images and a mean budget in; a threshold for every gated layer out.

With thresholds an easy image keeps few channels and a hard one many; their mean meets the budget, and a cap
bounds the worst (`penstock.gating.thresholds` has the equation).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.accounting import account
from penstock.datasets import Images, gather, preprocess_of
from penstock.errors import DataError, DensityError, LayerError
from penstock.gating import check_density, gated_layers, is_gated, layers_matching
from penstock.training.thresholds import cap_of, fit_mean_shares

_BATCH = 128
_FIRST = 512  # images on which a MAC budget is approached before all of them are used
_NEAR = 0.003  # MACs this close to the budget, as a share of it, are good enough
_TURNS = 8


@dataclass(frozen=True)
class Thresholds:
    """A threshold for every gated layer, and what they came to on the images that they were fitted to.

    densities: the mean share of winners that each layer was fitted to; shares: what it has. macs: executed,
    mean over the images; saving: how many times fewer than without gates; most: the dearest image's MACs.

    >>> import penstock as ps
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-d50")
    >>> found = ps.fit_thresholds(gated, ps.datasets.sample(), cap=0.7, images=16)
    >>> found.images, found.cap, found.macs <= found.most
    (16, 0.7, True)
    """

    thresholds: dict[str, float]
    densities: dict[str, float]
    cap: float
    shares: dict[str, float]
    macs: float
    saving: float
    most: float
    images: int

    def apply(self, network: nn.Module) -> None:
        """Set the thresholds, and the cap, in a network with the same gated layers.

        A layer with levels keeps the one that serves its mean density.
        """
        layers = dict(gated_layers(network))
        if set(layers) != set(self.thresholds):
            raise LayerError(
                f"the thresholds belong to layers {', '.join(self.thresholds)}; these are others"
            )
        for name, layer in layers.items():
            layer.density = self.densities[name]
            layer.drop_levels()
            layer.set_threshold(self.thresholds[name])
            layer.density = cap_of(self.densities[name], self.cap)


def fit_thresholds(
    gated: nn.Module,
    data: Images,
    *,
    density: float | Mapping[str, float] | None = None,
    macs: float | None = None,
    saving: float | None = None,
    cap: float = 0.8,
    images: int = 3000,
) -> Thresholds:
    """Find the thresholds with which images differ in cost and their mean meets a budget.

    At most one of: density (the mean share of winners, for all layers or as {layer: number}; by default each
    layer's own density), macs (executed, mean over images), saving (times fewer MACs than without gates);
    the last two scale the layers' own densities. cap: the largest share of a layer's channels that one image
    may have. data: images as those the network was trained on, at most `images` of them are used; labels are
    not. The network itself is left as it is: `Thresholds.apply` sets them.

    >>> import penstock as ps
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-d50")
    >>> found = ps.fit_thresholds(gated, ps.datasets.sample(), density=0.5, images=32)
    >>> found.apply(gated)
    >>> gated.conv0.density, gated.conv0.threshold > 0
    (0.8, tensor(True))
    """
    if not is_gated(gated):
        raise LayerError("fit_thresholds: the network has no gated layer; call add_gates and train it first")
    check_density(cap, "cap")
    given = [name for name, value in (("density", density), ("macs", macs), ("saving", saving)) if value]
    if len(given) > 1:
        raise DensityError(f"fit_thresholds: give one of density, macs and saving; got {', '.join(given)}")
    start = _densities(gated, density)
    if not len(data):
        raise DataError(f"{data.name}: there are no images to fit thresholds to")
    prepare = preprocess_of(gated, data)
    pixels, _ = gather(data, images)
    batches = [prepare(part) for part in pixels.split(_BATCH)]
    if macs is None and saving is None:
        return _fitted(gated, batches, start, cap)
    few = batches[: -(-_FIRST // _BATCH)]
    scale, found = _scaled(gated, few, start, cap, macs, saving, 1.0)
    if len(few) < len(batches):
        scale, found = _scaled(gated, batches, start, cap, macs, saving, scale)
    return found


def _densities(gated: nn.Module, given: float | Mapping[str, float] | None) -> dict[str, float]:
    """The mean share of every layer: its own, unless one is given."""
    own = {name: layer.density for name, layer in gated_layers(gated)}
    if given is None:
        return own
    if not isinstance(given, Mapping):
        return dict.fromkeys(own, check_density(given))
    for pattern, value in given.items():
        checked = check_density(value, where=f"density of layer {pattern!r}")
        own.update(dict.fromkeys(layers_matching(pattern, own, "gated layer"), checked))
    return own


def _fitted(
    gated: nn.Module, batches: list[Tensor], densities: Mapping[str, float], cap: float
) -> Thresholds:
    twin = deepcopy(gated)
    for _, layer in gated_layers(twin):
        layer.set_threshold(None)
    shares = fit_mean_shares(twin, batches, densities, cap)
    counted = account(twin, torch.cat(batches))
    return Thresholds(
        thresholds={name: float(layer.threshold or 0.0) for name, layer in gated_layers(twin)},
        densities=dict(densities),
        cap=cap,
        shares=shares,
        macs=counted.macs,
        saving=counted.saving,
        most=float(counted.image_macs.max()),
        images=counted.images,
    )


def _scaled(
    gated: nn.Module,
    batches: list[Tensor],
    start: Mapping[str, float],
    cap: float,
    macs: float | None,
    saving: float | None,
    scale: float,
) -> tuple[float, Thresholds]:
    """The densities times one number, so that the mean MACs meet the budget; that number, and the result."""
    for _ in range(_TURNS):
        densities = {name: min(1.0, max(1e-3, scale * value)) for name, value in start.items()}
        found = _fitted(gated, batches, densities, cap)
        wanted = found.macs * found.saving / saving if saving is not None else macs
        assert wanted is not None
        if abs(found.macs / wanted - 1) <= _NEAR:
            return scale, found
        # MACs grow with about the square of the density.
        scale = min(scale * (wanted / found.macs) ** 0.55, 1.0 / min(start.values()))
    said = f"saving={saving:g}" if saving is not None else f"macs={macs:g}"
    raise DensityError(
        f"fit_thresholds: {said} cannot be met by scaling the layers' densities; the nearest came to "
        f"{found.macs:,.0f} MACs, a saving of {found.saving:.2f}"
    )
