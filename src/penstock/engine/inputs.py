"""What enters an engine: torch or numpy images, checked and brought to contiguous float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import InputError

Images = npt.NDArray[np.float32]
_FLOAT = np.dtype(np.float32)


def to_images(x: Any, expected: tuple[int, int, int]) -> Images:
    """x: (batch, channel, height, width), torch or numpy, any layout in memory → contiguous float32.

    float16, bfloat16 and float64 are converted; whole numbers are refused, because bytes have not been
    through the network's preprocessing.
    """
    quick = _as_it_is(x, expected)
    if quick is not None:
        return quick
    if isinstance(x, Tensor):
        if x.device.type != "cpu":
            raise InputError(
                f"the engine runs on the CPU and the images are on {x.device}; give images.cpu()"
            )
        _check(tuple(x.shape), x.is_floating_point(), str(x.dtype), expected)
        x = x.detach().resolve_neg()
        return np.ascontiguousarray((x if x.dtype == torch.float32 else x.to(torch.float32)).numpy())
    if isinstance(x, np.ndarray):
        _check(x.shape, np.issubdtype(x.dtype, np.floating), str(x.dtype), expected)
        return np.ascontiguousarray(x, np.float32)
    raise InputError(
        f"expected a torch tensor or numpy array (batch, channel, height, width), got {type(x).__name__}"
    )


def _as_it_is(x: Any, expected: tuple[int, int, int]) -> Images | None:
    """Images that need nothing done: the common case costs two microseconds, not five."""
    if type(x) is Tensor:
        try:
            x = x.numpy()
        except (RuntimeError, TypeError):  # requires grad, on another device, of a type numpy has not
            return None
    fits = type(x) is np.ndarray and x.dtype == _FLOAT and x.shape[1:] == expected and x.flags.c_contiguous
    return x if fits else None


def _check(shape: tuple[int, ...], floating: bool, kind: str, expected: tuple[int, int, int]) -> None:
    if len(shape) == 4 and tuple(shape[1:]) == expected and floating:
        return
    wanted = f"(batch, {', '.join(str(size) for size in expected)})"
    if len(shape) != 4:
        hint = "; add the batch axis with x[None]" if shape == expected else ""
        raise InputError(f"images: expected shape {wanted}, got {shape}{hint}")
    if tuple(shape[1:]) != expected:
        what = "channels" if shape[1] != expected[0] else "height and width"
        raise InputError(
            f"images: expected shape {wanted}, got {shape}: other {what} than the engine's example"
        )
    if not floating:
        raise InputError(
            f"images: expected floating-point values, got {kind}; preprocess them first (a checkpoint "
            "carries how: engine.preprocess(images))"
        )
