"""Exported networks in ONNX Runtime: a file or a network in, something that runs like a network out."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import InputError, import_extra
from penstock.exporting.onnx.export import DENSITY, IMAGES, export_onnx


def onnx_session(path: str | os.PathLike[str], threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU with `threads` threads: the settings of all our measurements."""
    runtime = import_extra("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


class OnnxNetwork:
    """An exported network: ``network(images)`` or ``network(images, density=0.3)`` → logits, as a tensor.

    The skipping form takes one image, so a batch goes through it image by image.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        self.session = onnx_session(path, threads)
        self.has_density = any(
            given.name == DENSITY
            for given in (*self.session.get_inputs(), *self.session.get_overridable_initializers())
        )
        self.any_batch = not isinstance(self.session.get_inputs()[0].shape[0], int)

    def __call__(self, images: Tensor, density: float | None = None) -> Tensor:
        """images: (batch, channel, height, width) → (batch, class)."""
        if density is not None and not self.has_density:
            raise InputError(
                "density: it was fixed when this network was exported, so it cannot be chosen now"
            )
        feeds = {} if density is None else {DENSITY: np.array(density, np.float32)}
        numbers = images.numpy()
        if self.any_batch or len(numbers) == 1:
            return torch.from_numpy(self.session.run(None, {IMAGES: numbers, **feeds})[0])
        parts = [self.session.run(None, {IMAGES: image[None], **feeds})[0] for image in numbers]
        return torch.from_numpy(np.concatenate(parts))


def run_in_onnxruntime(
    network: nn.Module, example: Tensor, threads: int = 1, *, skipping: bool = True
) -> OnnxNetwork:
    """`network` exported to a file that nobody sees and opened in ONNX Runtime."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.onnx")
        export_onnx(network, path, example[:1], skipping=skipping)
        return OnnxNetwork(path, threads)
