"""The paper's memory table: weights and activations accessed, and the peak, dense and with gates.

It needs no training: what an image touches depends on how many channels win, not on which. The winners are
drawn at random in each layer, so that residual sums unite the winners of several layers. The paper's VGG-16
at 3 times fewer MACs was slimmed before it got its gates; here gates alone save as much.
"""

from __future__ import annotations

import torch
from torch import nn

from penstock.accounting import account
from penstock.cli.probe import draw_winners
from penstock.cli.reproductions.plan import Reproduction, Setting, Step
from penstock.reporting.costs import memory_cost, memory_table
from penstock.reporting.tables import Table
from penstock.surgery import add_gates
from penstock.zoo.definition import MAKERS

_NETWORKS = (("VGG-16", "vgg16_bn", (0.58,)), ("ResNet-18", "resnet18", (0.7, 0.6)))
_SIDE = 224  # the paper's, whatever the data
_IMAGES = 2


def _steps(setting: Setting) -> tuple[Step, ...]:
    return ()


def _table(setting: Setting) -> Table:
    torch.manual_seed(setting.seed)
    images = torch.randn(_IMAGES, 3, _SIDE, _SIDE)
    costs = []
    for title, maker, densities in _NETWORKS:
        network = MAKERS[maker]().eval()
        costs.append(memory_cost(title, account(network, images[:1]), title))
        for density in densities:
            counted = account(_gated(network, density), images)
            costs.append(memory_cost(f"{title}, d = {density:g}", counted, title))
    return memory_table(costs, convention="executed", name="memory-table")


def _gated(network: nn.Module, density: float) -> nn.Module:
    gated = add_gates(network, torch.randn(2, 3, _SIDE, _SIDE), density=density)
    draw_winners(gated)
    return gated.eval()


MEMORY_TABLE = Reproduction(
    "memory-table", "VGG-16 and ResNet-18: memory accessed for an image, and the peak", _steps, _table
)
