"""penstock compile MODEL --out net.penstock: one file that penstock-runtime runs without PyTorch."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from penstock.cli.images import (
    ReadOptions,
    assume_preprocess,
    find_images,
    preprocess_json,
    settle_preprocess,
)
from penstock.cli.models import Model, default_place, find_model
from penstock.cli.probe import shape_for
from penstock.cli.scoring import parse_densities
from penstock.datasets import ImageArrays, Preprocess, preprocess_of
from penstock.datasets.folder import IMAGENET
from penstock.engine import compile as compile_engine
from penstock.errors import InputError
from penstock.measuring.timing import interleave, one_by_one
from penstock.training import evaluate
from penstock_runtime import Engine, Measurement

_TIMED = 16  # images that take turns while the milliseconds are measured
_SMALL = 64  # smaller images are shown whole; of others the middle is cut out, as is usual for ImageNet


@dataclass(frozen=True)
class Options:
    """Write a network as one file: program, weights, preprocessing, class names, and what was measured."""

    model: Model
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    out: Path | None = None
    """The file to write; without it the model's name with .penstock, in the run's folder or here."""
    precision: Literal["float32", "int8"] = "float32"
    """The number type of weights and feature maps; int8 needs a checkpoint that `penstock quantize` wrote."""
    input: str = ""
    """The size of one image, as in 3x32x32; without it the network's own, if it is known, else 3x224x224."""
    data: str = ""
    """Score on these images and take their class names: cifar10 or imagenette (their test parts), sample, or
    a folder with val/CLASS/*.jpg."""
    images: int = 0
    """The most images to score, equally many of each class; 0 takes all."""
    densities: str = "0.3,0.5,0.7,1"
    """Where accuracy and milliseconds are measured; a network without gates is measured once."""
    classes: Path | None = None
    """Class names, one a line, in the order of the network's outputs."""
    resize: float = 0
    """The shorter side to which photographs are scaled before the middle is cut out; 0 takes the input's own
    size, or 8/7 of it from 64 pixels on, as penstock.datasets.image_folder does."""
    licence: Path | None = None
    """A text that goes into the file."""
    threads: int = 1
    """Threads for the measured milliseconds."""
    seconds: float = 4.0
    """How long to measure; 0 measures no time."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


FURTHER = ("images", "classes", "resize", "licence", "threads", "seconds")
"""Options on a second page of help."""


def run(options: Options) -> int:
    densities = parse_densities(options.densities)
    network = find_model(options.model, trust=options.reading).eval()
    shape = shape_for(network, options.input)
    data = find_images(options.data, options.images, size=min(shape[1:])) if options.data else None
    assumed = settle(network, data, shape, options)
    network.preprocess = _preprocess(network, shape, options.resize)  # type: ignore[assignment]
    path = options.out or default_place(options.model, ".penstock")
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status(f"compiling {options.model}"):
        example = torch.zeros(1, *shape)
        engine = compile_engine(network, example, threads=options.threads, precision=options.precision)
        asked = densities if engine.gated else [1.0]
        measured = measure(engine, data, _pictures(network, data, shape), asked, options.seconds)
        scored = f", {len(data):,} images of {data.name}" if data is not None else ""
        where = f"{platform.machine()} {engine.isa}, {options.threads} threads, one image a call"
        info = replace(
            engine.info,
            name=options.model,
            precision=options.precision,
            classes=_classes(options, data),
            measured=measured,
            conditions=where + scored,
            licence="" if options.licence is None else options.licence.read_text(),
        )
        engine.save(path, info)
    found = {"path": str(path), "bytes": path.stat().st_size, **asdict(info)}
    found |= preprocess_json(network.preprocess, assumed)
    if options.json:
        print(json.dumps(found))
        return 0
    show(Console(markup=False, highlight=False, soft_wrap=True), path, measured)
    return 0


def settle(network: nn.Module, data: ImageArrays | None, shape: tuple[int, ...], options: Options) -> bool:
    """Set `network.preprocess`; True, and a line on stderr, if it had to be assumed."""
    if data is not None:
        return settle_preprocess(network, options.model, data, options.reading)
    small = min(shape[1:]) < _SMALL
    assumed, whose = (Preprocess(), "CIFAR-10's") if small else (IMAGENET, "ImageNet's")
    return assume_preprocess(network, options.model, assumed, whose, options.reading)


def measure(
    engine: Engine, data: ImageArrays | None, pictures: Tensor, densities: Sequence[float], seconds: float
) -> tuple[Measurement, ...]:
    """Accuracy (with data) and milliseconds (with seconds) of the engine at each density."""
    runs = {density: partial(engine, density=density) for density in densities}
    times = {}
    if seconds > 0:
        contestants = {str(d): one_by_one(run, pictures.split(1)) for d, run in runs.items()}
        found = interleave(contestants, seconds=seconds)
        times = {density: found[str(density)].least for density in densities}
    prepare = engine.preprocess
    scores = (
        {} if data is None else {d: evaluate(run, data, preprocess=prepare).top1 for d, run in runs.items()}
    )
    return tuple(Measurement(d, scores.get(d), times.get(d)) for d in densities)


def show(console: Console, path: Path, measured: Sequence[Measurement]) -> None:
    """What was written, for people."""
    console.print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    for one in measured:
        accuracy = "" if one.top1 is None else f"  top-1 {one.top1:.2f}%"
        time = "" if one.milliseconds is None else f"  {one.milliseconds:.2f} ms an image"
        console.print(f"density {one.density:g}{accuracy}{time}")
    console.print(f"run it: penstock-run {path} IMAGE…")


def _preprocess(network: nn.Module, shape: tuple[int, ...], resize: float) -> Preprocess:
    own = preprocess_of(network)
    if not isinstance(own, Preprocess):
        raise InputError(
            f"network.preprocess is a {type(own).__name__}, and a file holds no code; express it as "
            "penstock.datasets.Preprocess(mean, std)"
        )
    side = min(shape[1:])
    if resize < 0 or (resize and resize < side):
        raise InputError(f"--resize {resize:g}: expected 0, or at least the input's {side} pixels")
    return replace(own, resize=resize or own.resize or (side * 8 / 7 if side >= _SMALL else None))


def _pictures(network: nn.Module, data: ImageArrays | None, shape: tuple[int, ...]) -> Tensor:
    """What is timed: images of the data set if there is one, else noise."""
    if data is None or tuple(data.images.shape[1:]) != tuple(shape):
        return torch.randn(_TIMED, *shape, generator=torch.Generator().manual_seed(0))
    prepared: Tensor = network.preprocess(data.images[:_TIMED])  # type: ignore[operator]
    return prepared


def _classes(options: Options, data: ImageArrays | None) -> tuple[str, ...]:
    if options.classes is None:
        return () if data is None else tuple(data.classes)
    try:
        return tuple(options.classes.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--classes {options.classes}: cannot be read ({error})") from error
