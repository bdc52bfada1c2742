"""penstock train MODEL --data cifar10 --out runs/x: trains, or goes on where it stopped."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import nn

from penstock.cli.models import find_model
from penstock.datasets import cifar10, hold_out
from penstock.training import Recipe, Step, train


@dataclass(frozen=True)
class Options:
    """Train a network; run the same command again to go on after an interruption."""

    model: Annotated[str, tyro.conf.Positional]
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    out: Path
    """The run's folder."""
    data: str = "cifar10"
    holdout: int = 0
    """Hold out so many training images and score on them instead of the test set."""
    teacher: str = ""
    """A network to distil from (MODEL syntax); needs --recipe.distill."""
    recipe: Recipe = field(default_factory=Recipe)
    json: bool = False


def run(options: Options) -> int:
    data = cifar10("train")
    train_data, test_data = hold_out(data, options.holdout) if options.holdout else (data, cifar10("test"))
    torch.manual_seed(options.recipe.seed)
    network = find_model(options.model)
    teacher = find_model(options.teacher) if options.teacher else None

    def show(step: Step) -> None:
        if step.step % 20 == 0:
            print(
                f"\repoch {step.epoch + 1} step {step.step}/{step.steps} loss {step.loss:.3f} "
                f"top-1 {100 * step.accuracy:.1f}% d {step.density:.2f} {step.images_per_second:.0f} images/s "
                f"{step.seconds_left / 60:.0f} min left ",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def note(metrics: dict[str, Any], trained: nn.Module) -> None:
        print(json.dumps(metrics), flush=True)

    train(
        network, train_data, test_data, options.recipe, out=options.out, teacher=teacher, on_step=show, on_epoch=note
    )
    return 0
