"""Networks as files: checkpoints (safetensors) and ONNX."""

from penstock.exporting.checkpoints import load, read_notes, save
from penstock.exporting.onnx import OnnxFile, export_onnx, onnx_session

__all__ = ["OnnxFile", "export_onnx", "load", "onnx_session", "read_notes", "save"]
