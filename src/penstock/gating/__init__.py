"""The paper's equations: channel summary, saliency predictor, winners-take-all, the gated layer, penalty."""

from penstock.gating.folding import Folded, fold_norm
from penstock.gating.layer import (
    ZERO_PRESERVING,
    GatedConv2d,
    SaliencyPredictor,
    gated_layers,
    saliency_penalty,
    set_density,
    set_image_densities,
    set_levels,
)
from penstock.gating.levels import LevelNorm2d, check_levels, level_edges
from penstock.gating.summaries import SUMMARIES, summarise
from penstock.gating.winners import check_density, winner_count, winner_mask, winners_take_all

__all__ = [
    "SUMMARIES",
    "ZERO_PRESERVING",
    "Folded",
    "GatedConv2d",
    "LevelNorm2d",
    "SaliencyPredictor",
    "check_density",
    "check_levels",
    "fold_norm",
    "gated_layers",
    "level_edges",
    "saliency_penalty",
    "set_density",
    "set_image_densities",
    "set_levels",
    "summarise",
    "winner_count",
    "winner_mask",
    "winners_take_all",
]
