"""What a reproduction is: steps, which are penstock commands, and a table made of the files they leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import DataError
from penstock.reporting.reproduced import Plot
from penstock.reporting.tables import Table


@dataclass(frozen=True)
class Setting:
    """What the user chose. data and size: as of `penstock train`; epochs: of the training that is compared.

    dense: the network that everything starts from; empty: the reproduction's own. seeds, methods, savings,
    for those that compare methods: which of them; empty: all. short: epochs of a few images, brief searches.
    """

    data: str
    size: int
    epochs: int
    holdout: int
    threads: int
    seed: int
    out: Path
    dense: str = ""
    seeds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    savings: tuple[float, ...] = ()
    short: bool = False

    def part(self, share: float) -> str:
        """A share of the epochs as a word, at least one."""
        return str(max(1, round(share * self.epochs)))

    def growing(self) -> str:
        """Smaller images early in the run: 0.4, 0.6 and 0.8 of the size that is scored at."""
        sides = [max(1, round(share * self.size)) for share in (0.4, 0.6, 0.8)]
        return f"0:{sides[0]},0.35:{sides[1]},0.75:{sides[2]}"

    def grown(self) -> str:
        """The last two of these, half a run each: for networks that have learnt to see already."""
        sides = [max(1, round(share * self.size)) for share in (0.6, 0.8)]
        return f"0:{sides[0]},0.5:{sides[1]}"


@dataclass(frozen=True)
class Step:
    """One command. words: after `penstock`; output: the file below `out` that takes what it prints.

    optional: the others go on if it is refused; the table then says why it is not there.
    """

    name: str
    words: tuple[str, ...]
    output: str = ""
    optional: bool = False

    @property
    def file(self) -> str:
        """What its marks are called: FILE.done, or FILE.failed with the reason."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True)
class Defaults:
    """What stands where the user says nothing."""

    data: str = "imagenette"
    size: int = 160
    epochs: int = 20
    holdout: int = 473


@dataclass(frozen=True)
class Reproduction:
    """One table or figure of the paper. steps run in order; table reads what they left.

    measure: times all the networks together, after the steps (again even if nothing is new, if told so);
    plots: of what the table holds.
    """

    name: str
    title: str
    steps: Callable[[Setting], tuple[Step, ...]]
    table: Callable[[Setting], Table]
    defaults: Defaults = Defaults()
    measure: Callable[[Setting, bool], None] | None = None
    plots: Callable[[Setting], tuple[Plot, ...]] | None = None


def data_words(setting: Setting) -> tuple[str, ...]:
    """The images that a command trains or searches on."""
    return ("--data", setting.data, "--size", str(setting.size), "--holdout", str(setting.holdout))


def annealed_words(until: str) -> tuple[str, ...]:
    """Gates whose density falls from the start to a share of the run; a step computes winners only."""
    return (
        *("--recipe.density-schedule", "anneal", "--recipe.anneal-from", "0", "--recipe.anneal-to", until),
        *("--recipe.statistics", "winners"),
    )


def distilled_words(setting: Setting, teacher: str, seed: int, rate: str) -> tuple[str, ...]:
    """A short training under a teacher, whose answers are kept for all networks that are compared."""
    return (
        *data_words(setting),
        *("--teacher", teacher, "--lessons", str(setting.out / "lessons")),
        *("--recipe.epochs", str(setting.epochs), "--recipe.learning-rate", rate),
        *("--recipe.seed", str(seed), "--recipe.threads", str(setting.threads)),
        *("--recipe.distill", "0.7", "--recipe.label-smoothing", "0"),
        *("--recipe.schedule", "linear", "--recipe.warmup", "0.1"),
    )


CIFAR_WORDS = ("--recipe.batch-size", "128", "--recipe.average", "0.997")
"""What a short training on CIFAR-10 has besides."""


def evaluated(
    setting: Setting, name: str, model: Path, *densities: float, size: int = 0, int8: bool = False
) -> Step:
    """The step that scores a network on the test part and times it, into NAME.json.

    size: of the photographs, if it is not the setting's. int8: score it in int8 as well.
    """
    words = ("evaluate", str(model), "--data", setting.data, "--size", str(size or setting.size), "--json")
    both = ("--precision", "int8") if int8 else ()
    wanted = ("--density", ",".join(f"{one:g}" for one in densities)) if densities else ()
    return Step(f"score {name}", (*words, *both, *wanted), f"{name}.json")


def row_of(setting: Setting, name: str, density: float | None = None) -> dict[str, Any]:
    """What `evaluated` wrote: top1, top5, macs_paper, macs_executed, milliseconds.

    density: the row's, where there are several.
    """
    path = setting.out / f"{name}.json"
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        rows = [row for row in rows if row.get("precision", "float32") == "float32"]
        return rows[0] if density is None else next(row for row in rows if row["density"] == density)
    except (OSError, ValueError, KeyError, IndexError, TypeError, StopIteration) as error:
        raise not_printed_by("evaluate", path, error) from error


def not_printed_by(command: str, path: Path, error: Exception) -> DataError:
    """The error for a file that does not hold what a step's command printed."""
    return DataError(
        f"{path}: expected what `penstock {command} --json` prints ({type(error).__name__}: {error}); "
        "delete it and run the same command again"
    )
