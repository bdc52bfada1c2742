"""A network, data and runs small enough to train in a fraction of a second, and to be killed elsewhere."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch._dynamo  # the optimisers import it at their first step; here it is shared by all forks
from torch import Tensor, nn

from penstock.datasets import ImageArrays
from penstock.gating import GatedConv2d
from penstock.training import Recipe, TrainingResult, train

RECIPE = Recipe(epochs=4, batch_size=16, learning_rate=0.05, threads=1).replace(crop_padding=1)
RICH = RECIPE.replace(
    average=0.8, density=0.75, density_schedule="any", any_low=0.3, cutout=2, colour=0.1, mixup=0.4,
    freeze_norms_at=0.5, image_sizes="0:6,0.5:8", accumulate=2,
)  # fmt: skip


class Tiny(nn.Module):
    """Two convolutions, gated or not, with dropout between them."""

    def __init__(self, gated: bool = True, classes: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.first, self.second = (self._layer(i, o, gated) for i, o in ((3, 6), (6, 8)))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, classes)

    @staticmethod
    def _layer(inputs: int, outputs: int, gated: bool) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        if gated:
            return GatedConv2d(conv, nn.BatchNorm2d(outputs, affine=False), nn.ReLU())
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.drop(self.first(x))).mean((2, 3)))


def network(gated: bool = True, seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(gated)


def data(count: int = 50, seed: int = 0) -> ImageArrays:
    """Three classes that differ in their colour."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 120, (count, 3, 8, 8), generator=chance, dtype=torch.uint8)
    images[torch.arange(count), labels] += 60
    return ImageArrays(images, labels, ("red", "green", "blue"), "tiny")


def weights(of: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in of.state_dict().items()
    }


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def run(recipe: Recipe = RICH, out: Path | None = None, **options: Any) -> tuple[Tiny, TrainingResult]:
    """One run of the tiny network, from its start or from where `out` stands."""
    made = network()
    return made, train(made, data(), data(30, 1), recipe, out=out, **options)


def run_in_process(folder: str, die_at_sync: int = 0, **environment: str) -> None:
    """A run that ends with its weights in a file, for another process; SIGKILL at the n-th fsync if asked."""
    os.environ.update(environment)
    if die_at_sync:
        os.fsync = _killing(os.fsync, die_at_sync)
    made, _ = run(out=Path(folder))
    if environment.get("RANK", "0") == "0":
        safetensors.torch.save_file(weights(made), f"{folder}/final.safetensors")


def share_in_process(folder: str, recipe: Recipe, environment: dict[str, str], stop_after: int = 0) -> None:
    """One of several processes of a run, each with the environment that torchrun would give it."""
    os.environ.update(environment)
    made = Tiny(dropout=0.0)
    made.load_state_dict(network().state_dict())

    def stop(metrics: dict[str, Any], _: nn.Module) -> None:
        if metrics["epoch"] == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)

    result = train(made, data(), data(30, 1), recipe, out=folder, on_epoch=stop)
    rank = environment["RANK"]
    Path(f"{folder}/rank{rank}.json").write_text(json.dumps(result.history))
    safetensors.torch.save_file(weights(made), f"{folder}/rank{rank}.safetensors")


def _killing(sync: Callable[[int], None], at: int) -> Callable[[int], None]:
    calls = iter(range(1, 1_000_000))

    def fsync(descriptor: int) -> None:
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    return fsync
