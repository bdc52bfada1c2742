"""What a network costs at several densities: counted MACs, and milliseconds measured through the engine.

Everything that is compared is timed in one interleaved run, one image a call. Where there is no engine (the
native module is not built, or the network has a step that it lacks) the counts stand alone and
`without_engine` says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.accounting import Account, account
from penstock.engine import Engine, compile
from penstock.errors import CompileError, SurgeryError
from penstock.gating import gated_layers, is_gated, set_density
from penstock.measuring.runtimes import Runtime
from penstock.measuring.timing import Timing, at_density, busy_words, interleave, one_by_one, unsteady_words
from penstock.quantizing import Ranges
from penstock.surgery.network import keep_densities


@dataclass(frozen=True)
class Agreement:
    """The engine's logits against PyTorch's: images with the same first class, and the largest difference
    as a share of the largest logit."""

    images: int
    same: int
    difference: float


@dataclass(frozen=True)
class DensityCost:
    """One density; None is a network without gates. Accounts by both conventions, time through the engine: of
    the whole network in float32 and in int8, and layer by layer of the first image."""

    density: float | None
    paper: Account = field(repr=False)
    executed: Account = field(repr=False)
    time: Timing | None = None
    agreement: Agreement | None = None
    layer_milliseconds: dict[str, float] = field(default_factory=dict)
    int8: Timing | None = None


@dataclass(frozen=True)
class RivalTime:
    """The dense network in another runtime, and the precision that it computes in."""

    time: Timing
    precision: str = "float32"


@dataclass(frozen=True)
class Measured:
    """`rivals`: the other contestants, by name, from the same interleaved run. `without_int8`: why there are
    no times in int8 though calibration was given."""

    rows: tuple[DensityCost, ...]
    rivals: dict[str, RivalTime] = field(default_factory=dict)
    without_engine: str = ""
    busy: str = ""  # a warning about the times
    threads: int = 1
    isa: str = ""
    without_int8: str = ""

    @property
    def unsteady(self) -> str:
        """What to say when some times may not be compared; empty when all may."""
        times = {f"d = {row.density:g}" if row.density else "the network": row.time for row in self.rows}
        times |= {f"{name}, int8": row.int8 for name, row in zip(list(times), self.rows, strict=False)}
        times |= {name: rival.time for name, rival in self.rivals.items()}
        shaky = [name for name, time in times.items() if time is not None and not time.steady]
        return unsteady_words(shaky)

    def fastest_rival(self, precision: str = "float32") -> tuple[str, RivalTime] | None:
        """The name and time of the fastest rival that computes in `precision`."""
        those = [item for item in self.rivals.items() if item[1].precision == precision]
        return min(those, key=lambda item: item[1].time.least, default=None)


def whole_account(network: nn.Module, image: Tensor) -> Account:
    """The network with nothing skipped: every gate at density 1 while it is counted; image: (1, …)."""
    with keep_densities(network):
        if is_gated(network):
            set_density(network, 1.0)
        return account(network, image, "paper")


def try_compile(
    network: nn.Module, example: Tensor, threads: int = 1, ranges: Ranges | None = None
) -> tuple[Engine | None, str]:
    """An engine, with `ranges` one in int8; or the reason why there is none."""
    precision = "float32" if ranges is None else "int8"
    try:
        return compile(network, example, threads=threads, precision=precision, calibration=ranges), ""
    except (CompileError, SurgeryError) as error:
        return None, str(error)


def measure(
    network: nn.Module,
    images: Tensor,
    densities: Sequence[float] = (),
    *,
    engine: bool = True,
    threads: int = 1,
    rivals: Mapping[str, Runtime] | None = None,
    seconds: float = 6.0,
    patience: float = 3.0,
    ranges: Ranges | None = None,
) -> Measured:
    """images: (n, channel, height, width), as the network takes them. No densities: the network as it stands.

    patience: how many times as long to go on while a time is not steady. ranges: what
    `penstock.quantizing.calibrate` found; with them the engine runs in int8 as well. A network
    without gates is measured once. The network's own densities are put back afterwards.
    """
    network.eval()
    own = [gate.density for _, gate in gated_layers(network)]
    settings: list[float | None] = list(densities) if own and densities else [None]
    runner, reason = try_compile(network, images[:1], threads) if engine else (None, "it was not asked for")
    small, no_int8 = None, ""
    if runner is not None and ranges is not None:
        small, no_int8 = try_compile(network, images[:1], threads, ranges)
    contestants = {name: one_by_one(run, images.split(1)) for name, run in (rivals or {}).items()}
    costs: list[DensityCost] = []
    with keep_densities(network):
        for index, density in enumerate(settings):
            if density is not None:
                set_density(network, density)
            agreement = None
            layers: dict[str, float] = {}
            if runner is not None:
                layers = layer_times(runner, images[:1], density)
                contestants[f"density {index}"] = one_by_one(at_density(runner, density), images.split(1))
                agreement = compare(network, runner, images, density)
            if small is not None:
                contestants[f"int8 {index}"] = one_by_one(at_density(small, density), images.split(1))
            shown = density
            if density is None and own:
                shown = fmean(own) if len(set(own)) > 1 else own[0]
            costs.append(
                DensityCost(
                    shown,
                    account(network, images[:1], "paper"),
                    account(network, images, "executed"),
                    None,
                    agreement,
                    layers,
                )
            )
    busy = busy_words()
    with torch.inference_mode():
        times = interleave(contestants, seconds=seconds, patience=patience) if contestants else {}
    rows = tuple(
        replace(cost, time=times.get(f"density {index}"), int8=times.get(f"int8 {index}"))
        for index, cost in enumerate(costs)
    )
    others = {name: RivalTime(times[name], run.precision) for name, run in (rivals or {}).items()}
    isa = "" if runner is None else runner.isa
    return Measured(rows, others, reason, busy if contestants else "", threads, isa, no_int8)


def layer_times(engine: Engine, image: Tensor, density: float | None) -> dict[str, float]:
    """Milliseconds of every convolution and linear layer with its gate; image: (1, …)."""
    steps = engine.profile(image, density).layers
    return {step.name: step.milliseconds for step in steps if step.macs is not None}


def least_times(engine: Engine, images: Tensor, rounds: int = 7) -> npt.NDArray[np.float64]:
    """Milliseconds of each image, (image,): the least of `rounds`, in which the images take turns."""
    singles = images.split(1)
    times = np.empty((rounds, len(singles)))
    for turn in range(rounds):
        for place, image in enumerate(singles):
            begin = time.perf_counter()
            engine(image)
            times[turn, place] = 1e3 * (time.perf_counter() - begin)
    return times.min(axis=0)


def compare(network: nn.Module, engine: Engine, images: Tensor, density: float | None) -> Agreement:
    """Run both on the same images; the network must stand at `density` already."""
    with torch.no_grad():
        expected = network(images)
    found = at_density(engine, density)(images)
    same = int((expected.argmax(1) == found.argmax(1)).sum())
    return Agreement(
        len(images), same, float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-30))
    )
