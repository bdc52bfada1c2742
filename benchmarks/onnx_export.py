"""Milliseconds of the ONNX export in ONNX Runtime: skipping at several densities against the dense export.

    python benchmarks/onnx_export.py                       both must-hold networks
    python benchmarks/onnx_export.py --models resnet50 --densities 0.3 0.5 0.7 1.0
    python benchmarks/onnx_export.py --runtime openvino    the same files in OpenVINO

One thread, one image at a time, weights and gates random (the winners differ from image to image), everything
interleaved in one run; compared are the least times. Exits with 1 if a must-hold figure is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock as ps
from penstock.exporting import onnx_session
from penstock.measuring.contest import random_gates
from penstock.measuring.int8 import openvino_core
from penstock.measuring.timing import interleave

SIZES = {"m_cifarnet": 32}
MUST_HOLD = {("m_cifarnet", 0.5): 1.7, ("m_cifarnet", 0.3): 3.0, ("resnet18", 0.5): 1.3}
Run = Callable[[np.ndarray, float], np.ndarray]


def main() -> int:
    options = _options()
    torch.manual_seed(0)
    failed = False
    for name in options.models:
        rows = measure(name, options.densities, options.runtime, options.seconds)
        for row in rows:
            row["must hold"] = (
                MUST_HOLD.get((name, row["density"])) if options.runtime == "onnxruntime" else None
            )
            failed |= row["must hold"] is not None and row["speed-up"] < row["must hold"]
        if options.json:
            print(json.dumps({"model": name, "runtime": options.runtime, "rows": rows}))
        else:
            _show(name, options.runtime, rows)
    return int(failed)


def measure(name: str, densities: list[float], runtime: str, seconds: float) -> list[dict[str, float | None]]:
    """One row for the dense export and one for each density of the skipping export."""
    size = SIZES.get(name, 224)
    images = torch.randn(4, 3, size, size)
    network = getattr(ps.zoo, name)().eval()
    gated = random_gates(ps.add_gates(network, images), images)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "network.onnx")
        ps.export_onnx(network, file, images[:1])
        dense = _open(file, runtime)
        skipping = {}
        for density in densities:
            if runtime == "openvino":  # it takes no weights of variable size, so each density is a file
                ps.export_onnx(gated, file, images[:1], density=density, static=True)
            elif not skipping:
                ps.export_onnx(gated, file, images[:1], density="input")
            skipping[density] = _open(file, runtime)
    numbers = [image[None].numpy() for image in images]
    error = {density: _disagreement(gated, skipping[density], images, density) for density in densities}
    turn = iter(range(10**9))
    contestants = {"dense": lambda: dense(numbers[next(turn) % 4], 1.0)}
    for density in densities:
        contestants[str(density)] = lambda d=density: skipping[d](numbers[next(turn) % 4], d)  # type: ignore[misc]
    times = interleave(contestants, seconds=seconds)
    full = times["dense"].least
    rows: list[dict[str, float | None]] = [{"density": None, "ms": full, "speed-up": 1.0, "error": None}]
    for density in densities:
        least = times[str(density)].least
        rows.append({"density": density, "ms": least, "speed-up": full / least, "error": error[density]})
    return rows


def _open(path: Path, runtime: str) -> Run:
    if runtime == "onnxruntime":
        session = onnx_session(path, threads=1)
        inputs = [given.name for given in session.get_inputs()]

        def run(image: np.ndarray, density: float) -> np.ndarray:
            feeds = {"images": image, "density": np.array(density, np.float32)}
            return session.run(None, {name: feeds[name] for name in inputs})[0]

        return run
    core = openvino_core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    names = [given.any_name for given in compiled.inputs]
    return lambda image, density: compiled(
        {name: {"images": image, "density": np.array(density, np.float32)}[name] for name in names}
    )[0]


def _disagreement(gated: nn.Module, run: Run, images: torch.Tensor, density: float) -> float:
    ps.set_density(gated, density)
    with torch.no_grad():
        want = gated(images).numpy()
    found = np.concatenate([run(image[None].numpy(), density) for image in images])
    return float(np.abs(found - want).max())


def _show(name: str, runtime: str, rows: list[dict[str, float | None]]) -> None:
    print(f"{name} in {runtime}, one thread, one image, least of interleaved runs")
    for row in rows:
        label = "dense export" if row["density"] is None else f"d = {row['density']:g}"
        bound = "" if row["must hold"] is None else f"   must hold {row['must hold']:g}×"
        error = "" if row["error"] is None else f"   off PyTorch by {row['error']:.1e}"
        print(f"  {label:13} {row['ms']:8.3f} ms  {row['speed-up']:5.2f}×{bound}{error}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ONNX export: skipping against dense, in milliseconds.")
    parser.add_argument("--models", nargs="+", default=["m_cifarnet", "resnet18"])
    parser.add_argument("--densities", nargs="+", type=float, default=[0.3, 0.5, 1.0])
    parser.add_argument("--runtime", choices=("onnxruntime", "openvino"), default="onnxruntime")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
