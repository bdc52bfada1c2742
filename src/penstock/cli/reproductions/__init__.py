"""The paper's tables and figures, each a list of penstock commands and a table made of what they leave.

One file for each; a new one is a file with a `Reproduction` and a line in `ALL`.
"""

from penstock.cli.reproductions.memory import MEMORY_TABLE
from penstock.cli.reproductions.plan import Reproduction, Setting, Step
from penstock.cli.reproductions.resnet18 import RESNET18_TABLE
from penstock.cli.reproductions.vgg16 import VGG16_TABLE

ALL: dict[str, Reproduction] = {one.name: one for one in (RESNET18_TABLE, VGG16_TABLE, MEMORY_TABLE)}

__all__ = ["ALL", "Reproduction", "Setting", "Step"]
