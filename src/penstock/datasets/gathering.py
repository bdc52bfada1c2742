"""A few images of a data set as tensors: for fitting, choosing and reporting outside of training."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.datasets.protocol import Images

_BATCH = 250


def gather(data: Images, most: int) -> tuple[Tensor, Tensor]:
    """Up to `most` images, spread evenly over the data set. → uint8 (n, c, h, w), int64 (n,).

    >>> from penstock.datasets import sample
    >>> images, labels = gather(sample(), 16)
    >>> images.shape, labels.shape
    (torch.Size([16, 3, 32, 32]), torch.Size([16]))
    """
    count = len(data)
    wanted = set(torch.linspace(0, count - 1, min(most, count)).long().tolist())
    images, labels, at = [], [], 0
    for batch in data.test_batches(_BATCH):
        places = [place for place in range(len(batch.labels)) if at + place in wanted]
        images.append(batch.images[places])
        labels.append(batch.labels[places])
        at += len(batch.labels)
    return torch.cat(images), torch.cat(labels)
