"""What surgery did to every convolution, and why: a network in, an Explanation out, readable with print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from penstock.errors import SurgeryError
from penstock.gating import GatedConv2d
from penstock.surgery.sites import Verdict, find_sites
from penstock.surgery.trace import capture_notes, trace, unwrapped

_RECORD = "penstock.explanation"


@dataclass(frozen=True)
class Convolution:
    """One convolution: gated at some density, or left alone for a reason."""

    name: str
    gated: bool
    reason: str  # what goes with the gate ("with its norm"), or why there is none
    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    groups: int
    output_shape: tuple[int, ...] | None  # without the batch axis; None if it never runs
    density: float | None  # None for a convolution without a gate


@dataclass(frozen=True)
class Explanation:
    """Every convolution of a network in the order they run, and what the capture could not keep.

    >>> import torch, penstock as ps
    >>> told = ps.explain(ps.add_gates(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32)))
    >>> len(told.gated), len(told.left_alone)
    (8, 0)
    """

    convolutions: tuple[Convolution, ...]
    notes: tuple[str, ...] = ()

    @property
    def gated(self) -> tuple[Convolution, ...]:
        return tuple(conv for conv in self.convolutions if conv.gated)

    @property
    def left_alone(self) -> tuple[Convolution, ...]:
        return tuple(conv for conv in self.convolutions if not conv.gated)

    def __getitem__(self, name: str) -> Convolution:
        for conv in self.convolutions:
            if conv.name == name:
                return conv
        raise KeyError(
            f"no convolution is named {name!r}; there are: {', '.join(c.name for c in self.convolutions)}"
        )

    def __str__(self) -> str:
        head = ("convolution", "channels", "kernel", "output", "gate", "")
        rows = [head, *(_row(conv) for conv in self.convolutions)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
            ).rstrip()
            for row in rows
        ]
        total = f"{len(self.gated)} of {len(self.convolutions)} convolutions gated"
        if not self.gated:
            total += "; the network has nothing to gate and runs as it was"
        return "\n".join([*lines, total, *(f"note: {note}" for note in self.notes)])


def explain(network: nn.Module, example: Tensor | None = None, keep_dense: Sequence[str] = ()) -> Explanation:
    """Every convolution of a network from `add_gates`: gated, or why not.

    For a network without gates give an `example` too, and it says what add_gates would do.

    >>> import torch, penstock as ps
    >>> found = ps.explain(ps.zoo.m_cifarnet(), torch.zeros(1, 3, 32, 32), keep_dense=["conv0"])
    >>> len(found.gated), found["conv0"].reason
    (7, "kept dense on request ('conv0')")
    """
    network = unwrapped(network)
    if isinstance(network, fx.GraphModule) and _RECORD in network.meta:
        return _with_present_state(network)
    if example is None:
        raise SurgeryError(
            "explain: this network does not come from add_gates; give an example batch as well: "
            "explain(network, example)"
        )
    traced = trace(network, example)
    return Explanation(
        tuple(_entry(verdict) for verdict in find_sites(traced, network, keep_dense)), capture_notes(traced)
    )


def remember(gated: fx.GraphModule, verdicts: Sequence[Verdict]) -> None:
    """Keep the verdicts with the network, so that `explain` can tell later."""
    gated.meta[_RECORD] = Explanation(tuple(_entry(verdict) for verdict in verdicts), capture_notes(gated))


def _entry(verdict: Verdict) -> Convolution:
    conv = verdict.conv
    reason = verdict.reason
    if verdict.site is not None:
        reason = "no norm" if verdict.site.norm is None else f"with {verdict.site.norm.target}"
    return Convolution(
        name=verdict.name,
        gated=verdict.site is not None,
        reason=reason,
        in_channels=conv.in_channels,
        out_channels=conv.out_channels,
        kernel=tuple(conv.kernel_size),
        groups=conv.groups,
        output_shape=None if verdict.output_shape is None else verdict.output_shape[1:],
        density=1.0 if verdict.site is not None else None,
    )


def _with_present_state(network: fx.GraphModule) -> Explanation:
    """The record of the insertion, with the densities and widths that the network has now."""
    recorded: Explanation = network.meta[_RECORD]
    modules = dict(network.named_modules())
    return replace(
        recorded,
        convolutions=tuple(_as_it_is(conv, modules.get(conv.name)) for conv in recorded.convolutions),
    )


def _as_it_is(recorded: Convolution, module: nn.Module | None) -> Convolution:
    conv = module.conv if isinstance(module, GatedConv2d) else module
    if not isinstance(conv, _ConvNd):
        return recorded  # it never ran, so the capture left it out
    shape = recorded.output_shape
    return replace(
        recorded,
        in_channels=conv.in_channels,
        out_channels=conv.out_channels,
        groups=conv.groups,
        output_shape=None if shape is None else (conv.out_channels, *shape[1:]),
        density=module.density if isinstance(module, GatedConv2d) else None,
    )


def _row(conv: Convolution) -> tuple[str, ...]:
    kernel = "x".join(map(str, conv.kernel)) + (f"/{conv.groups}" if conv.groups > 1 else "")
    shape = "-" if conv.output_shape is None else "x".join(map(str, conv.output_shape[1:]))
    gate = f"d={conv.density:g}" if conv.gated else "none"
    return (conv.name, f"{conv.in_channels}→{conv.out_channels}", kernel, shape, gate, conv.reason)
