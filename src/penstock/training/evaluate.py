"""Accuracy of a network or an engine on a data set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penstock.datasets import Images
from penstock.errors import DataError


@dataclass(frozen=True)
class Score:
    """top1 and top5 in percent; loss is the mean cross entropy; seconds is the time spent in the network.

    skipped: images that could not be read, which count neither as right nor as wrong.
    """

    top1: float
    top5: float
    loss: float
    images: int
    seconds: float
    skipped: int = 0


def evaluate(
    network: nn.Module | Callable[[Tensor], Tensor],
    data: Images,
    batch_size: int = 500,
    preprocess: Any = None,
) -> Score:
    """Run every image of `data` through a network (in evaluation mode) or an engine.

    The images go in through `preprocess`, else the network's own, else the data set's.
    """
    prepare = preprocess or getattr(network, "preprocess", None) or data.preprocess
    modes: list[tuple[nn.Module, bool]] = []
    device = torch.device("cpu")
    if isinstance(network, nn.Module):
        modes = [(module, module.training) for module in network.modules()]
        network.eval()
        parameter = next(network.parameters(), None)
        device = device if parameter is None else parameter.device
    first = fifth = seen = skipped = 0
    loss = seconds = 0.0
    try:
        with torch.no_grad():
            for batch in data.test_batches(batch_size):
                skipped += batch.skipped
                if not len(batch.labels):
                    continue
                x = prepare(batch.images.to(device))
                labels = batch.labels.to(device)
                begin = time.perf_counter()
                logits = network(x)
                seconds += time.perf_counter() - begin
                ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
                first += int(ranked[:, 0].sum())
                fifth += int(ranked.sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
                seen += len(labels)
    finally:
        for module, training in modes:  # one by one: frozen norms stay frozen
            module.training = training
    if not seen:
        raise DataError(f"{data.name}: there is no image to score ({skipped} could not be read)")
    return Score(100 * first / seen, 100 * fifth / seen, loss / seen, seen, seconds, skipped)
