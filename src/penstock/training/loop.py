"""One training loop, read top to bottom: a network, data and a recipe in; the trained network out.

    train(network, train_data, test_data, Recipe(epochs=15), out="runs/x")

Run again with the same `out` it goes on from the last state it saved, after an epoch or inside a long one;
what it ends with is bit for bit what an uninterrupted run would have ended with on the same machine. Under
`accelerate launch` or `torchrun` every process takes its part of each batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from penstock.datasets import Images, gather
from penstock.files import write_atomically
from penstock.gating import gated_layers, set_density
from penstock.training import schedules
from penstock.training.epoch import Step, run_epoch
from penstock.training.evaluate import Score, evaluate
from penstock.training.lock import one_at_a_time
from penstock.training.recipe import Recipe
from penstock.training.setup import Run, set_up
from penstock.training.state import STATE_FILE, Part, collect, save_state
from penstock.training.thresholds import fit_mean_shares

SECONDS_BETWEEN_STATES = 300.0
_FITTED_TO = 3000  # training images that the final thresholds are fitted to, at most


@dataclass(frozen=True)
class TrainingResult:
    """The last score on the test data (None without any), the metrics of every epoch, and where they lie.

    finished: False if the time given ran out first; the network then is as the last step left it.
    """

    score: Score | None
    history: list[dict[str, Any]]
    out: Path | None
    finished: bool = True


@one_at_a_time
def train(
    network: nn.Module,
    train_data: Images,
    test_data: Images | None = None,
    recipe: Recipe | None = None,
    *,
    out: str | Path | None = None,
    teacher: nn.Module | None = None,
    lessons: str | Path | None = None,
    extra_loss: Callable[[nn.Module], Tensor] | None = None,
    batch_loss: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None = None,
    after_epoch: Callable[[nn.Module, float], None] | None = None,
    after_step: Callable[[nn.Module, float], None] | None = None,
    tensorboard: bool = False,
    minutes: float | None = None,
    state_every: float = SECONDS_BETWEEN_STATES,
    on_step: Callable[[Step], None] | None = None,
    on_epoch: Callable[[dict[str, Any], nn.Module], None] | None = None,
) -> TrainingResult:
    """Train `network` in place; its weights at the end are the averaged ones if the recipe averages.

    `out`: a folder for the state and the metrics, from which a stopped run goes on. `lessons`: a folder where
    the teacher's answers are kept for other runs that ask the same. `extra_loss`: a term of the network's own
    values that is added to every loss (Network Slimming's Lasso on the scales, for instance); `batch_loss`:
    one that also sees the batch's logits and labels. `after_epoch` may change the network, in every process:
    it is called with the share of the run that is done, first with 0; `after_step` after every optimiser
    step, in the same way. `tensorboard`: also log there, below `out`. `minutes`: stop after this time, to go
    on later. `state_every`: seconds after which the state is saved inside an epoch too. The callbacks are
    called in the main process only; `on_epoch` gets the epoch's metrics and the network as it would be saved.

    >>> import torch, penstock as ps
    >>> few, _ = ps.datasets.hold_out(ps.datasets.sample(), 984)
    >>> layers = [nn.Conv2d(3, 8, 3, stride=4, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
    >>> gated = ps.add_gates(nn.Sequential(*layers, nn.Linear(512, 10)), torch.zeros(1, 3, 32, 32))
    >>> result = ps.train(gated, few, None, ps.Recipe(epochs=2, density=0.5, batch_size=8))
    >>> len(result.history)
    2
    """
    run = set_up(
        network,
        train_data,
        test_data,
        recipe or Recipe(),
        out=out,
        teacher=teacher,
        lessons=lessons,
        extra_loss=extra_loss,
        batch_loss=batch_loss,
        after_step=after_step,
        tensorboard=tensorboard,
        minutes=minutes,
        state_every=state_every,
    )
    if after_epoch is not None and run.state.epoch == run.state.part.steps == 0:
        after_epoch(network, 0.0)
    while run.state.epoch < run.recipe.epochs:
        part = run_epoch(run, run.state.epoch, on_step)
        if part is not None and after_epoch is not None:
            after_epoch(network, (run.state.epoch + 1) / run.recipe.epochs)
        if part is not None:
            record_epoch(run, part, on_epoch)
        if part is None or (run.out_of_time() and run.state.epoch < run.recipe.epochs):
            run.processes.finish()
            return TrainingResult(run.score, run.state.history, run.folder, finished=False)
    return finish(run)


def record_epoch(run: Run, part: Part, on_epoch: Callable[[dict[str, Any], nn.Module], None] | None) -> None:
    """Score the network as it would be saved, and write state and metrics down."""
    recipe, processes, epoch = run.recipe, run.processes, run.state.epoch
    trained = run.network if run.average is None else run.average.network(run.network)
    if run.gated and not run.own:
        set_density(trained, recipe.final_density)
    last = (epoch + (run.steps - 1) / run.steps) / recipe.epochs  # where the last step stood
    metrics: dict[str, Any] = {
        "epoch": epoch + 1,
        "loss": part.loss / part.seen,
        "train_top1": 100 * part.hits / part.seen,
        "density": mean_density(run) if run.drawn or run.own else schedules.density(recipe, last),
        "learning_rate": run.optimiser.param_groups[0]["lr"],
        "seconds": round(part.seconds, 2),
        "images_per_second": round(part.seen / part.seconds, 1),
    }
    if part.skipped:
        metrics["skipped_images"] = part.skipped
    if run.test_data is not None:
        run.score = processes.once(evaluate, trained, run.test_data, preprocess=run.prepare)
        metrics |= {
            "test_top1": run.score.top1,
            "test_top5": run.score.top5,
            "test_loss": run.score.loss,
        }
    if run.lessons is not None:
        run.lessons.keep()
    run.state.epoch, run.state.part = epoch + 1, Part()
    run.state.history.append(metrics)
    if run.folder is not None and processes.main:
        run.state.tensors = collect(run.network, run.optimiser, run.average)
        # Metrics first: a run that dies between the two repeats the epoch and writes them again. The other
        # way round, the last epoch's would be missing for good.
        lines = "".join(json.dumps(line) + "\n" for line in run.state.history)
        write_atomically(run.folder / "metrics.jsonl", lines.encode())
        save_state(run.state, run.folder / STATE_FILE)
    run.saved_at = time.monotonic()
    processes.log(metrics, epoch + 1)
    if on_epoch is not None and processes.main:
        on_epoch(metrics, trained)
    processes.wait()


def mean_density(run: Run) -> float:
    """Of the layers as they stand; with drawn densities, the highest that is drawn."""
    layers = [layer.density for _, layer in gated_layers(run.network)]
    return sum(layers) / len(layers) if run.own else run.recipe.density


def finish(run: Run) -> TrainingResult:
    """The network as the run leaves it: averaged values, eval mode, the recipe's density, a score."""
    if run.average is not None:
        run.average.copy_to(run.network)
    run.network.eval()
    if run.gated and not run.own:
        set_density(run.network, run.recipe.final_density)
    if run.recipe.gates.threshold_cap:
        if run.processes.main:
            fit_to_training_images(run)
        run.score = None  # the last one was taken with the thresholds that followed the training
    run.processes.hand_out(run.network)
    if run.score is None and run.test_data is not None:
        run.score = run.processes.once(evaluate, run.network, run.test_data, preprocess=run.prepare)
    run.processes.finish()
    return TrainingResult(run.score, run.state.history, run.folder)


def fit_to_training_images(run: Run) -> None:
    """Thresholds with which the trained network meets its density on images as inference sees them."""
    pixels, _ = gather(run.train_data, _FITTED_TO)
    batches = [run.prepare(part.to(run.processes.device)) for part in pixels.split(128)]
    densities = {name: run.recipe.density for name, _ in gated_layers(run.network)}
    fit_mean_shares(run.network, batches, densities, run.recipe.gates.threshold_cap)
