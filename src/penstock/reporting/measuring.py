"""What a network costs at several densities: counted MACs, and milliseconds measured through the engine.

Everything that is compared is timed in one interleaved run, one image a call. Where there is no engine (the
native module is not built, or the network has a step that it lacks) the counts stand alone and
`without_engine` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor, nn

from penstock.accounting import Account, account
from penstock.engine import Engine, compile
from penstock.errors import CompileError, SurgeryError
from penstock.gating import gated_layers, set_density
from penstock.reporting.timing import Timing, busy_words, interleave, one_by_one


@dataclass(frozen=True)
class Agreement:
    """The engine's logits against PyTorch's: images with the same first class, and the largest difference
    as a share of the largest logit."""

    images: int
    same: int
    difference: float


@dataclass(frozen=True)
class DensityCost:
    """One density; None is a network without gates. Accounts by both conventions, time through the engine."""

    density: float | None
    paper: Account = field(repr=False)
    executed: Account = field(repr=False)
    time: Timing | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True)
class Measured:
    """`rivals`: the times of the other contestants, by name, from the same interleaved run."""

    rows: tuple[DensityCost, ...]
    rivals: dict[str, Timing] = field(default_factory=dict)
    without_engine: str = ""
    busy: str = ""  # a warning about the times
    threads: int = 1
    isa: str = ""


def whole_account(network: nn.Module, image: Tensor) -> Account:
    """The network with nothing skipped: every gate at density 1 while it is counted; image: (1, …)."""
    own = {gate: gate.density for _, gate in gated_layers(network)}
    try:
        for gate in own:
            gate.density = 1.0
        return account(network, image, "paper")
    finally:
        for gate, density in own.items():
            gate.density = density


def try_compile(network: nn.Module, example: Tensor, threads: int = 1) -> tuple[Engine | None, str]:
    """An engine, or the reason why there is none."""
    try:
        return compile(network, example, threads=threads), ""
    except (CompileError, SurgeryError) as error:
        return None, str(error)


def measure(
    network: nn.Module,
    images: Tensor,
    densities: Sequence[float] = (),
    *,
    engine: bool = True,
    threads: int = 1,
    rivals: Mapping[str, Callable[[Tensor], object]] | None = None,
    seconds: float = 6.0,
) -> Measured:
    """images: (n, channel, height, width), as the network takes them. No densities: the network as it stands.

    A network without gates is measured once. The network's own densities are put back afterwards.
    """
    network.eval()
    own = {gate: gate.density for _, gate in gated_layers(network)}
    settings: list[float | None] = list(densities) if own and densities else [None]
    runner, reason = try_compile(network, images[:1], threads) if engine else (None, "it was not asked for")
    contestants = {name: one_by_one(run, images.split(1)) for name, run in (rivals or {}).items()}
    costs: list[DensityCost] = []
    try:
        for index, density in enumerate(settings):
            if density is not None:
                set_density(network, density)
            agreement = None
            if runner is not None:
                contestants[f"density {index}"] = one_by_one(_at(runner, density), images.split(1))
                agreement = compare(network, runner, images, density)
            shown = density
            if density is None and own:
                shown = fmean(own.values()) if len(set(own.values())) > 1 else next(iter(own.values()))
            costs.append(
                DensityCost(
                    shown,
                    account(network, images[:1], "paper"),
                    account(network, images, "executed"),
                    None,
                    agreement,
                )
            )
    finally:
        for gate, density in own.items():
            gate.density = density
    busy = busy_words()
    with torch.inference_mode():
        times = interleave(contestants, seconds=seconds) if contestants else {}
    rows = tuple(
        DensityCost(c.density, c.paper, c.executed, times.pop(f"density {index}", None), c.agreement)
        for index, c in enumerate(costs)
    )
    return Measured(
        rows, times, reason, busy if contestants else "", threads, "" if runner is None else runner.isa
    )


def compare(network: nn.Module, engine: Engine, images: Tensor, density: float | None) -> Agreement:
    """Run both on the same images; the network must stand at `density` already."""
    with torch.no_grad():
        expected = network(images)
    found = engine(images) if density is None else engine(images, density=density)
    same = int((expected.argmax(1) == found.argmax(1)).sum())
    return Agreement(
        len(images), same, float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-30))
    )


def _at(engine: Engine, density: float | None) -> Callable[[Tensor], object]:
    if density is None:
        return engine
    return lambda x: engine(x, density=density)
