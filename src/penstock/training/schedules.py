"""Learning rate, density and image size as pure functions of where the run stands."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from penstock.training.choices import Augmentation
from penstock.training.recipe import Recipe


def learning_rate(recipe: Recipe, share: float) -> float:
    """The rate at `share` (0 to 1) of the run."""
    peak, choices = recipe.learning_rate, recipe.optimiser
    if share < choices.warmup:
        return peak * (0.1 + 0.9 * share / choices.warmup)
    rest = (share - choices.warmup) / max(1e-12, 1.0 - choices.warmup)
    if choices.schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * rest))
    if choices.schedule == "linear":
        return peak * (1.0 - rest)
    return peak * 0.1 ** int(share * recipe.epochs / choices.step_epochs)


def density(recipe: Recipe, share: float) -> float:
    """The density at `share` of the run; with "any", the lowest that is drawn there."""
    gates = recipe.gates
    if gates.density_schedule in ("anneal", "any"):
        target = recipe.density if gates.density_schedule == "anneal" else gates.any_low
        span = max(1e-12, gates.anneal_to - gates.anneal_from)
        progress = min(1.0, max(0.0, (share - gates.anneal_from) / span))
        return 1.0 - (1.0 - target) * progress
    if gates.density_schedule == "paper":
        # Each level has the same share of the run and starts from where the one before ended.
        levels = paper_densities(recipe.density)
        return levels[min(len(levels) - 1, int(share * len(levels)))]
    return recipe.density


def image_densities(recipe: Recipe, share: float, images: int, generator: torch.Generator) -> Tensor:
    """A density for each image of the batch at `share` of the run, (images,).

    With "any" they are drawn one by one: a batch of all densities has the same statistics at every step, so
    the norms learn what they will meet at any density. Drawn batch by batch they fit the middle ones only.
    """
    low = density(recipe, share)
    if recipe.gates.density_schedule != "any":
        return torch.full((images,), low)
    low = min(low, recipe.density)
    if recipe.gates.any_levels:
        return _around_levels(recipe, low, images, generator)
    drawn = low + (recipe.density - low) * torch.rand(images, generator=generator)
    drawn[: round(recipe.gates.any_full * images)] = recipe.density  # the batch is in random order already
    return drawn


def _around_levels(recipe: Recipe, low: float, images: int, generator: torch.Generator) -> Tensor:
    """Each level gets its share of the images; of these, `any_near` are jittered around its density."""
    levels, weights = recipe.gates.levels(), torch.tensor(recipe.gates.level_weights())
    ends = weights.cumsum(0) / weights.sum()
    places = (torch.randperm(images, generator=generator) + 0.5) / images
    row = torch.bucketize(places, ends[:-1])
    middles = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
    begin, end = torch.tensor([low, *middles])[row], torch.tensor([*middles, recipe.density])[row]
    near = begin + (end - begin) * torch.rand(images, generator=generator)
    away = torch.rand(images, generator=generator) < recipe.gates.any_near
    return torch.where(away, near, torch.tensor(levels)[row]).clamp(low, recipe.density)


def choice_noise(recipe: Recipe, share: float) -> float:
    """The noise on the choice of winners at `share` of the run, in standard deviations of the saliencies."""
    gates = recipe.gates
    if share >= gates.choice_noise_until:
        return 0.0
    return gates.choice_noise * (1.0 - share / gates.choice_noise_until)


def paper_densities(target: float) -> list[float]:
    """The paper's sweep down to `target`: 1, then ten points lower at each step.

    >>> paper_densities(0.75)
    [1.0, 0.9, 0.8, 0.75]
    """
    steps = math.ceil(round((1.0 - target) / 0.1, 9))
    return [max(target, round(1.0 - 0.1 * step, 10)) for step in range(steps + 1)]


def image_size(changes: Augmentation, share: float) -> int | None:
    """The side the images are scaled to at `share` of the run; None keeps their own."""
    size = None
    for start, side in changes.sizes():
        if share >= start - 1e-9:
            size = side
    return size
