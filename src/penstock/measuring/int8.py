"""A dense network as int8, as its users would make it: calibration images in, quantised networks out.

ONNX Runtime: static quantisation with QDQ nodes, int8 weights with a scale per channel, u8 activations.
OpenVINO: nncf.quantize. Both take the ranges from the calibration images; nothing is trained.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from penstock.errors import import_extra
from penstock.measuring.machine import processor


def quantise_for_onnxruntime(path: Path, images: Tensor) -> Path:
    """The ONNX file of a float network → the file of an int8 one beside it; images: (n, …), preprocessed.

    Without VNNI, ONNX Runtime adds pairs of byte products in 16 bits and saturates, so there the weights get
    seven bits, as its documentation asks.
    """
    quantization = import_extra("onnxruntime.quantization", "compare")
    shapes = import_extra("onnxruntime.quantization.shape_inference", "compare")
    prepared, made = path.with_suffix(".prepared.onnx"), path.with_suffix(".int8.onnx")
    if made.exists():
        return made
    with _silent():
        # Weights beyond 2 GB aside, the symbolic inference adds nothing here and wants another package.
        shapes.quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(made),
            _reader(quantization, prepared, images),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            reduce_range=not processor().multiplies_bytes,
        )
    return made


@functools.cache
def openvino_core() -> Any:
    """OpenVINO's core object: one for the whole process, never unloaded.

    Its plugin for CPUs installs a stack for signal handlers and, when it is unloaded, puts back the one it
    found. Two that are unloaded in the order they were loaded leave a freed stack in force, and the next
    signal (a child ends that decoded images) is a segmentation fault.
    """
    core = import_extra("openvino", "compare").Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin
    return core


def quantise_for_openvino(path: Path, images: Tensor) -> Path:
    """The ONNX file of a float network → OpenVINO's file of an int8 one; images: (n, …), preprocessed."""
    openvino, core = import_extra("openvino", "compare"), openvino_core()
    made = path.with_suffix(".int8.xml")
    if made.exists():
        return made
    with _silent():
        nncf = import_extra("nncf", "compare")
        nncf.set_log_level(logging.ERROR)
        ones = [image[None] for image in _numbers(images)]
        model = nncf.quantize(core.read_model(str(path)), nncf.Dataset(ones), subset_size=len(ones))
        openvino.save_model(model, str(made), compress_to_fp16=False)
    return made


def _reader(quantization: Any, path: Path, images: Tensor) -> Any:
    """ONNX Runtime asks for one feed after another, until there is None."""
    onnx = import_extra("onnx", "compare")
    name = onnx.load(str(path), load_external_data=False).graph.input[0].name

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.waiting = iter([{name: image[None]} for image in _numbers(images)])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.waiting, None)

    return Reader()


def _numbers(images: Tensor) -> Any:
    return np.ascontiguousarray(images.numpy())


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the packages' warnings and progress bars, which would end up in a command's JSON."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
