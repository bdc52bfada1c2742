"""Dense networks in the runtimes that are installed: a network in, {runtime: function of a batch} out.

All compute in float32 with the same number of threads. A runtime that is not installed is left out; one that
cannot take the network is left out too, and `problems` says why.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

RUNTIMES = ("torch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Runtimes:
    """`run`: the ones that work; `problems`: why the others do not."""

    run: dict[str, Callable[[Tensor], object]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def dense_runtimes(
    network: nn.Module, example: Tensor, names: Sequence[str] = RUNTIMES, threads: int = 1
) -> Runtimes:
    """Prepare `network` (in evaluation mode, without gates) for every runtime of `names`.

    example: (1, channel, height, width). Sets torch's own thread count, which is one for the whole process.
    """
    found = Runtimes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dense.onnx"
        for name in names:
            if importlib.util.find_spec(name) is None:
                found.problems[name] = f"not installed; run: pip install {name}"
                continue
            try:
                if name != "torch" and not path.exists():
                    _export(network, path, example)
                found.run[name] = _PREPARE[name](network, path, threads)
            # A foreign runtime may fail in any way; the comparison goes on with the others.
            except Exception as error:
                found.problems[name] = f"{type(error).__name__}: {error}"
    return found


def _export(network: nn.Module, path: Path, example: Tensor) -> None:
    from penstock.exporting import export_onnx

    export_onnx(network, path, example)


def _torch(network: nn.Module, path: Path, threads: int) -> Callable[[Tensor], object]:
    torch.set_num_threads(threads)
    network.eval()
    return network


def _onnxruntime(network: nn.Module, path: Path, threads: int) -> Callable[[Tensor], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})[0]


def _openvino(network: nn.Module, path: Path, threads: int) -> Callable[[Tensor], object]:
    import openvino

    # f32: on some CPUs OpenVINO would otherwise compute in bf16, which nobody else here does.
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    return lambda x: request.infer([x.numpy()])[0]


_PREPARE: dict[str, Callable[[nn.Module, Path, int], Callable[[Tensor], object]]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
