"""Accuracy of a network or an engine on a data set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penstock.datasets import ImageArrays, Preprocess


@dataclass(frozen=True)
class Score:
    """top1 and top5 in percent; loss is the mean cross entropy; seconds is the time spent in the network."""

    top1: float
    top5: float
    loss: float
    images: int
    seconds: float


def evaluate(
    network: nn.Module | Callable[[Tensor], Tensor], data: ImageArrays, batch_size: int = 500, preprocess: Any = None
) -> Score:
    """Run every image of `data` through a network (in evaluation mode) or an engine."""
    prepare = preprocess or getattr(network, "preprocess", None) or Preprocess()
    was_training = isinstance(network, nn.Module) and network.training
    device = torch.device("cpu")
    if isinstance(network, nn.Module):
        network.eval()
        parameter = next(network.parameters(), None)
        device = device if parameter is None else parameter.device
    first = fifth = 0
    loss = seconds = 0.0
    try:
        with torch.no_grad():
            for start in range(0, len(data), batch_size):
                x = prepare(data.images[start : start + batch_size].to(device))
                labels = data.labels[start : start + batch_size].to(device)
                begin = time.perf_counter()
                logits = network(x)
                seconds += time.perf_counter() - begin
                ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
                first += int(ranked[:, 0].sum())
                fifth += int(ranked.sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    finally:
        if was_training:
            assert isinstance(network, nn.Module)
            network.train()
    count = max(1, len(data))
    return Score(100 * first / count, 100 * fifth / count, loss / count, len(data), seconds)
