"""The paper's equations: channel summary, saliency predictor, winners-take-all, the gated layer, penalty."""

from penstock.gating.layer import (
    ZERO_PRESERVING,
    GatedConv2d,
    SaliencyPredictor,
    gated_layers,
    saliency_penalty,
    set_density,
    set_image_densities,
)
from penstock.gating.summaries import SUMMARIES, summarise
from penstock.gating.winners import check_density, winner_count, winner_mask, winners_take_all

__all__ = [
    "SUMMARIES",
    "ZERO_PRESERVING",
    "GatedConv2d",
    "SaliencyPredictor",
    "check_density",
    "gated_layers",
    "saliency_penalty",
    "set_density",
    "set_image_densities",
    "summarise",
    "winner_count",
    "winner_mask",
    "winners_take_all",
]
