"""Help in layers: the options of a command that matter first, the others on further pages.

A command with many options lists the less common ones in `FURTHER`. `--help` leaves them out and names
`--help-all`, which shows them too. A command that trains has a field `recipe`: only `--help-recipe` shows its
options (`cli/recipes.py`). Nothing here imports PyTorch: every command comes through, the server's too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_type_hints

import tyro


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
