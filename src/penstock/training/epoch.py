"""One epoch of a run, step by step: batches in, a changed network out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.datasets import Augment
from penstock.datasets.protocol import Batch
from penstock.gating import saliency_penalty, set_density, set_image_densities
from penstock.training import mixup, schedules
from penstock.training.finite import not_finite
from penstock.training.lessons import teach
from penstock.training.losses import count_hits, freeze_norms, is_finite, similarity, task_loss
from penstock.training.processes import Processes
from penstock.training.setup import Run, epoch_length
from penstock.training.state import STATE_FILE, Part, collect, collect_chance, restore_chance, save_state


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


def run_epoch(run: Run, epoch: int, on_step: Callable[[Step], None] | None) -> Part | None:
    """Take every step of the epoch that is left; None if the time ran out first, with the state saved."""
    recipe, processes = run.recipe, run.processes
    # Sums of all processes are added up, so only the main one continues those of an interrupted epoch.
    part = run.state.part if processes.main else Part(steps=run.state.part.steps)
    begin = time.perf_counter() - part.seconds
    draw = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
    # A generator of its own, so that runs with other densities see the same images in the same order.
    draw_densities = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch + 500_000_003)
    shown = torch.randperm(len(run.train_data), generator=draw)[: epoch_length(run.train_data, recipe)]
    order = shown.split(recipe.batch_size)
    if part.steps:
        restore_chance(run.state, images=draw, densities=draw_densities)
    changes = recipe.augmentation
    augment = Augment(
        changes.crop_padding,
        changes.flip,
        changes.cutout,
        changes.colour,
        schedules.image_size(changes, epoch / recipe.epochs),
        recipe.seed,
        changes.smallest_area,
    )
    run.network.train()
    if epoch >= recipe.optimiser.freeze_norms_at * recipe.epochs:
        freeze_norms(run.network)
    batches = run.train_data.training_batches(order[part.steps :], augment, epoch, draw, run.portions.own)
    for step, batch in enumerate(batches, start=part.steps):
        seed_dropout(recipe.seed, epoch, step, processes)
        share = (epoch + step / run.steps) / recipe.epochs
        densities = schedules.image_densities(recipe, share, len(order[step]), draw_densities)
        take_step(run, part, batch, len(order[step]), share, densities, (epoch, step))
        part.steps, part.seconds = step + 1, time.perf_counter() - begin
        if on_step is not None and processes.main:
            on_step(progress(run, part, epoch, step, share))
        stop = run.out_of_time()
        due = processes.main_says(time.monotonic() >= run.saved_at + run.state_every)
        if run.folder is not None and (stop or due) and part.steps < run.steps:
            run.state.part = processes.summed(part)
            if processes.main:
                run.state.tensors = collect(run.network, run.optimiser, run.average)
                run.state.tensors |= collect_chance(images=draw, densities=draw_densities)
                save_state(run.state, run.folder / STATE_FILE)
            run.saved_at = time.monotonic()
            if stop:
                return None
    return processes.summed(part)


def take_step(
    run: Run, part: Part, batch: Batch, images: int, share: float, densities: Tensor, where: tuple[int, int]
) -> None:
    """One optimiser step: every forward of this process's part of the batch, then the update.

    images: of the whole batch, over all processes. share: where the run stands. densities: one an image.
    """
    recipe, processes = run.recipe, run.processes
    if run.gated and not run.drawn and not run.own:
        set_density(run.network, schedules.density(recipe, share))
    run.arithmetic.noise = schedules.choice_noise(recipe, share)
    for group in run.optimiser.param_groups:
        group["lr"] = schedules.learning_rate(recipe, share)
    run.optimiser.zero_grad(set_to_none=True)
    part.skipped += batch.skipped
    own = densities[run.portions.own(images)]
    own_share = mixup.draw_share(recipe.augmentation.mixup, recipe.seed, *where)
    pieces = run.portions.forwards(images, batch.skipped)
    for number, piece in enumerate(pieces):
        pixels, labels = (whole[piece].to(processes.device) for whole in batch[:2])
        pixels = mixup.blend(pixels, own_share)
        x = run.prepare(pixels).contiguous(memory_format=run.layout)
        if run.drawn:
            # Norms with levels want the images of a level side by side; the images are shuffled anyway.
            set_image_densities(run.network, own[piece].sort().values)
        with run.arithmetic:
            taught = None
            if run.teacher is not None:
                taught = teach(run.teacher, pixels, x, run.prepare, run.lessons)
            logits = run.forward(x)
        loss = task_loss(logits, labels, recipe.loss, taught)
        if own_share < 1.0:
            of_partners = task_loss(logits, mixup.partners(labels), recipe.loss, taught)
            loss = own_share * loss + (1.0 - own_share) * of_partners
        if run.gated and recipe.loss.penalty:
            loss = loss + recipe.loss.penalty * saliency_penalty(run.network)
        if run.gated and recipe.loss.similarity:
            loss = loss + recipe.loss.similarity * similarity(run.arithmetic.pooled)
        if run.extra_loss is not None:
            loss = loss + run.extra_loss(run.network)
        if run.batch_loss is not None:
            added = run.batch_loss(run.network, logits, labels)
            loss = loss if added is None else loss + added
        if not processes.all_agree(is_finite(loss)):
            raise not_finite(loss, run.network, x, *where)
        processes.backward(loss / recipe.optimiser.accumulate, run.forward, last=number == len(pieces) - 1)
        part.loss += float(loss.detach()) * len(labels)
        part.hits += count_hits(logits, labels)
        part.seen += len(labels)
    run.optimiser.step()
    if run.after_step is not None:
        run.after_step(run.network, share + 1 / (run.steps * recipe.epochs))
    if run.average is not None:
        run.average.update(run.network)


def progress(run: Run, part: Part, epoch: int, step: int, share: float) -> Step:
    """The numbers of a progress display after a step."""
    left = part.seconds / (step + 1) * (run.steps - step - 1 + run.steps * (run.recipe.epochs - epoch - 1))
    return Step(
        epoch,
        step,
        run.steps,
        loss=part.loss / part.seen,
        accuracy=part.hits / part.seen,
        density=schedules.density(run.recipe, share),
        images_per_second=part.seen * run.processes.count / part.seconds,
        seconds_left=left,
    )


def seed_dropout(seed: int, epoch: int, step: int, processes: Processes) -> None:
    """The same wherever the run was interrupted, and not the same in two processes."""
    value = seed * 100_003 + epoch + processes.index * 1_000_000_007 + step * 4_000_000_007
    torch.default_generator.manual_seed(value)
    if processes.device.type == "cuda":
        torch.cuda.manual_seed(value)
