"""A training run as it is set up: what `train` is given in, everything that epochs and steps need out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.datasets import Images, preprocess_of
from penstock.errors import TrainingError
from penstock.gating import is_gated, set_levels
from penstock.training.average import WeightAverage
from penstock.training.evaluate import Score
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers
from penstock.training.lessons import Lessons
from penstock.training.losses import parameter_groups
from penstock.training.parts import Portions
from penstock.training.processes import Processes
from penstock.training.recipe import Recipe
from penstock.training.record import write_record
from penstock.training.state import STATE_FILE, RunState, remove_leftovers, resume
from penstock.training.thresholds import start_thresholds


@dataclass
class Run:
    """One run. `forward` is the network as it is called in training (compiled, or shared by processes).

    arithmetic: how its gated layers compute. prepare: from raw images to the network's input. deadline: when
    the time given ends, by the monotonic clock. score: the last one on the test data.
    """

    network: nn.Module
    train_data: Images
    test_data: Images | None
    recipe: Recipe
    folder: Path | None
    processes: Processes
    prepare: Callable[[Tensor], Tensor]
    layout: torch.memory_format
    arithmetic: FusedLayers
    forward: nn.Module
    optimiser: Any
    average: WeightAverage | None
    state: RunState
    gated: bool
    teacher: nn.Module | None
    lessons: Lessons | None
    extra_loss: Callable[[nn.Module], Tensor] | None
    batch_loss: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None
    after_step: Callable[[nn.Module, float], None] | None
    deadline: float
    state_every: float
    saved_at: float = field(default_factory=time.monotonic)
    score: Score | None = None

    @property
    def steps(self) -> int:
        """Optimiser steps in an epoch."""
        return steps_of(self.train_data, self.recipe)

    @property
    def portions(self) -> Portions:
        """This process's part of every batch."""
        return Portions(self.processes.index, self.processes.count, self.recipe.optimiser.accumulate)

    @property
    def drawn(self) -> bool:
        """Whether each image gets a density of its own."""
        return self.gated and self.recipe.gates.density_schedule == "any"

    @property
    def own(self) -> bool:
        """Whether every layer keeps the density that it has."""
        return self.recipe.gates.density_schedule == "own"

    def out_of_time(self) -> bool:
        """Whether the time given is over; all processes hear what the first one says."""
        return self.processes.main_says(time.monotonic() >= self.deadline)


def set_up(
    network: nn.Module,
    train_data: Images,
    test_data: Images | None,
    recipe: Recipe,
    *,
    out: str | Path | None,
    teacher: nn.Module | None,
    lessons: str | Path | None,
    extra_loss: Callable[[nn.Module], Tensor] | None,
    batch_loss: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None,
    after_step: Callable[[nn.Module, float], None] | None,
    tensorboard: bool,
    minutes: float | None,
    state_every: float,
) -> Run:
    """Check the inputs, put the network where it trains, and go on from the state in `out` if it has one."""
    check_inputs(network, train_data, recipe, teacher)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    folder = None if out is None else Path(out)
    if minutes is not None and (folder is None or not minutes > 0):
        raise TrainingError(f"minutes: expected a positive number, and `out` to go on from, got {minutes!r}")
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if recipe.gates.levels():
        set_levels(network, recipe.gates.levels())
    start_thresholds(network, recipe.gates.threshold_cap)
    processes = Processes(folder, tensorboard)
    layout = torch.channels_last if recipe.speed.channels_last else torch.contiguous_format
    network.to(processes.device, memory_format=layout)  # type: ignore[call-overload]
    prepare = preprocess_of(network, train_data)
    network.preprocess = prepare  # type: ignore[assignment]  # travels with the network from here on
    if teacher is not None:
        teacher.to(processes.device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
    known_lessons = None if teacher is None or lessons is None else Lessons(Path(lessons), teacher)
    kind = FastLayers if recipe.speed.winograd else FusedLayers
    arithmetic = kind(network, recipe.statistics, recipe.gates.threshold_cap)
    arithmetic.pools = recipe.loss.similarity > 0
    optimiser = torch.optim.SGD(
        parameter_groups(network, recipe.optimiser.weight_decay),
        lr=recipe.learning_rate,
        momentum=recipe.optimiser.momentum,
        nesterov=recipe.optimiser.momentum > 0,
    )
    average = WeightAverage(network, recipe.optimiser.average) if recipe.optimiser.average else None
    state = RunState(recipe=asdict(recipe))
    if folder is not None and (folder / STATE_FILE).exists():
        state = resume(folder / STATE_FILE, network, optimiser, average, recipe, steps_of(train_data, recipe))
    forward, prepared = processes.prepare(network, optimiser, recipe.speed.compile)
    run = Run(
        network=network,
        train_data=train_data,
        test_data=test_data,
        recipe=recipe,
        folder=folder,
        processes=processes,
        prepare=prepare,
        layout=layout,
        arithmetic=arithmetic,
        forward=forward,
        optimiser=prepared,
        average=average,
        state=state,
        gated=is_gated(network),
        teacher=teacher,
        lessons=known_lessons,
        extra_loss=extra_loss,
        batch_loss=batch_loss,
        after_step=after_step,
        deadline=deadline,
        state_every=state_every,
    )
    if folder is not None:
        processes.agree_on(state.epoch * run.steps + state.part.steps, folder)
        if processes.main:
            remove_leftovers(folder)
            if state.epoch < recipe.epochs:
                write_record(folder, state.epoch, recipe, network, train_data, test_data, processes.count)
    return run


def steps_of(data: Images, recipe: Recipe) -> int:
    """Optimiser steps that an epoch of these images takes."""
    return -(-epoch_length(data, recipe) // recipe.batch_size)


def epoch_length(data: Images, recipe: Recipe) -> int:
    """How many of these images an epoch shows."""
    return min(len(data), recipe.epoch_images) if recipe.epoch_images else len(data)


def check_inputs(network: nn.Module, data: Images, recipe: Recipe, teacher: nn.Module | None) -> None:
    """Refuse what would fail only after an epoch, or never."""
    if recipe.loss.distill > 0 and teacher is None:
        raise TrainingError(f"recipe.loss.distill is {recipe.loss.distill}, but no teacher was given")
    if recipe.loss.distill == 0 and teacher is not None:
        raise TrainingError("a teacher was given, but recipe.loss.distill is 0; 0.5 listens to both equally")
    if len(data) == 0:
        raise TrainingError(f"{data.name}: there are no images to train on")
    gated = is_gated(network)
    if not gated and (recipe.density < 1.0 or recipe.gates.density_schedule in ("any", "own")):
        raise TrainingError(
            f"recipe.density is {recipe.density:g} ({recipe.gates.density_schedule}) and the network has no "
            "gates; add some with penstock.add_gates(model, example)"
        )
