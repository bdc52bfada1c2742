"""penstock bench MODEL --against torch,onnxruntime,openvino,int8: milliseconds against other runtimes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from penstock.cli.images import ReadOptions, find_test_data, first_images, settle_preprocess
from penstock.cli.models import Model, find_model
from penstock.cli.probe import probe_images, resized
from penstock.cli.scoring import parse_densities
from penstock.cli.sources import is_there, own_size, remembered
from penstock.datasets import preprocess_of, sample
from penstock.errors import InputError
from penstock.gating import is_gated
from penstock.measuring.contest import prepare_contest, random_gates, without_gates
from penstock.measuring.machine import machine_words
from penstock.measuring.runtimes import hold_instruction_set, runtime_names
from penstock.reporting.contest_table import contest_json, contest_table, dense_words
from penstock.reporting.tables import to_rich
from penstock.reporting.terminal import print_table
from penstock.surgery import add_gates

_SMALL = {"m_cifarnet": 32}


@dataclass(frozen=True)
class Options:
    """Time a network through the engine against dense runtimes, interleaved in one run."""

    model: Model
    """A zoo name, module:callable, a checkpoint or a run's folder. Without gates it gets random ones."""
    against: str = "torch,onnxruntime,openvino,int8"
    """Dense runtimes: torch, torch.compile, onnxruntime, openvino. They run in float32; openvino also as it
    installs, which is bfloat16 where the processor has it (openvino-installed: only so). onnxruntime-int8
    and openvino-int8, or int8 for both, are quantised here."""
    density: str = "1.0,0.7,0.5,0.3"
    """Densities of the engine."""
    threads: int = 1
    batch: int = 1
    size: int = 0
    """Height and width of the images; 0: 32 for M-CifarNet, else 224."""
    data: str = ""
    """The images that set the ranges of the int8 networks and on which a network with gates of its own is
    timed, another one a call: cifar10, imagenette, or a folder. Default: what MODEL was trained on, else
    the embedded sample (and noise for the timing)."""
    calibration: int = 32
    """How many of them."""
    isa: str = ""
    """Hold the engine, OpenVINO and torch's convolutions to an instruction set (baseline, avx2, avx512);
    ONNX Runtime has no switch for that. Empty: the widest of the processor."""
    seconds: float = 10.0
    """About how long to measure."""
    json: bool = False
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run(options: Options) -> int:
    rivals = runtime_names(options.against)
    if options.batch < 1 or options.size < 0 or options.seconds <= 0 or options.calibration < 1:
        raise InputError("--batch, --seconds and --calibration are above 0, --size is not negative")
    if options.isa:
        hold_instruction_set(options.isa)
    network = find_model(options.model, trust=options.reading).eval()
    size = options.size or own_size(options.model) or _default_size(options.model, network)
    images = torch.randn(max(2, options.batch), 3, size, size, generator=torch.Generator().manual_seed(0))
    gates = is_gated(network)
    gated = network if gates else random_gates(add_gates(network, images), images)
    dense = without_gates(network) if gates else network
    calibration, words, chosen = calibration_images(network, options, size)
    timed = images[: options.batch]
    if gates and chosen and len(calibration) >= options.batch:
        # Which channels win depends on the image, so trained gates are timed on images like those they know.
        timed = calibration[: len(calibration) // options.batch * options.batch]
    console = Console(markup=False, stderr=True, quiet=options.json)
    with console.status(f"measuring {options.model} for about {options.seconds:g} s"):
        contest = prepare_contest(
            options.model,
            gated,
            dense,
            timed,
            densities=parse_densities(options.density),
            rivals=rivals,
            threads=options.threads,
            calibration=calibration,
            batch=options.batch,
        ).hold(options.seconds)
    machine = machine_words(contest.isa)
    if options.json:
        print(
            json.dumps(
                {**contest_json(contest), "machine": machine, "calibration": words, "timed": len(timed)}
            )
        )
        return 0
    shown = Console(markup=False, highlight=False, soft_wrap=True)
    shown.print(machine)
    print_table(shown, to_rich(contest_table(contest)))
    for line in dense_words(contest):
        shown.print(line)
    if not is_gated(gated):
        shown.print("the network has nothing to gate: the engine ran it whole")
    if any(entry.precision == "int8" for entry in contest.entries):
        shown.print(f"int8: calibrated on {words}")
    if timed is not images and len(timed) > options.batch:
        shown.print(f"timed on {len(timed)} images of the same, in turn")
    for name, problem in contest.problems.items():
        shown.print(f"{name}: {problem}")
    return 0


def calibration_images(network: nn.Module, options: Options, size: int) -> tuple[Tensor, str, bool]:
    """Images as the network takes them, which, and whether they are the user's or of the run's training."""
    own = remembered(options.model)
    name = options.data or ("" if own is None or not is_there(own.data) else own.data)
    data = find_test_data(name, options.calibration, 0, size) if name else sample()
    settle_preprocess(network, options.model, data, options.reading)
    if not name:
        return (*probe_images(network, (3, size, size), options.calibration), False)
    pixels = resized(first_images(data, options.calibration), (size, size))
    return preprocess_of(network, data)(pixels), f"{len(pixels)} images of {data.name}", True


def _default_size(spec: str, network: torch.nn.Module) -> int:
    if "cifar" in spec or type(network).__name__ == "MCifarNet":
        return 32
    definition = getattr(network, "definition", None)
    return next((side for name, side in _SMALL.items() if definition and name in str(definition)), 224)
