"""What enters an engine: torch or numpy images, checked and brought to contiguous float32.

torch is never imported here: whoever holds one of its tensors has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime.errors import InputError

Images = npt.NDArray[np.float32]
_FLOAT = np.dtype(np.float32)
_FAR_PIXEL = 20.0  # no usual normalisation yields larger ones: 1 / 0.05 would
_PREPARE = "give the engine normalised images (a checkpoint carries how: engine.preprocess(images))"


def torch_module() -> Any:
    """torch, if this process has imported it, else None."""
    return sys.modules.get("torch")


def is_torch_tensor(x: Any) -> bool:
    """Whether x is a tensor of torch, parameters and other subclasses included."""
    tensor = getattr(torch_module(), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def to_images(x: Any, expected: tuple[int, int, int]) -> Images:
    """x: (batch, channel, height, width), torch or numpy, any layout in memory → contiguous float32.

    float16, bfloat16 and float64 are converted; whole numbers are refused, because bytes have not been
    through the network's preprocessing.
    """
    quick = _as_it_is(x, expected)
    if quick is not None:
        return quick
    if is_torch_tensor(x):
        if x.device.type != "cpu":
            raise InputError(
                f"the engine runs on the CPU and the images are on {x.device}; give images.cpu()"
            )
        try:
            _check(tuple(x.shape), x.is_floating_point(), str(x.dtype), expected)
            return np.ascontiguousarray(x.detach().resolve_neg().float().numpy())
        except (RuntimeError, TypeError) as error:  # sparse, nested, masked, or of another library
            raise InputError(
                f"images: a {type(x).__name__} of layout {x.layout} has no plain values ({error}); give an "
                "ordinary tensor, images.to_dense() for one"
            ) from error
    if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
        x = _from_dlpack(x)
    if isinstance(x, np.ma.MaskedArray):
        raise InputError(
            "images: a masked array would lose its mask in the engine; give x.filled(value) with a pixel "
            "value for what is masked"
        )
    if isinstance(x, np.ndarray):
        _check(x.shape, np.issubdtype(x.dtype, np.floating), str(x.dtype), expected)
        return np.ascontiguousarray(x, np.float32)
    raise InputError(
        f"expected a torch tensor or numpy array (batch, channel, height, width), got {type(x).__name__}"
    )


def bad_values(fault: tuple[int, int, bool, bool], images: Images, steps: Sequence[str]) -> InputError:
    """What to tell when a value of a run was NaN or infinite, or far beyond what int8 codes hold.

    fault: the image, the first step to yield such a value (0: the image itself), whether in its gate, and
    whether it was finite but far out of range. images: (batch, channel, height, width), as they ran.
    steps: the names of the steps.
    """
    image, step, in_gate, far = fault
    low, high = float(images[image].min()), float(images[image].max())
    pixels = f"pixels lie between {low:.4g} and {high:.4g}"
    if far:
        where = "" if step == 0 else f" of layer {steps[step]!r}"
        return InputError(
            f"image {image} of the batch: values{where} lie more than 8 times beyond the range of the "
            f"calibration; its {pixels}, which looks unpreprocessed: {_PREPARE}. If they are as the network "
            "takes them, calibrate the int8 engine with images of this kind"
        )
    if step == 0:
        return InputError(
            f"image {image} of the batch holds NaN or infinity; the engine takes finite pixels only"
        )
    where = f"the gate of layer {steps[step]!r}" if in_gate else f"layer {steps[step]!r}"
    if max(-low, high) > _FAR_PIXEL:
        advice = f"the image's {pixels}, which looks unpreprocessed: {_PREPARE}"
    else:
        advice = "the image looks normalised, so the weights are suspect: check the network in PyTorch"
    return InputError(f"image {image} of the batch: {where} yields NaN or infinity; {advice}")


def _as_it_is(x: Any, expected: tuple[int, int, int]) -> Images | None:
    """Images that need nothing done: the common case costs two microseconds, not five."""
    if type(x) is getattr(torch_module(), "Tensor", None):
        try:
            x = x.numpy()
        except (RuntimeError, TypeError):  # requires grad, on another device, of a type numpy has not
            return None
    fits = type(x) is np.ndarray and x.dtype == _FLOAT and x.shape[1:] == expected and x.flags.c_contiguous
    return x if fits else None


def _from_dlpack(x: Any) -> npt.NDArray[Any]:
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(
            f"images: a {type(x).__name__} that numpy cannot read ({error}); give a numpy array"
        ) from error


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
