"""Weights in half precision: tensors of float32 in, float16 for the file out; and back in float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from penstock.errors import CheckpointError

_LARGEST = torch.finfo(torch.float16).max


def halve(tensors: Mapping[str, Tensor], path: object) -> dict[str, Tensor]:
    """The weights (two dimensions and more, float32) among `tensors`, in float16.

    Norms, shifts and biases stay as they are: they are few, and rounding them moves whole channels.
    """
    weights = {name: t for name, t in tensors.items() if t.dtype is torch.float32 and t.ndim >= 2}
    for name, tensor in weights.items():
        largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        if not largest <= _LARGEST:
            raise CheckpointError(
                f"{path}: {name!r} holds {largest:g}, and float16 ends at {_LARGEST:g}; save it without half"
            )
    return {name: tensor.detach().to(torch.float16) for name, tensor in weights.items()}


def widen(tensors: Mapping[str, Tensor], names: Iterable[str], path: object) -> dict[str, Tensor]:
    """`tensors` with those of `names` in float32 again."""
    wide = dict(tensors)
    for name in names:
        if name not in wide or wide[name].dtype is not torch.float16:
            found = str(wide[name].dtype) if name in wide else "no such tensor"
            raise CheckpointError(
                f"{path}: it says that {name!r} is held in float16, and has {found}; save the network again"
            )
        wide[name] = wide[name].to(torch.float32)
    return wide
