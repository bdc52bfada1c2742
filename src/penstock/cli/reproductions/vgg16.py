"""The paper's VGG-16 table: Network Slimming to about half the MACs, then FBS to 3, 4 and 5 times fewer."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.reproductions.comparison import Variant, comparison
from penstock.cli.reproductions.plan import Reproduction, Setting, Step, evaluated
from penstock.cli.reproductions.resnet18 import dense_step, gated_step, slimming_step
from penstock.reporting.tables import Table

_SLIMMED = 1.96  # 15.47G to 7.90G
_DENSITIES = (0.8, 0.7, 0.6)


def _steps(setting: Setting) -> tuple[Step, ...]:
    out = setting.out
    dense, slim = Path(setting.dense or out / "vgg16-dense"), out / "vgg16-ns"
    made = [] if setting.dense else [dense_step(setting, "vgg16", "vgg16_bn", dense)]
    made += [
        evaluated(setting, "vgg16-dense", dense),
        slimming_step(setting, "vgg16-ns", dense, _SLIMMED),
        evaluated(setting, "vgg16-ns", slim),
    ]
    for density in _DENSITIES:
        name = f"vgg16-d{100 * density:.0f}"
        made.append(gated_step(setting, name, slim, dense, density))
        made.append(evaluated(setting, name, out / name, density))
    return tuple(made)


def _table(setting: Setting) -> Table:
    variants = [
        Variant("VGG-16, dense", "vgg16-dense", "10.1 top-5 error"),
        Variant("Network Slimming", "vgg16-ns", "1.96×"),
        Variant("then FBS, d = 0.8", "vgg16-d80", "3.01×, −0.04 top-5"),
        Variant("then FBS, d = 0.7", "vgg16-d70", "4×, −0.52 top-5"),
        Variant("then FBS, d = 0.6", "vgg16-d60", "5.23×, −0.59 top-5"),
    ]
    return comparison(setting, "vgg16-table", variants)


VGG16_TABLE = Reproduction(
    "vgg16-table", "VGG-16: Network Slimming to half the MACs, then FBS at 3×, 4× and 5×", _steps, _table
)
