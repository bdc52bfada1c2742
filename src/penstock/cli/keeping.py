"""A training whose network is kept in the run's folder, and the process made ready for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn

from penstock.cli.images import preprocess_words
from penstock.cli.models import CHECKPOINT
from penstock.cli.progress import TrainingDisplay
from penstock.cli.sources import Source, remember, remembered
from penstock.datasets import ImageArrays, Images
from penstock.errors import TrainingError
from penstock.exporting import read_notes, save
from penstock.gating import is_gated
from penstock.reporting import SkipRecorder
from penstock.training import Recipe, TrainingResult, train
from penstock.training.memory import keep_freed_memory
from penstock.training.state import STATE_FILE
from penstock.training.threads import idle_cores


def prepare_process(recipe: Recipe) -> Recipe:
    """Memory and threads as training wants them, on a machine that others may be using."""
    keep_freed_memory()
    if recipe.threads == 0:
        free = idle_cores()
        if free < torch.get_num_threads():
            print(f"the machine is busy: training uses its idle cores only, {free}", file=sys.stderr)
            torch.set_num_threads(free)
    return recipe


def train_and_keep(
    network: nn.Module,
    train_data: Images,
    test_data: Images,
    recipe: Recipe,
    out: Path,
    source: Source,
    display: TrainingDisplay,
    teacher: nn.Module | None = None,
    tensorboard: bool = False,
    lessons: Path | None = None,
    minutes: float | None = None,
) -> TrainingResult:
    """Train, and keep the checkpoint and a gated network's heat maps in the run's folder each epoch.

    source: where the images come from, kept too; a training that is refused must not change it.
    """
    check_same_images(out, source, network)

    def keep(metrics: dict[str, Any], trained: nn.Module) -> None:
        remember(source, out)
        save(trained, out / CHECKPOINT, notes=notes(recipe, test_data, metrics))
        display.epoch(metrics, trained)

    on_epoch: Callable[[dict[str, Any], nn.Module], None] = keep
    if isinstance(test_data, ImageArrays) and is_gated(network):
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
        minutes=minutes,
        on_step=display.step,
        on_epoch=on_epoch,
    )
    # A run that was killed between its last state and this file would otherwise keep an older network.
    if result.finished and PartialState().is_main_process:
        save(network, out / CHECKPOINT, notes=notes(recipe, test_data, result.history[-1]))
    return result


def check_same_images(out: Path, source: Source, network: nn.Module) -> None:
    """Refuse to go on with the run in `out` on other images, or normalised otherwise, than it was started."""
    if not (out / STATE_FILE).exists():
        return
    before = remembered(out)
    if before is not None and before.images() != source.images():
        said = " and is now ".join(
            f"--data {one.data} --size {one.size} --holdout {one.holdout}" for one in (before, source)
        )
        raise TrainingError(f"{out}: the run was started with {said}; use the same or another --out")
    kept = read_notes(out / CHECKPOINT).preprocess if (out / CHECKPOINT).is_file() else None
    given = getattr(network, "preprocess", None)
    if kept is not None and given != kept:
        raise TrainingError(
            f"{out}: the run takes images by {preprocess_words(kept)} and is now given "
            f"{preprocess_words(given)}; use the same --mean and --std, or another --out"
        )


def notes(recipe: Recipe, test_data: Images, metrics: dict[str, Any]) -> dict[str, Any]:
    """What the checkpoint says about its training."""
    kept = ("epoch", "test_top1", "test_top5", "density")
    return {"data": test_data.name, "epochs": recipe.epochs} | {k: metrics[k] for k in kept if k in metrics}
