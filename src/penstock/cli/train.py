"""penstock train MODEL --data cifar10 --density 0.5 --out runs/x: trains, or goes on where it stopped.

The run's folder then holds `model.safetensors` (the network, rewritten after every epoch), `metrics.jsonl`
(a line an epoch), `run.toml` (how it came about), `state.safetensors` (all that going on needs) and, for a
gated network, `skipping/` (which channels were skipped, for the report).
"""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import tyro

from penstock.cli.images import ReadOptions
from penstock.cli.keeping import prepare_process, train_and_keep
from penstock.cli.models import CHECKPOINT, Model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.recipes import TrainRecipe, plain_recipe
from penstock.cli.sources import choose, start_of
from penstock.cli.trainable import find_start, find_teacher, with_gates
from penstock.training import Recipe, TrainingResult, finetune_recipe, paper_recipe
from penstock.zoo.definition import MAKERS

PRESETS = {"default": Recipe(), "finetune": finetune_recipe(), "paper": paper_recipe()}


@dataclass(frozen=True)
class Options:
    """Train a network; run the same command again to go on after an interruption."""

    model: Model
    """A zoo name, timm:NAME, torchvision:NAME, module:callable, a checkpoint, or a run's folder."""
    out: Path
    """The run's folder."""
    data: str = ""
    """cifar10, imagenette, sample (embedded), or a folder with train/CLASS/*.jpg and val/ or test/. Default:
    what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of MODEL's training, else 224."""
    preset: Literal["default", "finetune", "paper"] = "default"
    """Where the recipe starts from. finetune: gates on a network that is trained already, which is also the
    teacher; paper: the paper's own settings."""
    density: Annotated[float | None, tyro.conf.arg(aliases=("--recipe.density",), metavar="FLOAT")] = None
    """The density to end at; below 1, a network without gates gets some. Default: 1, or 0.5 to finetune."""
    epochs: Annotated[int | None, tyro.conf.arg(aliases=("--recipe.epochs",), metavar="INT")] = None
    """Default: 15, or 6 to finetune."""
    learning_rate: Annotated[
        float | None, tyro.conf.arg(aliases=("--recipe.learning-rate",), metavar="FLOAT")
    ] = None
    """Its peak. Default: 0.1, or 0.04 to finetune."""
    minutes: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Stop after this many minutes; the same command goes on from there."""
    threads: Annotated[int, tyro.conf.arg(aliases=("--recipe.threads",))] = 0
    """Threads of torch; 0 takes the cores that stand idle when the command starts."""
    holdout: int = 0
    """Training images to hold out and score on, instead of the test part."""
    teacher: str = ""
    """A network to distil from (MODEL syntax); needs --recipe.distill. To finetune: MODEL itself."""
    lessons: Path | None = None
    """A folder where the teacher's answers are kept: runs with the same teacher and seed share them."""
    init: Literal["preserve", "paper"] = "preserve"
    """How new gates start: preserve keeps the network's function at density 1; paper draws by He."""
    tensorboard: bool = False
    """Log to TensorBoard as well, below the run's folder."""
    json: bool = False
    """Print the epochs' metrics as JSON lines."""
    recipe: TrainRecipe = field(default_factory=TrainRecipe)
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


FURTHER = ("holdout", "teacher", "lessons", "init", "tensorboard")
"""Options on a second page of help."""


def defaults(words: list[str]) -> Options:
    """What stands where the user says nothing: the preset's recipe."""
    given = [word for pair in words for word in pair.split("=", 1)]
    name = dict(pairwise(given)).get("--preset", "default")
    preset = PRESETS.get(name, PRESETS["default"])
    recipe = TrainRecipe(**{one.name: getattr(preset, one.name) for one in fields(Recipe)})
    return Options(model=tyro.MISSING, out=tyro.MISSING, recipe=recipe)


def run(options: Options) -> int:
    recipe = full_recipe(options)
    recipe = prepare_process(recipe)
    source = choose(options.model, options.data, options.size, options.holdout)
    source = replace(source, start=start_of(options.model))
    train_data, test_data, network = find_start(
        options.model, source, recipe.seed, options.reading, quiet=options.model in MAKERS
    )
    teacher = find_teacher(options.teacher, network, len(train_data.classes), options.reading)
    if teacher is None and recipe.loss.distill and options.preset == "finetune":
        teacher = deepcopy(network)
    network = with_gates(network, train_data, recipe, options.init)
    with TrainingDisplay(recipe.epochs, options.json) as display:
        result = train_and_keep(
            network,
            train_data,
            test_data,
            recipe,
            options.out,
            source,
            display,
            teacher,
            options.tensorboard,
            options.lessons,
            options.minutes,
        )
    print(end_words(result, recipe, options), file=sys.stderr)
    return 0


def full_recipe(options: Options) -> Recipe:
    """The recipe with what is given as an option of its own."""
    own = {name: getattr(options, name) for name in ("density", "epochs", "learning_rate", "threads")}
    return replace(plain_recipe(options.recipe), **{name: v for name, v in own.items() if v is not None})


def end_words(result: TrainingResult, recipe: Recipe, options: Options) -> str:
    """How the run ended, in a line."""
    done = len(result.history)
    if not result.finished:
        return f"stopped after {done} of {recipe.epochs} epochs; the same command goes on from here"
    score = f", test {result.score.top1:.2f}%" if result.score is not None else ""
    return (
        f"finished: {done} epoch{'' if done == 1 else 's'}{score}; the network is {options.out / CHECKPOINT}"
    )
