"""penstock export MODEL --to onnx: a file for another runtime, checked there against PyTorch, and timed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from penstock.cli.images import preprocess_json, preprocess_words
from penstock.cli.models import Model, ModelOptions, default_place, find_model
from penstock.cli.probe import shape_for
from penstock.errors import InputError
from penstock.exporting import OnnxFile, OnnxNetwork, export_onnx
from penstock.gating import check_density, is_gated, set_density
from penstock.measuring.timing import Timing, interleave

_TRIED = (0.3, 0.5, 1.0)  # densities at which a network with a density input is checked


@dataclass(frozen=True)
class Options:
    """Write a network for another runtime; with ONNX Runtime installed it is also checked and timed there."""

    model: Model
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    to: Literal["onnx"] = "onnx"
    out: Path | None = None
    """The file to write; without it the model's name with .onnx, in the run's folder or here."""
    density: str = ""
    """A number fixes it; "input" makes it a required input; "own" fixes each layer's own. Without it: an
    input with the network's own density as default."""
    skipping: bool = True
    """--no-skipping writes the masked form: any batch, everything computed, the losers zeroed."""
    static: bool = False
    """Tensors of fixed length only, which OpenVINO asks for; needs a fixed --density."""
    lists: bool = False
    """One more output a gated layer: the channels it computed."""
    input: str = ""
    """The size of one image, as in 3x32x32; without it the network's own, if it is known, else 3x224x224."""
    opset: int = 17
    check: bool = True
    """--no-check writes the file and does not run it."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)


@dataclass(frozen=True)
class Check:
    """The file in ONNX Runtime at one density: how far from PyTorch at most, and the time of an image."""

    density: float | None
    difference: float
    time: Timing


def run(options: Options) -> int:
    network = find_model(options.model, trust=options.reading).eval()
    preprocess = getattr(network, "preprocess", None)
    shape = shape_for(network, options.input)
    images = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status(f"exporting {options.model}"):
        written = export_onnx(
            network,
            options.out or default_place(options.model, ".onnx"),
            images[:1],
            skipping=options.skipping,
            density=parse_density(options.density),
            static=options.static,
            lists=options.lists,
            opset=options.opset,
        )
        can_check = options.check and importlib.util.find_spec("onnxruntime") is not None
        checks = check(network, written, images) if can_check else []
    if options.json:
        print(json.dumps(as_plain(written, checks) | preprocess_json(preprocess, False)))
        return 0
    shown = Console(markup=False, highlight=False, soft_wrap=True)
    show(shown, written, checks)
    if preprocess is None:
        shown.print(
            "the network does not say how it takes images; the file takes what your own code gives it"
        )
    else:
        shown.print(f"give it images by {preprocess_words(preprocess)}, of pixels from 0 to 1")
    if options.check and not can_check:
        console.print("not checked: onnxruntime is not installed; run: pip install 'penstock[onnx]'")
    return 0


def parse_density(text: str) -> float | Literal["input", "own"] | None:
    """The --density of the command as `export_onnx` takes it."""
    if text in ("", "input", "own"):
        return text or None  # type: ignore[return-value]
    try:
        return check_density(float(text), "--density")
    except ValueError as error:
        raise InputError(f"--density: expected a number in ]0, 1], 'input' or 'own', got {text!r}") from error


def check(network: nn.Module, written: OnnxFile, images: Tensor) -> list[Check]:
    """Run the file on `images`, at several densities if it lets one choose."""
    exported = OnnxNetwork(written.path)
    if exported.has_density:
        asked: list[float | None] = [*_TRIED]
    else:
        asked = [written.density]
    given = {density: density if exported.has_density else None for density in asked}
    differences = {}
    for density in asked:
        if density is not None and is_gated(network):
            set_density(network, density)
        with torch.no_grad():
            differences[density] = float((exported(images, given[density]) - network(images)).abs().max())
    contestants = {str(density): partial(exported, images[:1], given[density]) for density in asked}
    times = interleave(contestants, seconds=2.0)
    return [Check(density, differences[density], times[str(density)]) for density in asked]


def as_plain(written: OnnxFile, checks: list[Check]) -> dict[str, object]:
    """Everything that was found, for --json."""
    return {
        **dataclasses.asdict(written),
        "path": str(written.path),
        "checks": [
            {
                "density": found.density,
                "difference": found.difference,
                "ms": found.time.least,
                "ms_median": found.time.median,
            }
            for found in checks
        ],
    }


def show(console: Console, written: OnnxFile, checks: list[Check]) -> None:
    """The same for people."""
    form = "skipping, one image" if written.skipping else "any batch"
    console.print(f"{written.path}  {written.bytes / 2**20:.1f} MiB  opset {written.opset}  {form}")
    console.print(f"inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}")
    for found in checks:
        label = "dense" if found.density is None else f"d = {found.density:g}"
        console.print(
            f"{label:8} {found.time.least:8.2f} ms in ONNX Runtime, one thread; "
            f"largest difference from PyTorch {found.difference:.1e}"
        )
