"""Place what the page needs beside it: onnxruntime-web (from npm) and the exported network.

    python docs/browser/build.py                                  the shipped checkpoint
    python docs/browser/build.py --model runs/x/model.safetensors
    python docs/browser/build.py --untrained                      random weights, to try the page without any
    python -m http.server -d docs/browser                         then open http://localhost:8000

Only npm needs a network, once; afterwards everything is read from this folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import penstock as ps
from penstock.datasets.cifar import CLASSES
from penstock.datasets.preprocess import Preprocess
from penstock.surgery import Gate, trace, weight_layers

HERE = Path(__file__).resolve().parent
SHIPPED = "m_cifarnet-cifar10-any"
SIZE = 32
# Plain names ending in .js and .wasm, which every file server gives the right type.
RUNTIME = {
    "ort.wasm.min.mjs": "ort.js",
    "ort-wasm-simd-threaded.mjs": "ort-wasm.js",
    "ort-wasm-simd-threaded.wasm": "ort-wasm.wasm",
}


def place_runtime(folder: Path) -> None:
    """The three files of onnxruntime-web that the page reads, into `folder`/ort."""
    package = HERE / "node_modules" / "onnxruntime-web"
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    found = json.loads((package / "package.json").read_text())["version"] if package.is_dir() else None
    if found != wanted:
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    (folder / "ort").mkdir(parents=True, exist_ok=True)
    for name, plain in RUNTIME.items():
        shutil.copyfile(package / "dist" / name, folder / "ort" / plain)


def place_network(folder: Path, network: nn.Module, text: str) -> None:
    """The network in its two forms and what the page must know about it, into `folder`/net."""
    target = folder / "net"
    target.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, 3, SIZE, SIZE)
    ps.export_onnx(network, target / "skipping.onnx", example, density="input", lists=True)
    ps.export_onnx(network, target / "everything.onnx", example, density="input", skipping=False)
    preprocess = getattr(network, "preprocess", None) or Preprocess()
    samples = sorted((HERE / "samples").glob("*.png"))
    about = {
        "text": text,
        "size": SIZE,
        "classes": CLASSES,
        "mean": preprocess.mean,
        "std": preprocess.std,
        "layers": _layers(network, example),
        "samples": [{"file": f"samples/{p.name}", "label": p.stem.partition("-")[2]} for p in samples],
    }
    (target / "page.json").write_text(json.dumps(about, indent=1))


def _layers(network: nn.Module, example: torch.Tensor) -> list[dict[str, object]]:
    """Every gated layer: its channels, its multiplications, and whose winners it reads."""
    rows: list[dict[str, object]] = []
    for layer in weight_layers(trace(network, example)):
        if layer.gated:
            positions = layer.output_shape[2] * layer.output_shape[3]
            reads = layer.input.layer if isinstance(layer.input, Gate) else None
            macs = layer.weights.weight.numel() * positions
            rows.append({"name": layer.name, "channels": layer.output_shape[1], "macs": macs, "reads": reads})
    return rows


def untrained() -> nn.Module:
    """A gated M-CifarNet with random weights, alive at every density."""
    torch.manual_seed(0)
    images = torch.randn(16, 3, SIZE, SIZE)
    network = ps.add_gates(ps.zoo.m_cifarnet(), images, init="paper", density=0.5)
    for module in network.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # one batch settles the statistics
        if isinstance(module, ps.GatedConv2d):
            nn.init.normal_(module.gate.weight, std=0.1 / module.conv.in_channels**0.5)
            nn.init.normal_(module.shift, std=0.2)
    with torch.no_grad():
        network(images)
    return network.eval()


def main() -> int:
    parser = argparse.ArgumentParser(description="Place what docs/browser/index.html needs beside it.")
    parser.add_argument("--model", default=SHIPPED, help="a shipped checkpoint's name or a .safetensors file")
    parser.add_argument("--untrained", action="store_true", help="random weights instead of a checkpoint")
    options = parser.parse_args()
    if options.untrained:
        network, text = (
            untrained(),
            "M-CifarNet with random weights: the page works, the answers mean nothing.",
        )
    else:
        path = Path(options.model)
        network = ps.load(path) if path.suffix == ".safetensors" else ps.zoo.pretrained(options.model)
        text = (
            "A gated M-CifarNet, trained on CIFAR-10 and exported to ONNX with standard operators, runs here "
            "in your browser. Move the density and see which channels this picture is worth."
        )
    place_runtime(HERE)
    place_network(HERE, network, text)
    size = sum(p.stat().st_size for name in ("ort", "net") for p in (HERE / name).iterdir())
    print(f"ready, {size / 2**20:.1f} MiB; now: python -m http.server -d {HERE}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ps.PenstockError, FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"docs/browser/build.py: {error}")
