"""Plots, tables and the HTML page: what the paper shows, from the user's own networks and runs."""

from penstock.reporting.build import build_page
from penstock.reporting.costs import (
    LayerCost,
    MemoryCost,
    NetworkCost,
    layer_table,
    memory_cost,
    memory_table,
    network_cost,
    original_cost,
)
from penstock.reporting.excitation import ChannelMaxima, channel_maxima
from penstock.reporting.history import EpochSkips, SkipRecorder, read_history
from penstock.reporting.networks import describe_network
from penstock.reporting.page import Card, Page, render, write_page
from penstock.reporting.runs import Run, Sweep, SweepPoint, read_runs
from penstock.reporting.skipping import SkipMap, skip_maps

__all__ = [
    "Card",
    "ChannelMaxima",
    "EpochSkips",
    "LayerCost",
    "MemoryCost",
    "NetworkCost",
    "Page",
    "Run",
    "SkipMap",
    "SkipRecorder",
    "Sweep",
    "SweepPoint",
    "build_page",
    "channel_maxima",
    "describe_network",
    "layer_table",
    "memory_cost",
    "memory_table",
    "network_cost",
    "original_cost",
    "read_history",
    "read_runs",
    "render",
    "skip_maps",
    "write_page",
]
