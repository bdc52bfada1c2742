"""penstock reproduce resnet18-table: one of the paper's tables or figures, from data to the finished table.

Every step is a penstock command, printed before it runs, so that it can be run alone. A step that is done
leaves `STEP.done` in the folder with its command; the same command again goes on with the first that is not
done, and a training goes on from its last state. Where methods are compared, one that is refused (a budget
that it cannot meet) leaves `STEP.failed` with the reason, and the others go on.
"""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from rich.console import Console

from penstock.cli.reproductions import ALL, Defaults, Reproduction, Setting, Step
from penstock.errors import DataError, PenstockError, TrainingError
from penstock.files import write_atomically
from penstock.reporting.figures import save_figure
from penstock.reporting.reproduced import Reproduced, write_reproduced
from penstock.reporting.tables import to_json, to_rich
from penstock.reporting.terminal import print_table

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Options:
    """Make one of the paper's tables or figures; without a name, list them."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Which one."""
    data: str | None = None
    """The data set, or a folder like ImageNet's with train/CLASS/*.jpg and val/. Default: cifar10 for those
    that begin with cifar, else imagenette."""
    size: int | None = None
    """The side of the photographs at which networks are scored; training grows up to 0.8 of it. Default:
    160."""
    epochs: int | None = None
    """Tables that compare methods train for this many epochs after each cut (default 3). In other tables it
    is the dense network's training (default 20; 90 is usual for ImageNet), others take shares of it."""
    holdout: int | None = None
    """Training images held out for every choice; the test part is looked at once per final network. Default:
    5,000 of CIFAR-10, else 473."""
    dense: str = ""
    """The trained dense network that everything starts from, a run's folder. Default: the shipped one of
    CIFAR-10; ResNet-18 and VGG-16 are trained."""
    methods: str = ""
    """Only these, as in fbs,thinet,amc; all if empty."""
    savings: str = ""
    """Only at these savings of MACs, as in 2,3; of resnet18-table, those of Network Slimming."""
    seeds: str = ""
    """Only with these seeds, as in 0,1."""
    short: bool = False
    """Where rivals are compared: an epoch is 2,560 images, and what a method searches for is searched for
    briefly. Hours become minutes, and accuracies are lower; such rows have names of their own."""
    threads: int = 0
    """For training; 0 leaves torch's own choice."""
    seed: int = 0
    out: Path = Path("runs/reproduce")
    """Where networks, scores and the table go."""
    only_table: bool = False
    """Run no step: the table of what is there already. A row that is not says so."""
    time_again: bool = False
    """Measure the networks that are compared anew, on a quiet machine; else only after a new one came."""
    dry_run: bool = False
    """Print the commands and run none."""
    json: bool = False
    """Print the table (or the list) as JSON."""


def run(options: Options) -> int:
    shown = Console(markup=False, highlight=False, soft_wrap=True)
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
    wanted = ALL[options.name]
    setting = settle(options, wanted)
    aside = Console(markup=False, stderr=True, highlight=False, soft_wrap=True)
    for step in () if options.only_table else wanted.steps(setting):
        if options.dry_run:
            print(command(step))
        elif not run_step(step, options.out, aside):
            return 1
    if options.dry_run:
        return 0
    if wanted.measure is not None:
        wanted.measure(setting, options.time_again)
    table = wanted.table(setting)
    plots = () if wanted.plots is None else wanted.plots(setting)
    for plot in plots:
        save_figure(plot.draw(), options.out / f"{plot.name}.png")
        aside.print(f"figure: {options.out / plot.name}.png")
    write_reproduced(Reproduced(wanted.name, wanted.title, table, plots), options.out)
    write_atomically(options.out / f"{wanted.name}.json", json.dumps(to_json(table), indent=2).encode())
    if options.json:
        print(json.dumps(to_json(table)))
    else:
        print_table(shown, to_rich(table))
    return 0


def settle(options: Options, wanted: Reproduction) -> Setting:
    """What the user said, and the reproduction's own where they said nothing."""
    chosen = {}
    for one in fields(Defaults):
        said = getattr(options, one.name)
        chosen[one.name] = getattr(wanted.defaults, one.name) if said is None else said
    if chosen["epochs"] < 1:
        raise TrainingError(f"--epochs: expected 1 or more, got {chosen['epochs']}")
    return Setting(
        **chosen,
        threads=options.threads,
        seed=options.seed,
        out=options.out,
        dense=options.dense,
        short=options.short,
        methods=tuple(filter(None, options.methods.split(","))),
        savings=tuple(numbers("--savings", options.savings, float)),
        seeds=tuple(numbers("--seeds", options.seeds, int)),
    )


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """ "2,3" → [2.0, 3.0]."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise DataError(f"{option} {text!r}: expected numbers as in 2,3") from None


def command(step: Step) -> str:
    """As it is typed."""
    return shlex.join(("penstock", *step.words))


def is_there(step: Step, out: Path) -> bool:
    """Whether what the step once made has not been taken away since."""
    made = [Path(step.words[place + 1]) for place, word in enumerate(step.words) if word == "--out"]
    return all(one.exists() for one in (*made, *([out / step.output] if step.output else ())))


def run_step(step: Step, out: Path, aside: Console) -> bool:
    """Run one step unless it is done already; False if it failed (it has said why)."""
    from penstock.cli.main import main, run_command  # which know this command too

    done, failed = out / f"{step.file}.done", out / f"{step.file}.failed"
    if done.exists() and done.read_text() == command(step) and is_there(step, out):
        aside.print(f"done already: {step.name}")
        return True
    aside.print(f"{step.name}: {command(step)}")
    said = io.StringIO()
    with redirect_stdout(said if step.output else sys.stderr):
        try:
            code = (run_command if step.optional else main)(list(step.words))
        except PenstockError as error:
            aside.print(f"{step.name} is not there: {error}")
            write_atomically(failed, str(error).encode())
            return True
    if code != 0:
        return False
    if step.output:
        write_atomically(out / step.output, said.getvalue().encode())
    failed.unlink(missing_ok=True)
    write_atomically(done, command(step).encode())
    return True
