"""One training step of M-CifarNet: gated at a density against the plain dense network, in the same run.

    python benchmarks/training_step.py [--density 0.5] [--rounds 12] [--fresh-memory]

The steps are interleaved, and set as the default recipe sets them. Prints JSON: medians, minima, the ratio
that must be at most 1.15.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from torch import nn

from penstock.gating import gated_layers, saliency_penalty
from penstock.surgery import add_gates
from penstock.training import Recipe
from penstock.training.losses import parameter_groups
from penstock.training.memory import keep_freed_memory
from penstock.zoo import m_cifarnet


@dataclass(frozen=True)
class Options:
    """Time training steps."""

    density: float = 0.5
    rounds: int = 12
    size: int = 32
    threads: int = 0
    fresh_memory: bool = False
    """Leave the allocator as it is, instead of what `penstock train` asks of it."""


def stepper(network: nn.Module, recipe: Recipe) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """A function that takes one optimiser step and returns its seconds."""
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    network.train().to(memory_format=layout)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(
        parameter_groups(network, recipe.weight_decay),
        lr=recipe.learning_rate / 10,
        momentum=recipe.momentum,
        nesterov=True,
    )
    gated = any(True for _ in gated_layers(network))
    forward = torch.compile(network, dynamic=False) if recipe.compile else network

    def step(x: torch.Tensor, labels: torch.Tensor) -> float:
        begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(x.contiguous(memory_format=layout)), labels, label_smoothing=0.1)
        if gated:
            loss = loss + recipe.penalty * saliency_penalty(network)
        loss.backward()
        optimiser.step()
        loss.item()
        return time.perf_counter() - begin

    return step


def main(options: Options) -> None:
    if not options.fresh_memory:
        keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    recipe = Recipe()
    dense = m_cifarnet()
    x = torch.randn(recipe.batch_size, 3, options.size, options.size)
    labels = torch.randint(0, 10, (recipe.batch_size,))
    gated = add_gates(dense, x[:2], density=options.density)
    steps = {"dense": stepper(dense, recipe), "gated": stepper(gated, recipe)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(options.rounds + 1):
        for name, step in steps.items():
            taken = step(x, labels)
            if round_:  # the first one warms up
                seconds[name].append(taken)
    pairs = [g / d for g, d in zip(seconds["gated"], seconds["dense"], strict=True)]
    found = {
        "density": options.density,
        "batch": recipe.batch_size,
        "threads": torch.get_num_threads(),
        "median_seconds": {name: round(statistics.median(each), 4) for name, each in seconds.items()},
        "min_seconds": {name: round(min(each), 4) for name, each in seconds.items()},
        "ratio_of_pairs_median": round(statistics.median(pairs), 3),
        "ratio_of_minima": round(min(seconds["gated"]) / min(seconds["dense"]), 3),
        "limit": 1.15,
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
