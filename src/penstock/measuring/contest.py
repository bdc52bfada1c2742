"""The engine against dense runtimes: a gated network and its dense original in, milliseconds out.

Everything is timed in one interleaved run on the same images: the engine at several densities, and the dense
network in every runtime asked for, in float32, as OpenVINO installs and in int8 (`measuring/runtimes.py`); at
batch 1 also the gated network itself, exported to ONNX Runtime. The multiply-add peak of one core is measured
in the same run, so that every figure can be read as a share of what the machine can do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from penstock.accounting import account
from penstock.engine import Engine, fma_peak_gflops
from penstock.engine import compile as compile_engine
from penstock.errors import PenstockError
from penstock.exporting import OnnxNetwork, run_in_onnxruntime
from penstock.gating import GatedConv2d, fold_norm, gated_layers, is_gated, set_density, summarise
from penstock.measuring.runtimes import ALL, INSTALLED, dense_runtimes
from penstock.measuring.timing import Timing, at_density, interleave, one_by_one

RIVALS = ALL
_WORTH_IT = 1.1  # below this gates are not worth their training, nor told from noise


def pays(speed_up: float | None) -> bool:
    """Whether a gated network is worth its training if it is `speed_up` times as fast as the dense one."""
    return speed_up is not None and speed_up >= _WORTH_IT


@dataclass(frozen=True)
class Entry:
    """One contestant; `density` is None for a dense one. MACs are the average of the images.

    `isa`: the instruction set it ran, where that is known. `agreement`: of an int8 network, the share of the
    calibration images with the float network's first class.
    """

    name: str
    precision: str
    density: float | None
    milliseconds: float  # of one call, the least
    median_milliseconds: float
    images_per_second: float
    macs: float  # of one image
    gflops: float
    isa: str = ""
    agreement: float | None = None
    steady: bool = True


@dataclass(frozen=True)
class Contest:
    """One setting (threads, batch). Times that are not steady are not compared."""

    network: str
    threads: int
    batch: int
    isa: str
    peak_gflops: float
    entries: tuple[Entry, ...]
    problems: dict[str, str]

    def fastest(self, precision: str = "float32") -> Entry | None:
        """The dense network in the fastest runtime that computes in `precision`."""
        dense = [entry for entry in self.entries if entry.density is None and entry.precision == precision]
        return min(dense, key=lambda entry: entry.milliseconds, default=None)

    @property
    def dense_lines(self) -> dict[str, Entry]:
        """What a gated network is compared with: fastest float32, OpenVINO as installed, fastest int8."""
        installed = next((entry for entry in self.entries if entry.name == INSTALLED), None)
        lines = {
            "fastest float32": self.fastest(),
            "OpenVINO as installed": installed,
            "fastest int8": self.fastest("int8"),
        }
        return {line: entry for line, entry in lines.items() if entry is not None}

    def speed_up(self, entry: Entry, precision: str = "float32") -> float | None:
        """How many times as fast as the fastest dense runtime of that precision."""
        fastest = self.fastest(precision)
        if fastest is None or not (fastest.steady and entry.steady):
            return None
        return fastest.milliseconds / entry.milliseconds

    def mac_saving(self, entry: Entry) -> float | None:
        dense = next((one for one in self.entries if one.density is None), None)
        return None if dense is None else dense.macs / entry.macs


@dataclass(frozen=True)
class _About:
    """What is known of a contestant before it runs."""

    precision: str
    density: float | None
    macs: float
    isa: str = ""
    agreement: float | None = None


@dataclass(frozen=True)
class Prepared:
    """A contest with every network compiled and quantised; only the measuring is left."""

    network: str
    batch: int
    engine: Engine
    contestants: dict[str, Callable[[], object]]
    about: dict[str, _About]
    problems: dict[str, str]

    def hold(self, seconds: float = 10.0, least_rounds: int = 7) -> Contest:
        """Time all contestants, interleaved, for about `seconds` seconds."""
        with torch.inference_mode():
            peak = fma_peak_gflops(self.engine.isa, 0.3)
            times = interleave(self.contestants, seconds=seconds, least_rounds=least_rounds)
            peak = max(peak, fma_peak_gflops(self.engine.isa, 0.3))
        entries = tuple(_entry(name, known, times[name], self.batch) for name, known in self.about.items())
        return Contest(
            self.network, self.engine.threads, self.batch, self.engine.isa, peak, entries, self.problems
        )


def prepare_contest(
    name: str,
    gated: nn.Module,
    dense: nn.Module,
    images: Tensor,
    *,
    densities: Sequence[float] = (1.0, 0.7, 0.5, 0.3),
    rivals: Sequence[str] = RIVALS,
    threads: int = 1,
    calibration: Tensor | None = None,
    exported: bool = True,
    own_int8: bool = True,
    folder: Path | None = None,
    batch: int = 0,
) -> Prepared:
    """images: as the networks take them. A call runs `batch` of them, the next call the next ones; 0: every
    call runs all. calibration: for int8.

    exported: run the gated network in ONNX Runtime as well, where that is among the rivals. own_int8: run the
    engine in int8 too, where there are calibration images. folder: keeps the rivals' networks, so that the
    same contest is ready at once.
    """
    others = dense_runtimes(dense.eval(), images[:1], rivals, threads, calibration, folder)
    problems = dict(others.problems)
    with torch.inference_mode():
        engine = compile_engine(gated, images[:1], threads=threads)
        quantised = _quantised(gated, images, threads, calibration, problems) if own_int8 else None
        turns = images.split(batch or len(images))
        contestants = {label: one_by_one(run, turns) for label, run in others.run.items()}
        dense_macs = float(account(dense, images[:1]).macs)
        about = {
            label: _About(run.precision, None, dense_macs, run.isa, run.agreement)
            for label, run in others.run.items()
        }
        outside = _exported(gated, turns[0], rivals, threads, problems) if exported else None
        for density in densities if is_gated(gated) else (1.0,):
            macs = float(engine.macs(images, density=density).mean())
            contestants[f"penstock d = {density:g}"] = one_by_one(at_density(engine, density), turns)
            about[f"penstock d = {density:g}"] = _About("float32", density, macs, engine.isa)
            if quantised is not None:
                small = at_density(quantised, density)
                contestants[f"penstock int8 d = {density:g}"] = one_by_one(small, turns)
                about[f"penstock int8 d = {density:g}"] = _About("int8", density, macs, engine.isa)
            if outside is not None:
                contestants[f"exported d = {density:g}"] = one_by_one(at_density(outside, density), turns)
                about[f"exported d = {density:g}"] = _About("float32", density, macs)
    return Prepared(name, len(turns[0]), engine, contestants, about, problems)


def _quantised(
    gated: nn.Module, images: Tensor, threads: int, calibration: Tensor | None, problems: dict[str, str]
) -> Engine | None:
    """The engine in int8; None without calibration images, or where it cannot be had."""
    if calibration is None or not len(calibration):
        return None
    try:
        return compile_engine(gated, images[:1], threads=threads, precision="int8", calibration=calibration)
    except PenstockError as error:
        problems["penstock int8"] = str(error)
        return None


def _entry(name: str, about: _About, time: Timing, images: int) -> Entry:
    return Entry(
        name,
        about.precision,
        about.density,
        time.least,
        time.median,
        1000 * images / time.least,
        about.macs,
        2e-6 * about.macs * images / time.least,
        about.isa,
        about.agreement,
        time.steady,
    )


def without_gates(network: nn.Module) -> nn.Module:
    """The dense network with the shape of a gated one: every gate at 1, norms folded into the weights."""
    dense = copy.deepcopy(network).eval()
    for name, layer in list(gated_layers(dense)):
        plain = nn.Sequential(_folded(layer), copy.deepcopy(layer.activation))
        dense.set_submodule(name, plain)
    return dense


def random_gates(gated: nn.Module, images: Tensor, spread: float = 0.3) -> nn.Module:
    """Predictors with random weights, scaled so that the winners differ from image to image.

    images: (two or more, …). For measuring time: what a trained network chooses varies as well. A network in
    which nothing could be gated stays as it is.
    """
    if not is_gated(gated):
        return gated
    generator = torch.Generator().manual_seed(0)

    def scale(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, GatedConv2d)
        phi = torch.randn(layer.gate.weight.shape, generator=generator)
        raw = summarise(inputs[0], layer.gate.summary) @ phi
        factor = spread / raw.std().clamp_min(1e-6)
        layer.gate.weight.data.copy_(phi * factor)
        layer.gate.bias.data.copy_(1 - (raw * factor).mean(0))

    hooks = [layer.register_forward_pre_hook(scale) for _, layer in gated_layers(gated)]
    set_density(gated, 1.0)
    with torch.no_grad():
        gated.eval()(images)
    for hook in hooks:
        hook.remove()
    return gated


def _folded(layer: GatedConv2d) -> nn.Conv2d:
    conv, folded = copy.deepcopy(layer.conv), fold_norm(layer)
    conv.weight.data.copy_(folded.weight)
    conv.bias = nn.Parameter(folded.bias[-1].to(conv.weight.dtype))
    return conv


def _exported(
    gated: nn.Module, images: Tensor, rivals: Sequence[str], threads: int, problems: dict[str, str]
) -> OnnxNetwork | None:
    """The gated network itself in ONNX Runtime; its skipping form takes one image at a time."""
    if "onnxruntime" not in rivals or len(images) != 1 or not is_gated(gated):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run_in_onnxruntime(gated, images, threads)
    except PenstockError as error:  # the contest goes on with the others
        problems["exported"] = str(error)
        return None
