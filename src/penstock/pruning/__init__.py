"""The methods of the paper's tables, one file each, on one small protocol; gates on top of static ones."""

from penstock.pruning.amc import AutoMl
from penstock.pruning.channel_gating import ChannelGating
from penstock.pruning.channel_pruning import ChannelPruning
from penstock.pruning.controls import FromScratch, RandomChannels
from penstock.pruning.counting import image_densities
from penstock.pruning.dcp import DiscriminationAware
from penstock.pruning.filter_pruning import FilterPruning, Sensitivity, sensitivity
from penstock.pruning.lccl import LowCostLayers
from penstock.pruning.manidp import ManifoldPruning
from penstock.pruning.network_slimming import NetworkSlimming
from penstock.pruning.perforated import Perforated
from penstock.pruning.protocol import Budget, Calibration, Cost, LayerCut, Method, Pruned, Skipping
from penstock.pruning.registry import METHODS, make_method, prepares
from penstock.pruning.rnp import RuntimeNeuralPruning
from penstock.pruning.soft_filter_pruning import SoftFilterPruning
from penstock.pruning.stages import Outcome, Plan, Stage, calibration, prune_in_stages
from penstock.pruning.thinet import ThiNet

__all__ = [
    "METHODS",
    "AutoMl",
    "Budget",
    "Calibration",
    "ChannelGating",
    "ChannelPruning",
    "Cost",
    "DiscriminationAware",
    "FilterPruning",
    "FromScratch",
    "LayerCut",
    "LowCostLayers",
    "ManifoldPruning",
    "Method",
    "NetworkSlimming",
    "Outcome",
    "Perforated",
    "Plan",
    "Pruned",
    "RandomChannels",
    "RuntimeNeuralPruning",
    "Sensitivity",
    "Skipping",
    "SoftFilterPruning",
    "Stage",
    "ThiNet",
    "calibration",
    "image_densities",
    "make_method",
    "prepares",
    "prune_in_stages",
    "sensitivity",
]
