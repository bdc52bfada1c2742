"""One training step: a network gated at a density against the same network without gates, in the same run.

    python benchmarks/training_step.py [--density 0.5] [--rounds 12] [--fresh-memory] [--only-native]
    python benchmarks/training_step.py --network resnet18 --size 128 --batch 64 --only-native --rounds 3

Set OMP_WAIT_POLICY=passive, as `penstock train` does for itself: threads of torch that spin while they wait
keep a core from the kernels' own.

With torch's own layers, and with the native ones that the default recipe uses on a CPU; and, as "skipping",
with those that compute winners only, which statistics="winners" allows. The steps are interleaved, and set as
that recipe sets them. Prints JSON: medians, minima, the ratios of gated to dense (at most 1.15 is wanted; of
skipping 0.55 at density 0.5 and 0.35 at 0.3), and how much faster the native layers are.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
import tyro
from torch import nn

from penstock.gating import is_gated, saliency_penalty
from penstock.surgery import add_gates
from penstock.training import Recipe
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers
from penstock.training.losses import parameter_groups
from penstock.training.memory import keep_freed_memory
from penstock.zoo.definition import MAKERS


@dataclass(frozen=True)
class Options:
    """Time training steps."""

    network: Literal["m_cifarnet", "resnet18"] = "m_cifarnet"
    density: float = 0.5
    rounds: int = 12
    size: int = 32
    batch: int = 0
    """Images in a step; 0: the recipe's."""
    threads: int = 0
    fresh_memory: bool = False
    """Leave the allocator as it is, instead of what `penstock train` asks of it."""
    only_native: bool = False
    """Leave out the steps with torch's own layers."""


LAYERS: dict[str, Callable[[nn.Module], FusedLayers]] = {
    "torch": FusedLayers,
    "native": FastLayers,
    "skipping": lambda network: FastLayers(network, "winners"),
}


def stepper(
    network: nn.Module, recipe: Recipe, layers: Callable[[nn.Module], FusedLayers]
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """A function that takes one optimiser step and returns its seconds."""
    layout = torch.channels_last if recipe.speed.channels_last else torch.contiguous_format
    network.train().to(memory_format=layout)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(
        parameter_groups(network, recipe.optimiser.weight_decay),
        lr=recipe.learning_rate / 10,
        momentum=recipe.optimiser.momentum,
        nesterov=True,
    )
    gated = is_gated(network)
    fast = layers(network)
    forward = torch.compile(network, dynamic=False) if recipe.speed.compile else network

    def step(x: torch.Tensor, labels: torch.Tensor) -> float:
        begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with fast:
            logits = forward(x.contiguous(memory_format=layout))
        loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        if gated:
            loss = loss + recipe.loss.penalty * saliency_penalty(network)
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
    dense = MAKERS[options.network](classes=10)
    batch = options.batch or recipe.batch_size
    x = torch.randn(batch, 3, options.size, options.size)
    labels = torch.randint(0, 10, (batch,))
    gated = add_gates(dense, x[:2], density=options.density)
    networks = {"dense": dense, "gated": gated}
    compared = ["native"] if options.only_native else ["torch", "native"]
    steps = {
        f"{kind}, {whose}": stepper(deepcopy(network), recipe, LAYERS[whose])
        for whose in compared
        for kind, network in networks.items()
    }
    steps["gated, skipping"] = stepper(deepcopy(gated), recipe, LAYERS["skipping"])
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(options.rounds + 1):
        for name, step in steps.items():
            taken = step(x, labels)
            if round_:  # the first one warms up
                seconds[name].append(taken)

    def ratio(over: str, under: str) -> dict[str, float]:
        pairs = [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
        return {
            "median_of_pairs": round(statistics.median(pairs), 3),
            "minima": round(min(seconds[over]) / min(seconds[under]), 3),
        }

    found = {
        "network": options.network,
        "density": options.density,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "median_seconds": {name: round(statistics.median(each), 4) for name, each in seconds.items()},
        "min_seconds": {name: round(min(each), 4) for name, each in seconds.items()},
        "gated_over_dense": {whose: ratio(f"gated, {whose}", f"dense, {whose}") for whose in compared},
        "limit": 1.15,
        "skipping_over_dense": ratio("gated, skipping", "dense, native"),
    }
    if not options.only_native:
        found["torch_over_native"] = {kind: ratio(f"{kind}, torch", f"{kind}, native") for kind in networks}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
