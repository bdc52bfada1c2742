"""From uint8 images to the network's float input; travels with the network, so nobody guesses a mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from penstock_runtime import preprocess

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Preprocess(preprocess.Preprocess):
    """(image / 255 - mean) / std, channel by channel; CIFAR-10's numbers unless others are given.

    Hang it onto your own network, `model.preprocess = Preprocess(mean, std)`: every command and function that
    reads images then uses it, and checkpoints keep it. Call it on uint8 images (n, c, h, w) for float32.
    """

    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD


def preprocess_of(network: object, data: object = None) -> Callable[[Tensor], Tensor]:
    """How raw images become the network's input: its own way, else the data set's, else CIFAR-10's.

    >>> import torch
    >>> preprocess_of(torch.nn.Identity())(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).dtype
    torch.float32
    """
    own = getattr(network, "preprocess", None) or getattr(data, "preprocess", None)
    return own or Preprocess()
