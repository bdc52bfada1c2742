"""The static methods of the paper's tables, one file each, on one small protocol; gates on top of them."""

from penstock.pruning.network_slimming import NetworkSlimming
from penstock.pruning.protocol import Budget, LayerCut, Method, Pruned
from penstock.pruning.stages import Outcome, Plan, Stage, prune_in_stages

__all__ = [
    "Budget",
    "LayerCut",
    "Method",
    "NetworkSlimming",
    "Outcome",
    "Plan",
    "Pruned",
    "Stage",
    "prune_in_stages",
]
