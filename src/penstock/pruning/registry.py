"""The methods by name, as `penstock prune --method` and the tables know them.

A name and settings go in, a method comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.errors import PruningError
from penstock.pruning.amc import AutoMl
from penstock.pruning.channel_gating import ChannelGating
from penstock.pruning.channel_pruning import ChannelPruning
from penstock.pruning.controls import FromScratch, RandomChannels
from penstock.pruning.dcp import DiscriminationAware
from penstock.pruning.filter_pruning import FilterPruning
from penstock.pruning.lccl import LowCostLayers
from penstock.pruning.manidp import ManifoldPruning
from penstock.pruning.network_slimming import NetworkSlimming
from penstock.pruning.perforated import Perforated
from penstock.pruning.protocol import ActsOnEpochs, AddsToLoss, Method
from penstock.pruning.rnp import RuntimeNeuralPruning
from penstock.pruning.soft_filter_pruning import SoftFilterPruning
from penstock.pruning.thinet import ThiNet


@dataclass(frozen=True)
class Entry:
    """`label`: what figures call it. `preset`: the settings that make it this method rather than its twin."""

    label: str
    kind: type[Any]
    purpose: str
    preset: Mapping[str, Any] = field(default_factory=dict)


METHODS: dict[str, Entry] = {
    "network-slimming": Entry(
        "NS", NetworkSlimming, "channels with small norm scales go, one threshold for all"
    ),
    "filter-pruning": Entry("L1", FilterPruning, "filters with small weights go"),
    "soft-filter-pruning": Entry("SFP", SoftFilterPruning, "weak filters are zeroed every epoch, then go"),
    "fpgm": Entry(
        "FPGM",
        SoftFilterPruning,
        "as SFP, but filters near all others go",
        {"criterion": "median", "name": "fpgm"},
    ),
    "thinet": Entry("ThiNet", ThiNet, "what the next layer would miss least goes"),
    "channel-pruning": Entry("CP", ChannelPruning, "a LASSO chooses inputs, least squares refit the layer"),
    "dcp": Entry("DCP", DiscriminationAware, "greedily, what keeps outputs and classes apart stays"),
    "amc": Entry("AMC", AutoMl, "a DDPG agent finds how many channels each layer keeps"),
    "rnp": Entry("RNP", RuntimeNeuralPruning, "an agent decides how many channel groups an image gets"),
    "manidp": Entry("ManiDP", ManifoldPruning, "gates with thresholds: images differ in their channels"),
    "perforated": Entry("Perforated", Perforated, "some pixels are computed, the others copy a neighbour"),
    "lccl": Entry("LCCL", LowCostLayers, "a cheap map says which pixels are worth computing"),
    "channel-gating": Entry("CGNet", ChannelGating, "some inputs decide if the rest is worth adding"),
    "random-channels": Entry("random", RandomChannels, "control: channels at random"),
    "from-scratch": Entry("scratch", FromScratch, "control: the same widths, untrained"),
}


def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """The method called `name`. settings: values of its fields, as they are or as text ("true", "0.5")."""
    if name not in METHODS:
        raise PruningError(f"there is no method {name!r}; there are: {', '.join(METHODS)}")
    entry = METHODS[name]
    known = {one.name: one for one in fields(entry.kind) if one.name != "name"}
    given: dict[str, Any] = dict(entry.preset)
    for key, value in (settings or {}).items():
        if key not in known or key in entry.preset:
            free = [one for one in known if one not in entry.preset]
            raise PruningError(f"{name} has no setting {key!r}; it has: {', '.join(free) or 'none'}")
        given[key] = _read(name, key, value, known[key].default)
    method: Method = entry.kind(**given)
    return method


def prepares(method: Method) -> bool:
    """Whether the method wants the network to train before the cut."""
    return isinstance(method, ActsOnEpochs | AddsToLoss)


def _read(method: str, key: str, value: Any, default: Any) -> Any:
    """`value` as the type of the field's default."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        return type(default)(value)
    except (KeyError, TypeError, ValueError):
        kind = type(default).__name__
        raise PruningError(f"{method}: {key} takes a {kind} such as {default!r}, got {value!r}") from None
