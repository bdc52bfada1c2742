"""The native side of training, and how a tensor's memory is handed to it."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

import torch
from torch import Tensor

from penstock.native import chosen_isa, native


def trainer() -> Any:
    """The kernels for as many threads as torch uses."""
    return _trainer(chosen_isa(), torch.get_num_threads())


@cache
def _trainer(isa: str, threads: int) -> Any:
    return native().Trainer(isa, threads)


atexit.register(_trainer.cache_clear)  # its threads end before the interpreter does


def channels_last(x: Tensor) -> Any:
    """(n, c, h, w), channels last in memory → the same memory as an array (n, h, w, c)."""
    return x.detach().permute(0, 2, 3, 1).numpy()


def rows_of(x: Tensor) -> Any:
    """The same memory as an array."""
    return x.detach().numpy()
