"""The engine against dense runtimes: a gated network and its dense original in, milliseconds out.

Everything is timed in one interleaved run on the same images: the engine at several densities, torch eager
(norms folded, channels last), torch.compile, ONNX Runtime and OpenVINO; at batch 1 also the gated network
itself, exported to ONNX Runtime. The multiply-add peak of one core is measured in the same run, so that every
figure can be read as a share of what the machine can do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.accounting import account
from penstock.engine import Engine, fma_peak_gflops
from penstock.engine import compile as compile_engine
from penstock.errors import PenstockError
from penstock.exporting import OnnxNetwork, run_in_onnxruntime
from penstock.gating import GatedConv2d, fold_norm, gated_layers, set_density
from penstock.reporting.runtimes import dense_runtimes
from penstock.reporting.timing import interleave

RIVALS = ("torch", "torch.compile", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Entry:
    """One contestant; `density` is None for a dense one. MACs are the average of the images."""

    name: str
    density: float | None
    milliseconds: float  # of one call, the least
    median_milliseconds: float
    images_per_second: float
    macs: float  # of one image
    gflops: float


@dataclass(frozen=True)
class Contest:
    """One setting (threads, batch). `speed_up` of an engine's entry is against the fastest dense runtime."""

    network: str
    threads: int
    batch: int
    isa: str
    peak_gflops: float
    entries: tuple[Entry, ...]
    problems: dict[str, str]

    @property
    def fastest_rival(self) -> Entry | None:
        dense = [entry for entry in self.entries if entry.density is None]
        return min(dense, key=lambda entry: entry.milliseconds) if dense else None

    def speed_up(self, entry: Entry) -> float | None:
        fastest = self.fastest_rival
        return None if fastest is None else fastest.milliseconds / entry.milliseconds

    def mac_saving(self, entry: Entry) -> float | None:
        fastest = self.fastest_rival
        return None if fastest is None else fastest.macs / entry.macs


def hold_contest(
    name: str,
    gated: nn.Module,
    dense: nn.Module,
    images: Tensor,
    *,
    densities: Sequence[float] = (1.0, 0.7, 0.5, 0.3),
    rivals: Sequence[str] = RIVALS,
    threads: int = 1,
    seconds: float = 10.0,
    least_rounds: int = 7,
) -> Contest:
    """images: one batch, as the networks take it; every call runs all of it."""
    with torch.inference_mode():
        engine = compile_engine(gated, images[:1], threads=threads)
        contestants, problems = _dense_contestants(dense.eval(), images, rivals, threads)
        dense_macs = float(account(dense, images[:1]).macs)
        about: dict[str, tuple[float | None, float]] = dict.fromkeys(contestants, (None, dense_macs))
        exported = _exported(gated, images, rivals, threads, problems)
        for density in densities:
            macs = float(engine.macs(images, density=density).mean())
            contestants[f"penstock d = {density:g}"] = _at(engine, images, density)
            about[f"penstock d = {density:g}"] = (density, macs)
            if exported is not None:
                contestants[f"exported d = {density:g}"] = _in_onnxruntime(exported, images, density)
                about[f"exported d = {density:g}"] = (density, macs)
        peak = fma_peak_gflops(engine.isa, 0.3)
        times = interleave(contestants, seconds=seconds, least_rounds=least_rounds)
        peak = max(peak, fma_peak_gflops(engine.isa, 0.3))
    entries = [
        Entry(
            contestant,
            density,
            times[contestant].least,
            times[contestant].median,
            1000 * len(images) / times[contestant].least,
            macs,
            2e-6 * macs * len(images) / times[contestant].least,
        )
        for contestant, (density, macs) in about.items()
    ]
    return Contest(name, threads, len(images), engine.isa, peak, tuple(entries), problems)


def without_gates(network: nn.Module) -> nn.Module:
    """The dense network with the shape of a gated one: every gate at 1, norms folded into the weights."""
    dense = copy.deepcopy(network).eval()
    for name, layer in list(gated_layers(dense)):
        plain = nn.Sequential(_folded(layer), copy.deepcopy(layer.activation))
        dense.set_submodule(name, plain)
    return dense


def random_gates(gated: nn.Module, images: Tensor, spread: float = 0.3) -> nn.Module:
    """Predictors with random weights, scaled so that the winners differ from image to image.

    images: (two or more, …). For measuring time: what a trained network chooses varies as well.
    """
    from penstock.gating import summarise

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


def _at(engine: Engine, images: Tensor, density: float) -> Callable[[], object]:
    return lambda: engine(images, density=density)


def _in_onnxruntime(network: OnnxNetwork, images: Tensor, density: float) -> Callable[[], object]:
    return lambda: network(images, density)


def _exported(
    gated: nn.Module, images: Tensor, rivals: Sequence[str], threads: int, problems: dict[str, str]
) -> OnnxNetwork | None:
    """The gated network itself in ONNX Runtime; its skipping form takes one image at a time."""
    if "onnxruntime" not in rivals or len(images) != 1 or not any(gated_layers(gated)):
        return None
    try:
        with _quiet():
            return run_in_onnxruntime(gated, images, threads)
    except PenstockError as error:  # the contest goes on with the others
        problems["exported"] = str(error)
        return None


def _dense_contestants(
    dense: nn.Module, images: Tensor, rivals: Sequence[str], threads: int
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    torch.set_num_threads(threads)
    with _quiet():
        others = dense_runtimes(
            dense, images, [r for r in rivals if r in ("onnxruntime", "openvino")], threads
        )
        folded = _fold_norms(dense)
    torch.set_num_threads(threads)
    found: dict[str, Callable[[], object]] = {}
    problems = dict(others.problems)
    last = images.to(memory_format=torch.channels_last)
    eager = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if "torch" in rivals:
        found["torch"] = lambda: eager(last)
    if "torch.compile" in rivals:
        # A compiler may fail in any way; the contest goes on with the others.
        try:
            with _quiet():
                compiled = torch.compile(eager)
                compiled(last)
            found["torch.compile"] = lambda: compiled(last)
        except Exception as error:
            problems["torch.compile"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    for name, run in others.run.items():
        found[name] = _on(run, images)
    return found, problems


def _on(run: Callable[[Tensor], object], images: Tensor) -> Callable[[], object]:
    return lambda: run(images)


def _fold_norms(dense: nn.Module) -> nn.Module:
    from torch.fx.experimental.optimization import fuse

    try:
        return fuse(copy.deepcopy(dense))
    except Exception:  # not traceable by plain fx: eager runs it as it is
        return copy.deepcopy(dense)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
