"""FBS beside its rivals: every method from one dense network, with the same data and epochs after the cut.

`cifar-rivals` is M-CifarNet on CIFAR-10 at 2, 3 and 4 times fewer MACs; `resnet18-rivals` the six methods of
the paper's ResNet table on Imagenette at 2 times fewer. Rows come in the order seed, saving, method, so that
a run that is stopped leaves whole groups that can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from penstock.cli.reproductions.plan import (
    CIFAR_WORDS,
    Defaults,
    Reproduction,
    Setting,
    Step,
    annealed_words,
    distilled_words,
    evaluated,
)
from penstock.cli.reproductions.resnet18 import dense_step
from penstock.cli.reproductions.rivals_table import (
    SHORT_EPOCH,
    Row,
    measure_rivals,
    rivals_plots,
    rivals_table,
)
from penstock.errors import PruningError
from penstock.pruning import METHODS, Budget, make_method, prepares
from penstock.pruning.counting import density_for
from penstock.surgery import add_gates
from penstock.zoo.definition import MAKERS

_FBS = "fbs"
_SCRATCH_RATE = "0.1"  # weights that were never trained need a larger one
_DENSE_EPOCHS = 20
_SHORT: dict[str, dict[str, str]] = {
    "thinet": {"images": "700"},
    "channel-pruning": {"images": "700"},
    "dcp": {"images": "512", "head_steps": "12", "portion": "0.25", "batches": "2"},
    "amc": {"images": "700", "held_out": "150", "norm_images": "150", "episodes": "16", "warmup": "6"},
    "rnp": {"images": "512", "agent_steps": "60"},
    "perforated": {"images": "40"},
}
"""What a method searches with in a short run, where its own defaults take many minutes."""


@dataclass(frozen=True)
class Contest:
    """What is compared. dense: the shipped network to start from, or empty if one is trained; recipe: what
    every training has in common."""

    name: str
    network: str
    dense: str
    savings: tuple[float, ...]
    methods: tuple[str, ...]
    rate: str
    recipe: Callable[[Setting], tuple[str, ...]]

    def rows(self, setting: Setting) -> list[Row]:
        """Every row that the setting asks for, whether it is there or not."""
        unknown = [method for method in setting.methods if method not in (_FBS, *METHODS)]
        if unknown:
            known = ", ".join((_FBS, *METHODS))
            raise PruningError(f"--methods: there is no {unknown[0]!r}; there are: {known}")
        return [
            Row(
                self.network,
                method,
                saving,
                seed,
                setting.epochs,
                epochs_before(setting, method),
                setting.short,
            )
            for seed in setting.seeds or (0, 1)
            for saving in setting.savings or self.savings
            for method in setting.methods or self.methods
        ]

    def start(self, setting: Setting) -> str:
        """The dense network, as a command takes it."""
        return setting.dense or self.dense or str(setting.out / f"{self.network}-dense")

    def steps(self, setting: Setting) -> tuple[Step, ...]:
        """The dense network's, then each row's."""
        start = self.start(setting)
        made = []
        if start == str(setting.out / f"{self.network}-dense"):
            longer = replace(setting, epochs=_DENSE_EPOCHS)
            made.append(dense_step(longer, self.network, self.network, Path(start)))
        made.append(evaluated(setting, f"{self.name}-dense", Path(start), int8=True))
        for row in self.rows(setting):
            made += self.fbs(setting, row) if row.method == _FBS else [self.pruned(setting, row)]
        return tuple(made)

    def pruned(self, setting: Setting, row: Row) -> Step:
        """One rival: cut and fine-tuned."""
        given = settings_for(row.method, row.saving) | (_SHORT.get(row.method, {}) if row.short else {})
        if hasattr(make_method(row.method), "seed"):
            given["seed"] = str(row.seed)
        rate = _SCRATCH_RATE if row.method == "from-scratch" else self.rate
        words = (
            *("prune", self.start(setting), "--out", str(setting.out / row.name), "--method", row.method),
            *("--saving", f"{row.saving:g}", "--finetune-epochs", str(setting.epochs)),
            *(("--sparsity-epochs", str(row.before)) if row.before else ()),
            *(("--sparsity", "3e-4") if row.method == "network-slimming" else ()),
            *(("--norm-images", "1000") if row.short and row.method != "network-slimming" else ()),
            *(("--settings", *(f"{name}={value}" for name, value in given.items())) if given else ()),
            *self.shared(setting, row.seed, rate),
        )
        return Step(f"prune {row.name}", words, optional=True)

    def fbs(self, setting: Setting, row: Row) -> list[Step]:
        """Gates on the dense network, annealed to the density that costs what the row asks for."""
        density = f"{fbs_density(self.network, setting.size, row.saving):.3f}"
        words = (
            *("train", self.start(setting), "--out", str(setting.out / row.name), "--density", density),
            *annealed_words("0.5"),
            *self.shared(setting, row.seed, self.rate),
        )
        score = evaluated(setting, row.name, setting.out / row.name)
        return [Step(f"train {row.name}", words, optional=True), replace(score, optional=True)]

    def shared(self, setting: Setting, seed: int, rate: str) -> tuple[str, ...]:
        """What all of them have in common: data, teacher and recipe."""
        return (
            *distilled_words(setting, self.start(setting), seed, rate),
            *self.recipe(setting),
            *(("--recipe.epoch-images", str(SHORT_EPOCH)) if setting.short else ()),
        )

    def reproduction(self, title: str, defaults: Defaults) -> Reproduction:
        """As `penstock reproduce` takes it."""
        return Reproduction(
            self.name,
            title,
            self.steps,
            lambda setting: rivals_table(setting, self.name, self.rows(setting)),
            defaults,
            lambda setting, again: measure_rivals(
                setting, self.name, self.start(setting), self.rows(setting), again
            ),
            lambda setting: rivals_plots(setting, self.name, self.rows(setting)),
        )


def epochs_before(setting: Setting, method: str) -> int:
    """Epochs before the cut: half as many as after it, for the methods that prepare the network."""
    return int(setting.part(0.5)) if method != _FBS and prepares(make_method(method)) else 0


def settings_for(method: str, saving: float) -> dict[str, str]:
    """Where a method's own defaults do not fit a short run or a high saving."""
    if method == "channel-gating" and saving >= 3:
        return {"parts": "8"}  # 4 parts bound the saving by 3.9
    if method == "manidp":
        return {"anneal": "0.5"}  # its authors anneal to the end of 400 epochs
    return {}


@lru_cache
def fbs_density(network: str, size: int, saving: float) -> float:
    """The density at which the network costs `saving` times fewer MACs, by the paper's count."""
    example = torch.zeros(1, 3, size, size)
    with torch.random.fork_rng(devices=[]):
        made = MAKERS[network]().eval()
        return density_for(add_gates(made, example), example, Budget(saving=saving))


def _photographs(setting: Setting) -> tuple[str, ...]:
    return (
        *("--recipe.batch-size", "64", "--recipe.average", "0.996", "--recipe.smallest-area", "0.35"),
        *("--recipe.image-sizes", setting.grown()),
    )


CIFAR_RIVALS = Contest(
    "cifar-rivals",
    "m_cifarnet",
    "m_cifarnet-cifar10-dense",
    (2.0, 3.0, 4.0),
    (_FBS, *METHODS),
    "0.03",
    lambda setting: CIFAR_WORDS,
).reproduction(
    "M-CifarNet on CIFAR-10: FBS and its rivals at 2, 3 and 4 times fewer MACs",
    Defaults("cifar10", 32, 3, 5000),
)
RESNET18_RIVALS = Contest(
    "resnet18-rivals",
    "resnet18",
    "",
    (2.0,),
    (_FBS, "network-slimming", "soft-filter-pruning", "dcp", "lccl", "channel-gating"),
    "0.03",
    _photographs,
).reproduction(
    "ResNet-18: the six methods of the paper's table at 2 times fewer MACs",
    Defaults("imagenette", 160, 3, 473),
)
