"""The paper's tables and figures, each a list of penstock commands and a table made of what they leave.

One file for each; a new one is a file with a `Reproduction` and a line in `ALL`.
"""

from penstock.cli.reproductions.layers import CIFAR_LAYERS
from penstock.cli.reproductions.memory import MEMORY_TABLE
from penstock.cli.reproductions.plan import Defaults, Reproduction, Setting, Step
from penstock.cli.reproductions.resnet18 import RESNET18_TABLE
from penstock.cli.reproductions.rivals import CIFAR_RIVALS, RESNET18_RIVALS
from penstock.cli.reproductions.tradeoff import CIFAR_TRADEOFF
from penstock.cli.reproductions.vgg16 import VGG16_TABLE

_ALL = (
    *(RESNET18_TABLE, VGG16_TABLE, MEMORY_TABLE, CIFAR_TRADEOFF, CIFAR_LAYERS),
    *(CIFAR_RIVALS, RESNET18_RIVALS),
)
ALL: dict[str, Reproduction] = {one.name: one for one in _ALL}

__all__ = ["ALL", "Defaults", "Reproduction", "Setting", "Step"]
