"""ONNX in standard operators, in which skipped channels really are not computed."""
