"""The paper's per-layer table: MACs and output channels of M-CifarNet, original, NS, FBS and NS+FBS.

It needs no training: the shipped networks are counted. Of two numbers in brackets the first is the channels
computed for an image, the second those that some image used.
"""

from __future__ import annotations

from penstock.accounting import account
from penstock.cli.reproductions.plan import Defaults, Reproduction, Setting, Step
from penstock.datasets import preprocess_of, sample
from penstock.gating import is_gated
from penstock.reporting.costs import layer_table, network_cost, original_cost
from penstock.reporting.skipping import skip_maps
from penstock.reporting.tables import Table
from penstock.zoo import pretrained

_NAME = "cifar-layers"
_OTHERS = {"NS": "ns", "FBS": "d50", "NS+FBS": "ns-fbs"}
_COUNTED = 64  # images whose MACs are counted; which channels are ever used is asked of all of the sample


def _steps(setting: Setting) -> tuple[Step, ...]:
    return ()


def _table(setting: Setting) -> Table:
    data = sample()
    dense = pretrained("m_cifarnet-cifar10-dense")
    columns = [original_cost("Original", account(dense, preprocess_of(dense)(data.images[:1])))]
    for method, name in _OTHERS.items():
        network = pretrained(f"m_cifarnet-cifar10-{name}")
        maps = skip_maps(network, data) if is_gated(network) else []
        counted = account(network, preprocess_of(network)(data.images[:_COUNTED]))
        columns.append(network_cost(method, counted, maps))
    return layer_table(columns, convention="executed", name=_NAME)


CIFAR_LAYERS = Reproduction(
    _NAME,
    "M-CifarNet: MACs and channels layer by layer, original, NS, FBS and both (the shipped networks)",
    _steps,
    _table,
    Defaults("cifar10", 32),
)
