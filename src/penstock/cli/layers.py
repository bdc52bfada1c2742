"""Help in layers: the options of a command that matter first, the others on further pages.

A command with many options lists the less common ones in `FURTHER`. `--help` leaves them out and names
`--help-all`, which shows them too. A command that trains has a field `recipe`: only `--help-recipe` shows its
options. What a command decides itself is no option of its recipe: the class is then a kind of `Recipe` with
those fields suppressed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

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


def first_page(options: Any, further: Sequence[str], program: str) -> tuple[Any, str]:
    """The same options without `further` and the recipe's, and the description that says where those are."""
    description = options.__doc__ or ""
    known = {one.name: one for one in dataclasses.fields(options)}
    if further:
        description += f"\n\nMore options: {program} --help-all"
    if "recipe" in known:
        description += f"\n\nHow it trains, in detail: {program} --help-recipe"
        further = (*further, "recipe")
    hide: Any = tyro.conf.Suppress
    hints = get_type_hints(options, include_extras=True)
    hidden: dict[str, Any] = {"__annotations__": {name: hide[hints[name]] for name in further}}
    hidden |= {name: dataclasses.field(**_default(known[name])) for name in further}
    view: Any = dataclasses.dataclass(frozen=True)(
        type("Options", (options,), hidden | {"__doc__": description})
    )
    return view, description


def _default(one: dataclasses.Field[Any]) -> dict[str, Any]:
    missing = dataclasses.MISSING
    return (
        {"default": one.default} if one.default is not missing else {"default_factory": one.default_factory}
    )


def print_recipe_help(options: Any, default: Any, program: str) -> None:
    """Only the options of the recipe, with the defaults that the command has."""
    found: Any = next((one for one in dataclasses.fields(options) if one.name == "recipe"), None)
    if found is None:
        print(f"{program} does not train, so it has no recipe")
        return
    kind = get_type_hints(options)["recipe"]
    value = getattr(default, "recipe", None) or found.default_factory()
    page = dataclasses.make_dataclass("RecipePage", [("recipe", kind, value)], frozen=True)
    tyro.cli(page, args=["--help"], prog=program, description="")
