"""penstock reproduce resnet18-table: one of the paper's tables or figures, from data to the finished table.

Every step is a penstock command, printed before it runs, so that it can be run alone. A step that is done
leaves `STEP.done` in the folder with its command; the same command again goes on with the first that is not
done, and a training goes on from its last state.
"""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from penstock.cli.reproductions import ALL, Setting, Step
from penstock.errors import DataError, TrainingError
from penstock.files import write_atomically
from penstock.reporting.tables import to_json, to_rich


@dataclass(frozen=True)
class Options:
    """Make one of the paper's tables or figures; without a name, list them."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Which one."""
    data: str = "imagenette"
    """The data set, or a folder like ImageNet's with train/CLASS/*.jpg and val/."""
    size: int = 160
    """The side of the photographs at which networks are scored; training grows up to 0.8 of it."""
    epochs: int = 20
    """Of the dense network's training; the others take shares of it. 90 is usual for ImageNet."""
    holdout: int = 473
    """Training images held out for every choice; the test part is looked at once per final network."""
    threads: int = 0
    """For training; 0 leaves torch's own choice."""
    seed: int = 0
    out: Path = Path("runs/reproduce")
    """Where networks, scores and the table go."""
    dry_run: bool = False
    """Print the commands and run none."""
    json: bool = False
    """Print the table (or the list) as JSON."""


def run(options: Options) -> int:
    shown = Console(highlight=False, soft_wrap=True)
    if not options.name:
        if options.json:
            print(json.dumps([{"name": one.name, "title": one.title} for one in ALL.values()]))
            return 0
        for one in ALL.values():
            shown.print(f"{one.name:16} {one.title}")
        shown.print("\npenstock reproduce NAME makes one; --dry-run shows its commands")
        return 0
    if options.name not in ALL:
        raise DataError(f"NAME {options.name!r}: expected one of {', '.join(ALL)}")
    if options.epochs < 1:
        raise TrainingError(f"--epochs: expected 1 or more, got {options.epochs}")
    wanted = ALL[options.name]
    setting = Setting(
        options.data,
        options.size,
        options.epochs,
        options.holdout,
        options.threads,
        options.seed,
        options.out,
    )
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    for step in wanted.steps(setting):
        if options.dry_run:
            print(command(step))
        elif not run_step(step, options.out, aside):
            return 1
    if options.dry_run:
        return 0
    table = wanted.table(setting)
    write_atomically(options.out / f"{wanted.name}.json", json.dumps(to_json(table), indent=2).encode())
    if options.json:
        print(json.dumps(to_json(table)))
    else:
        shown.print(to_rich(table), soft_wrap=False)
    return 0


def command(step: Step) -> str:
    """As it is typed."""
    return shlex.join(("penstock", *step.words))


def run_step(step: Step, out: Path, aside: Console) -> bool:
    """Run one step unless it is done already; False if it failed (it has said why)."""
    from penstock.cli.main import main  # which knows this command too

    done = out / f"{step.name.replace(' ', '-')}.done"
    if done.exists() and done.read_text() == command(step):
        aside.print(f"done already: {step.name}")
        return True
    aside.print(f"{step.name}: {command(step)}", markup=False)
    said = io.StringIO()
    if step.output:
        with redirect_stdout(said):
            code = main(list(step.words))
    else:
        code = main(list(step.words))
    if code != 0:
        return False
    if step.output:
        write_atomically(out / step.output, said.getvalue().encode())
    write_atomically(done, command(step).encode())
    return True
