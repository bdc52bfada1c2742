"""The paper's equations: channel summary, saliency predictor, winners-take-all, the gated layer, penalty."""

from penstock.gating.arithmetic import EQUATIONS, Arithmetic
from penstock.gating.folding import Folded, fold_norm, scale_and_shift
from penstock.gating.layer import (
    GatedConv2d,
    SaliencyPredictor,
    gated_layers,
    is_gated,
    saliency_penalty,
    set_density,
    set_image_densities,
    set_levels,
)
from penstock.gating.levels import LevelNorm2d, check_levels, level_edges
from penstock.gating.summaries import SUMMARIES, summarise
from penstock.gating.thresholds import fit_threshold
from penstock.gating.winners import check_density, winner_count, winner_mask, winners_take_all
from penstock_runtime.densities import layers_matching

__all__ = [
    "EQUATIONS",
    "SUMMARIES",
    "Arithmetic",
    "Folded",
    "GatedConv2d",
    "LevelNorm2d",
    "SaliencyPredictor",
    "check_density",
    "check_levels",
    "fit_threshold",
    "fold_norm",
    "gated_layers",
    "is_gated",
    "layers_matching",
    "level_edges",
    "saliency_penalty",
    "scale_and_shift",
    "set_density",
    "set_image_densities",
    "set_levels",
    "summarise",
    "winner_count",
    "winner_mask",
    "winners_take_all",
]
