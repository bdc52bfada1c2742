"""Networks as files: checkpoints (safetensors) and ONNX."""

from penstock.exporting.checkpoints import load, read_notes, save
from penstock.exporting.onnx.export import OnnxFile, export_onnx
from penstock.exporting.onnx.run import OnnxNetwork, onnx_session, run_in_onnxruntime

__all__ = [
    "OnnxFile",
    "OnnxNetwork",
    "export_onnx",
    "load",
    "onnx_session",
    "read_notes",
    "run_in_onnxruntime",
    "save",
]
