"""The static methods of the paper's tables, one file each, on one small protocol."""

from penstock.pruning.network_slimming import NetworkSlimming
from penstock.pruning.protocol import Budget, LayerCut, Method, Pruned

__all__ = ["Budget", "LayerCut", "Method", "NetworkSlimming", "Pruned"]
