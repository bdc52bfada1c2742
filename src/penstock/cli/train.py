"""penstock train MODEL --data cifar10 --density 0.5 --out runs/x: trains, or goes on where it stopped.

The run's folder then holds `model.safetensors` (the network, rewritten after every epoch), `metrics.jsonl`
(a line an epoch), `run.toml` (how it came about), `state.safetensors` (all that going on needs) and, for a
gated network, `skipping/` (which channels were skipped, for the report).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from accelerate import PartialState
from torch import nn

from penstock.cli.models import find_model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.trainable import find_data, with_gates
from penstock.datasets import ImageArrays, Images
from penstock.exporting import save
from penstock.gating import gated_layers
from penstock.reporting import SkipRecorder
from penstock.training import Recipe, TrainingResult, paper_recipe, train
from penstock.training.memory import keep_freed_memory

CHECKPOINT = "model.safetensors"
_PRESETS = {"default": Recipe(), "paper": paper_recipe()}


@dataclass(frozen=True)
class Options:
    """Train a network; run the same command again to go on after an interruption."""

    model: Annotated[str, tyro.conf.Positional]
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    out: Path
    """The run's folder."""
    data: str = "cifar10"
    """cifar10, sample (the embedded images), or a folder with train/CLASS/*.jpg and val/ or test/."""
    size: int = 224
    """The side to which a folder's images are scaled; cifar10 and sample have 32."""
    density: float | None = None
    """The density to end at; below 1, a network without gates gets some. Short for --recipe.density."""
    holdout: int = 0
    """Hold out so many training images and score on them instead of the test part."""
    teacher: str = ""
    """A network to distil from (MODEL syntax); needs --recipe.distill."""
    lessons: Path | None = None
    """A folder where the teacher's answers are kept: runs with the same teacher and seed share them."""
    init: Literal["preserve", "paper"] = "preserve"
    """How new gates start: preserve keeps the network's function at density 1; paper draws by He."""
    preset: Literal["default", "paper"] = "default"
    """Where the recipe starts from; every --recipe option given besides changes it."""
    recipe: Recipe = field(default_factory=Recipe)
    tensorboard: bool = False
    """Log to TensorBoard as well, below the run's folder."""
    json: bool = False
    """Print the epochs' metrics as JSON lines."""


def run(options: Options) -> int:
    keep_freed_memory()
    recipe = full_recipe(options)
    train_data, test_data = find_data(options.data, options.holdout, options.size)
    torch.manual_seed(recipe.seed)
    network = find_model(options.model, len(train_data.classes))
    network = with_gates(network, train_data, recipe, options.init)
    teacher = find_model(options.teacher) if options.teacher else None
    with TrainingDisplay(recipe.epochs, options.json) as display:
        train_and_keep(
            network,
            train_data,
            test_data,
            recipe,
            options.out,
            display,
            teacher,
            options.tensorboard,
            options.lessons,
        )
    return 0


def full_recipe(options: Options) -> Recipe:
    """The preset, with every field that the user gave another value than the default one."""
    plain = Recipe()
    given = {
        one.name: getattr(options.recipe, one.name)
        for one in fields(Recipe)
        if getattr(options.recipe, one.name) != getattr(plain, one.name)
    }
    if options.density is not None:
        given["density"] = options.density
    return replace(_PRESETS[options.preset], **given)


def train_and_keep(
    network: nn.Module,
    train_data: Images,
    test_data: Images,
    recipe: Recipe,
    out: Path,
    display: TrainingDisplay,
    teacher: nn.Module | None = None,
    tensorboard: bool = False,
    lessons: Path | None = None,
) -> TrainingResult:
    """Train, and keep the checkpoint and a gated network's heat maps in the run's folder each epoch."""

    def keep(metrics: dict[str, Any], trained: nn.Module) -> None:
        save(trained, out / CHECKPOINT, notes=notes(recipe, test_data, metrics))
        display.epoch(metrics, trained)

    on_epoch: Callable[[dict[str, Any], nn.Module], None] = keep
    if isinstance(test_data, ImageArrays) and any(True for _ in gated_layers(network)):
        on_epoch = SkipRecorder(test_data, out, then=keep)
    result = train(
        network,
        train_data,
        test_data,
        recipe,
        out=out,
        teacher=teacher,
        lessons=lessons,
        tensorboard=tensorboard,
        on_step=display.step,
        on_epoch=on_epoch,
    )
    # A run that was killed between its last state and this file would otherwise keep an older network.
    if PartialState().is_main_process:
        save(network, out / CHECKPOINT, notes=notes(recipe, test_data, result.history[-1]))
    return result


def notes(recipe: Recipe, test_data: Images, metrics: dict[str, Any]) -> dict[str, Any]:
    """What the checkpoint says about its training."""
    kept = ("epoch", "test_top1", "test_top5", "density")
    return {"data": test_data.name, "epochs": recipe.epochs} | {k: metrics[k] for k in kept if k in metrics}
