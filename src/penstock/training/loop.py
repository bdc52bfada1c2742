"""One training loop, read top to bottom: a network, data and a recipe in; the trained network out.

    train(network, train_data, test_data, Recipe(epochs=15), out="runs/x")

Run again with the same `out` it goes on from the last whole epoch; what it ends with is bit for bit what an
uninterrupted run would have ended with on the same machine. Under `accelerate launch` or `torchrun` every
process takes its part of each batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.datasets import Augment, Images
from penstock.errors import TrainingError
from penstock.files import write_atomically
from penstock.gating import gated_layers, saliency_penalty, set_density, set_image_densities, set_levels
from penstock.training import schedules
from penstock.training.average import WeightAverage
from penstock.training.evaluate import Score, evaluate
from penstock.training.fast_layers import FastLayers, announce_relus
from penstock.training.finite import first_broken_layer
from penstock.training.lessons import Lessons
from penstock.training.losses import count_hits, freeze_norms, is_finite, parameter_groups, task_loss
from penstock.training.parts import Shares
from penstock.training.processes import Processes
from penstock.training.recipe import Recipe
from penstock.training.record import write_record
from penstock.training.state import STATE_FILE, RunState, collect, remove_leftovers, resume, save_state


@dataclass(frozen=True)
class Step:
    """What a progress display wants to know after each optimiser step; accuracy is a share of 1."""

    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float
    density: float
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class TrainingResult:
    """The last score on the test data (None without any), the metrics of every epoch, and where they lie."""

    score: Score | None
    history: list[dict[str, Any]]
    out: Path | None


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
    tensorboard: bool = False,
    on_step: Callable[[Step], None] | None = None,
    on_epoch: Callable[[dict[str, Any], nn.Module], None] | None = None,
) -> TrainingResult:
    """Train `network` in place; its weights at the end are the averaged ones if the recipe averages.

    `out`: a folder for the state and the metrics, from which a stopped run goes on. `lessons`: a folder where
    the teacher's answers are kept for other runs that ask the same. `extra_loss`: a term of the network's own
    values that is added to every loss (Network Slimming's Lasso on the scales, for instance). `tensorboard`:
    also log there, below `out`. The callbacks are called in the main process only; `on_epoch` gets the
    epoch's metrics and the network as it would be saved.
    """
    recipe = recipe or Recipe()
    check_inputs(network, train_data, recipe, teacher)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    folder = None if out is None else Path(out)
    gated = any(True for _ in gated_layers(network))
    if recipe.levels():
        set_levels(network, recipe.levels())
    processes = Processes(folder, tensorboard)
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    network.to(processes.device, memory_format=layout)  # type: ignore[call-overload]
    prepare: Callable[[Tensor], Tensor] = getattr(network, "preprocess", None) or train_data.preprocess
    network.preprocess = prepare  # type: ignore[assignment]  # travels with the network from here on
    if teacher is not None:
        teacher.to(processes.device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
    taught_before = None if teacher is None or lessons is None else Lessons(Path(lessons), teacher)

    announce_relus(network)
    optimiser = torch.optim.SGD(
        parameter_groups(network, recipe.weight_decay),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
    )
    average = WeightAverage(network, recipe.average) if recipe.average else None
    state = RunState(recipe=asdict(recipe))
    if folder is not None:
        if (folder / STATE_FILE).exists():
            state = resume(folder / STATE_FILE, network, optimiser, average, recipe)
        processes.agree_on(state.epoch, folder)
        if processes.main:
            remove_leftovers(folder)
            if state.epoch < recipe.epochs:
                write_record(folder, state.epoch, recipe, network, train_data, test_data, processes.count)
    forward, optimiser = processes.prepare(network, optimiser, recipe.compile)

    shares = Shares(processes.index, processes.count, recipe.accumulate)
    steps = -(-len(train_data) // recipe.batch_size)
    score: Score | None = None
    for epoch in range(state.epoch, recipe.epochs):
        begin, seen, hits, total_loss, skipped = time.perf_counter(), 0, 0, 0.0, 0
        # Dropout: the same on resuming, and not the same in two processes.
        torch.manual_seed(recipe.seed * 100_003 + epoch + processes.index * 1_000_000_007)
        draw = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        # Apart from the images' chances, so that runs with other densities see the same images.
        draw_densities = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch + 500_000_003)
        order = torch.randperm(len(train_data), generator=draw).split(recipe.batch_size)
        size = schedules.image_size(recipe, epoch / recipe.epochs)
        augment = Augment(recipe.crop_padding, recipe.flip, recipe.cutout, recipe.colour, size, recipe.seed)
        network.train()
        if epoch >= recipe.freeze_norms_at * recipe.epochs:
            freeze_norms(network)
        for step, batch in enumerate(train_data.training_batches(order, augment, epoch, draw, shares.own)):
            share = (epoch + step / steps) / recipe.epochs
            density = schedules.density(recipe, share)
            densities = schedules.image_densities(recipe, share, len(order[step]), draw_densities)
            densities = densities[shares.own(len(order[step]))]
            drawn = gated and recipe.density_schedule == "any"
            if gated and not drawn:
                set_density(network, density)
            for group in optimiser.param_groups:
                group["lr"] = schedules.learning_rate(recipe, share)
            optimiser.zero_grad(set_to_none=True)
            skipped += batch.skipped
            parts = shares.forwards(len(order[step]), batch.skipped)
            for number, part in enumerate(parts):
                images, labels = (whole[part].to(processes.device) for whole in batch[:2])
                x = prepare(images).contiguous(memory_format=layout)
                if drawn:
                    # The batch is in random order, so the densities need not be; norms go by level.
                    set_image_densities(network, densities[part].sort().values)
                with FastLayers() if recipe.winograd else nullcontext():
                    taught = None if teacher is None else teach(teacher, images, x, prepare, taught_before)
                    logits = forward(x)
                loss = task_loss(logits, labels, recipe, taught)
                if gated and recipe.penalty:
                    loss = loss + recipe.penalty * saliency_penalty(network)
                if extra_loss is not None:
                    loss = loss + extra_loss(network)
                if not processes.all_agree(is_finite(loss)):
                    raise not_finite(loss, network, x, epoch, step)
                processes.backward(loss / recipe.accumulate, forward, last=number == len(parts) - 1)
                total_loss += float(loss.detach()) * len(labels)
                hits += count_hits(logits, labels)
                seen += len(labels)
            optimiser.step()
            if average is not None:
                average.update(network)
            if on_step is not None and processes.main:
                elapsed = time.perf_counter() - begin
                left = elapsed / (step + 1) * (steps - step - 1 + steps * (recipe.epochs - epoch - 1))
                speed = seen * processes.count / elapsed
                on_step(Step(epoch, step, steps, total_loss / seen, hits / seen, density, speed, left))

        seconds = time.perf_counter() - begin
        total_loss, hits, seen, skipped = processes.add_up(total_loss, hits, seen, skipped)
        trained = network if average is None else average.network(network)
        if gated:
            set_density(trained, recipe.density)
        metrics: dict[str, Any] = {
            "epoch": epoch + 1,
            "loss": total_loss / seen,
            "train_top1": 100 * hits / seen,
            "density": density if recipe.density_schedule != "any" else recipe.density,
            "learning_rate": optimiser.param_groups[0]["lr"],
            "seconds": round(seconds, 2),
            "images_per_second": round(seen / seconds, 1),
        }
        if skipped:
            metrics["skipped_images"] = skipped
        if test_data is not None:
            score = processes.once(evaluate, trained, test_data, preprocess=prepare)
            metrics |= {"test_top1": score.top1, "test_top5": score.top5, "test_loss": score.loss}
        if taught_before is not None:
            taught_before.keep()
        state.epoch = epoch + 1
        state.history.append(metrics)
        if folder is not None and processes.main:
            state.tensors = collect(network, optimiser, average)
            save_state(state, folder / STATE_FILE)
            lines = "".join(json.dumps(line) + "\n" for line in state.history)
            write_atomically(folder / "metrics.jsonl", lines.encode())
        processes.log(metrics, epoch + 1)
        if on_epoch is not None and processes.main:
            on_epoch(metrics, trained)
        processes.wait()
    if average is not None:
        average.copy_to(network)
    processes.share(network)
    network.eval()
    if gated:
        set_density(network, recipe.density)
    if score is None and test_data is not None:
        score = processes.once(evaluate, network, test_data, preprocess=prepare)
    processes.finish()
    return TrainingResult(score, state.history, folder)


def check_inputs(network: nn.Module, data: Images, recipe: Recipe, teacher: nn.Module | None) -> None:
    """Refuse what would fail only after an epoch, or never."""
    if recipe.distill > 0 and teacher is None:
        raise TrainingError(f"recipe.distill is {recipe.distill}, but no teacher was given")
    if recipe.distill == 0 and teacher is not None:
        raise TrainingError("a teacher was given, but recipe.distill is 0; 0.5 listens to both equally")
    if len(data) == 0:
        raise TrainingError(f"{data.name}: there are no images to train on")
    gated = any(True for _ in gated_layers(network))
    if not gated and (recipe.density < 1.0 or recipe.density_schedule == "any"):
        raise TrainingError(
            f"recipe.density is {recipe.density:g} ({recipe.density_schedule}) and the network has no gates; "
            "add some with penstock.add_gates(model, example)"
        )


def teach(
    teacher: nn.Module,
    images: Tensor,
    x: Tensor,
    prepare: Callable[[Tensor], Tensor],
    lessons: Lessons | None = None,
) -> Tensor:
    """The teacher's logits for a batch; it sees the images through its own preprocessing if it has one."""
    own = getattr(teacher, "preprocess", None) or prepare

    def ask() -> Tensor:
        with torch.no_grad():
            logits: Tensor = teacher(x if own == prepare else own(images))
            return logits

    return ask() if lessons is None else lessons.answer(images, ask)


def not_finite(loss: Tensor, network: nn.Module, x: Tensor, epoch: int, step: int) -> TrainingError:
    """The error that stops a run whose loss is no number, with the layer it began in."""
    return TrainingError(
        f"the loss became {float(loss.detach())} in epoch {epoch + 1}, step {step + 1}: "
        f"{first_broken_layer(network, x)}. The weights on disk are those of the last whole epoch. "
        "Try a lower learning rate, a longer warm-up, or init='preserve' for the gates"
    )
