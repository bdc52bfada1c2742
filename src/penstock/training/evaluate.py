"""Accuracy of a network or an engine on a data set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penstock.datasets import Images, preprocess_of
from penstock.errors import DataError
from penstock.surgery.network import eval_mode


@dataclass(frozen=True)
class Score:
    """top1 and top5 in percent; loss is the mean cross entropy; seconds is the time spent in the network.

    skipped: images that could not be read, which count neither as right nor as wrong.

    >>> import torch, penstock as ps
    >>> score = ps.evaluate(lambda x: torch.zeros(len(x), 10), ps.datasets.sample())
    >>> score.images, round(score.loss, 3), score.skipped
    (1000, 2.303, 0)
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
    batch_size: int = 100,
    preprocess: Any = None,
) -> Score:
    """Run every image of `data` through a network (in evaluation mode) or an engine.

    The images go in through `preprocess`, else the network's own, else the data set's.

    >>> import torch, penstock as ps
    >>> ps.evaluate(lambda x: torch.eye(10)[0].expand(len(x), 10), ps.datasets.sample()).top1
    10.0
    """
    prepare = preprocess or preprocess_of(network, data)
    device = torch.device("cpu")
    mode: AbstractContextManager[None] = nullcontext()
    layout = torch.contiguous_format
    if isinstance(network, nn.Module):
        layout = torch.channels_last  # twice as fast in torch on a CPU
        mode = eval_mode(network)
        parameter = next(network.parameters(), None)
        device = device if parameter is None else parameter.device
    first = fifth = seen = skipped = 0
    loss = seconds = 0.0
    with mode, torch.no_grad():
        for batch in data.test_batches(batch_size):
            skipped += batch.skipped
            if not len(batch.labels):
                continue
            x = prepare(batch.images.to(device)).contiguous(memory_format=layout)
            labels = batch.labels.to(device)
            begin = time.perf_counter()
            logits = network(x)
            seconds += time.perf_counter() - begin
            ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
            first += int(ranked[:, 0].sum())
            fifth += int(ranked.sum())
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            seen += len(labels)
    if not seen:
        raise DataError(f"{data.name}: there is no image to score ({skipped} could not be read)")
    return Score(100 * first / seen, 100 * fifth / seen, loss / seen, seen, seconds, skipped)
