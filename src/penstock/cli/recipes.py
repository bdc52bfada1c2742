"""The kinds of `Recipe` that commands have as options.

What a command decides itself is no option of its recipe: the class is then a kind of `Recipe` with those
fields suppressed.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from penstock.training import Augmentation, Gates, Loss, Optimiser, Recipe, Speed

_INLINE = tyro.conf.arg(name="")  # a part's choices are options of the recipe: --recipe.warmup


@dataclasses.dataclass(frozen=True)
class _RecipeOptions(Recipe):
    """A recipe whose parts do not show in the names of its options."""

    optimiser: Annotated[Optimiser, _INLINE] = dataclasses.field(default_factory=Optimiser)
    gates: Annotated[Gates, _INLINE] = dataclasses.field(default_factory=Gates)
    loss: Annotated[Loss, _INLINE] = dataclasses.field(default_factory=Loss)
    augmentation: Annotated[Augmentation, _INLINE] = dataclasses.field(default_factory=Augmentation)
    speed: Annotated[Speed, _INLINE] = dataclasses.field(default_factory=Speed)


@dataclasses.dataclass(frozen=True)
class SweepRecipe(_RecipeOptions):
    """How each density is trained; which densities, and for how many epochs, the sweep says."""

    epochs: tyro.conf.Suppress[int] = Recipe.epochs
    density: tyro.conf.Suppress[float] = Recipe.density
    gates: tyro.conf.Suppress[Gates] = dataclasses.field(default_factory=Gates)


@dataclasses.dataclass(frozen=True)
class PruneRecipe(_RecipeOptions):
    """How every stage trains; the density and its schedule are those of the gates, if there are some."""

    density: tyro.conf.Suppress[float] = Recipe.density


@dataclasses.dataclass(frozen=True)
class TrainRecipe(_RecipeOptions):
    """How the network is trained. What is shown as default is the preset's."""

    epochs: tyro.conf.Suppress[int] = Recipe.epochs
    learning_rate: tyro.conf.Suppress[float] = Recipe.learning_rate
    density: tyro.conf.Suppress[float] = Recipe.density
    threads: tyro.conf.Suppress[int] = Recipe.threads


def plain_recipe(recipe: Recipe) -> Recipe:
    """A command's kind of recipe as what it is."""
    return Recipe(**{one.name: getattr(recipe, one.name) for one in dataclasses.fields(Recipe)})
