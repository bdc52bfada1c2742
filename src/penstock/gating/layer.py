"""The gated convolution: the paper's layer, and the densities and penalty of a network made of them.

    g(x)   = relu(ss(x) · φ + ρ)                     saliency of every output channel
    π(x)   = wta_k(g(x)),  k = ⌈d · C_out⌉           the winners' saliencies, the rest zero
             wta_k(g(x) · [g(x) > τ]) with a threshold (see thresholds.py); d then bounds the winners' share
    f̂(x)  = activation(π(x) · (norm(conv(x, θ)) + β))

A channel whose π is 0 is exactly zero after the activation, so whoever reads it next may skip it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import LayerError
from penstock.gating.arithmetic import EQUATIONS, Arithmetic
from penstock.gating.levels import LevelNorm2d, check_levels, check_takes_levels, level_edges
from penstock.gating.summaries import SUMMARIES
from penstock.gating.winners import check_density, winner_count
from penstock_runtime.densities import layers_matching


class SaliencyPredictor(nn.Module):
    """g(x) = relu(ss(x)·φ + ρ): one saliency for every output channel, from the input's summaries."""

    def __init__(self, in_channels: int, out_channels: int, summary: str = "l1") -> None:
        super().__init__()
        if summary not in SUMMARIES:
            raise ValueError(f"unknown summary {summary!r}; expected one of {', '.join(SUMMARIES)}")
        self.summary = summary
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels))  # φ
        self.bias = nn.Parameter(torch.empty(out_channels))  # ρ
        self.reset_as_in_paper()

    def reset_as_in_paper(self) -> None:
        """φ by He's initialisation (fan-in = C_in), ρ = 1."""
        # kaiming_normal_ reads fan-in from dim 1, and φ stands as (in, out).
        nn.init.kaiming_normal_(self.weight.data.t(), mode="fan_in", nonlinearity="relu")
        nn.init.ones_(self.bias)

    def forward(self, x: Tensor, level: Tensor | None = None, arithmetic: Arithmetic | None = None) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel). level: ρ's row, if it has rows."""
        bias = self.bias if level is None else self.bias[level]
        summary = (arithmetic or EQUATIONS).summarise(x, self.summary)
        return torch.relu(summary @ self.weight + bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, summary={self.summary!r}"


class GatedConv2d(nn.Module):
    """A convolution whose output channels are boosted or suppressed image by image.

    `conv` has no bias of its own: `shift` (β) is added after `norm`, before the gate. `norm` is a batch norm
    without scale and shift (the gate takes γ's place), or an identity for a convolution that has none.
    With `levels` (see `set_levels`), `norm`, `shift` and the gate's bias have a row for each of them.

    >>> layer = GatedConv2d(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False))
    >>> layer.density = 0.25
    >>> int((layer(torch.randn(1, 3, 16, 16)).abs().amax((2, 3)) > 0).sum())  # of 8 channels
    2
    """

    winners: Tensor
    threshold: Tensor | None

    def __init__(
        self,
        conv: nn.Conv2d,
        norm: nn.BatchNorm2d | None = None,
        activation: nn.Module | None = None,
        *,
        summary: str = "l1",
        density: float = 1.0,
    ) -> None:
        super().__init__()
        if conv.bias is not None:
            raise LayerError("a gated convolution carries its bias as `shift`; give a conv with bias=False")
        if norm is not None and norm.affine:
            raise LayerError("the gate takes the place of the norm's scale; give a norm with affine=False")
        if activation is not None and not _keeps_zero(activation, conv.out_channels):
            raise LayerError(
                f"{type(activation).__name__} cannot follow a gate: a suppressed channel must stay zero, "
                "so only activations with f(0) = 0 work, such as ReLU, SiLU or LeakyReLU"
            )
        self.conv = conv
        self.norm: nn.Module = nn.Identity() if norm is None else norm
        self.shift = nn.Parameter(torch.zeros(conv.out_channels))  # β
        self.gate = SaliencyPredictor(conv.in_channels, conv.out_channels, summary)
        self.activation: nn.Module = nn.Identity() if activation is None else activation
        # The count is a tensor so that changing the density recompiles nothing; it is not saved with the
        # weights because a checkpoint carries the density itself.
        self.register_buffer("winners", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("threshold", None)  # τ, a 0-dim tensor; saved with the weights if there is one
        self.image_winners: Tensor | None = None  # a count for each image instead; no state
        self.levels: tuple[float, ...] = ()
        self.arithmetic: Arithmetic = EQUATIONS  # training may give the layer a faster one for a while
        self._density = 1.0
        self.density = density
        self.saliency: Tensor | None = None  # g of the last forward, for the penalty
        self.gains: Tensor | None = None  # π of the last forward, for the accounting

    @property
    def density(self) -> float:
        """d: the share of output channels that are computed, in ]0, 1]; with a threshold, at most that."""
        return self._density

    @density.setter
    def density(self, value: float) -> None:
        self._density = check_density(value)
        self.image_winners = None
        self.winners.fill_(winner_count(self._density, self.conv.out_channels))

    def set_levels(self, levels: Sequence[float]) -> None:
        """Give each of `levels` a norm, β and ρ of its own, which begin as the layer's present ones."""
        values = check_levels(levels)
        if self.levels:
            raise LayerError(f"the layer has levels already: {self.levels}")
        if self.threshold is not None:
            raise LayerError("the layer has a threshold, which serves one mean density; it takes no levels")
        check_takes_levels(self.norm)
        if isinstance(self.norm, nn.BatchNorm2d):
            self.norm = LevelNorm2d.of(self.norm, len(values))
        self.shift = _rows(self.shift, len(values))
        self.gate.bias = _rows(self.gate.bias, len(values))
        self.levels = values

    def set_threshold(self, value: float | None) -> None:
        """Let only saliencies above `value`, at least 0, win: at most the density's share of them.

        None takes the threshold away: as many channels win as the density says.
        """
        if value is not None and not 0.0 <= value < float("inf"):
            raise LayerError(f"threshold: expected a finite number of at least 0, got {value!r}")
        if value is not None and self.levels:
            raise LayerError(
                f"a layer with levels {self.levels} takes no threshold; call drop_levels() first"
            )
        like = self.shift
        self.threshold = None if value is None else torch.tensor(value, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def drop_levels(self) -> None:
        """Keep the values of the level that serves the present density, and no others."""
        if not self.levels:
            return
        row = int(self._row(self.winners))
        if isinstance(self.norm, LevelNorm2d):
            self.norm = self.norm.one(row)
        self.shift = nn.Parameter(self.shift[row].clone(), self.shift.requires_grad)
        self.gate.bias = nn.Parameter(self.gate.bias[row].clone(), self.gate.bias.requires_grad)
        self.levels = ()

    def level(self) -> Tensor | None:
        """Which row of its levels serves now: one for all images, (), or one for each, (batch,)."""
        if not self.levels:
            return None
        return self._row(self.winners if self.image_winners is None else self.image_winners[:, 0])

    def _row(self, counts: Tensor) -> Tensor:
        edges = torch.tensor(level_edges(self.levels, self.shift.shape[-1]), device=counts.device)
        return (counts[..., None] > edges).sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, in channel, height, width) → (batch, out channel, height', width')."""
        level = self.level()
        self.saliency = self.gate(x, level, self.arithmetic)
        counts = self.winners if self.image_winners is None else self.image_winners
        self.gains = self.arithmetic.choose(self, self.saliency, counts)
        return self.arithmetic.features(self, x, self.gains, level)

    def __deepcopy__(self, memo: dict[int, object]) -> GatedConv2d:
        twin: GatedConv2d = copy_without_records(self, memo, ("saliency", "gains"))
        twin.arithmetic = EQUATIONS
        return twin

    def extra_repr(self) -> str:
        above = "" if self.threshold is None else f", threshold={self.threshold}"
        return f"density={self.density:g}{above}"


def copy_without_records(module: nn.Module, memo: dict[int, object], records: Collection[str]) -> Any:
    """A deep copy without what the last forward left: those are no leaves, and torch does not copy them."""
    twin = module.__class__.__new__(module.__class__)
    memo[id(module)] = twin
    for key, value in module.__dict__.items():
        twin.__dict__[key] = None if key in records else deepcopy(value, memo)
    return twin


@torch.no_grad()
def _keeps_zero(activation: nn.Module, channels: int) -> bool:
    zero = torch.zeros(1, channels, 1, 1)
    return not bool(activation(zero.to(next(activation.parameters(), zero))).any())


def _rows(values: nn.Parameter, count: int) -> nn.Parameter:
    return nn.Parameter(values.detach().expand(count, -1).clone(), values.requires_grad)


def gated_layers(network: nn.Module) -> Iterator[tuple[str, GatedConv2d]]:
    """Every gated convolution of the network with its name, in the order of definition."""
    for name, module in network.named_modules():
        if isinstance(module, GatedConv2d):
            yield name, module


def is_gated(network: nn.Module) -> bool:
    """Whether the network has any gated convolution."""
    return any(True for _ in gated_layers(network))


def set_density(network: nn.Module, density: float | Mapping[str, float]) -> None:
    """Set one density for all gated layers, or some layers' own: ``{name or pattern: number}``.

    Takes effect on the next forward; nothing is rebuilt. All values are checked before any is set.

    >>> import penstock as ps
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    >>> ps.set_density(gated, 0.5)
    >>> ps.set_density(gated, {"conv7": 1.0, "conv[01]": 0.75})
    >>> tuple(layer.density for _, layer in gated_layers(gated))
    (0.75, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0)
    """
    layers = dict(gated_layers(network))
    if not layers:
        raise LayerError("the network has no gated layer; add some with penstock.add_gates(model, example)")
    if not isinstance(density, Mapping):
        value = check_density(density)
        chosen = dict.fromkeys(layers, value)
    else:
        chosen = {}
        for pattern, given in density.items():
            value = check_density(given, where=f"density of layer {pattern!r}")
            chosen.update(dict.fromkeys(layers_matching(pattern, layers, "gated layer"), value))
    for name, value in chosen.items():
        layers[name].density = value


def set_levels(network: nn.Module, levels: Sequence[float]) -> None:
    """Give every gated layer norms, β and ρ of its own at each of `levels`; all start as they are now.

    For a network that is then trained at many densities: any density in between is served by the nearest.
    Layers that have the same levels already are left as they are.
    """
    values = check_levels(levels)
    for name, layer in gated_layers(network):
        if layer.levels not in ((), values):
            raise LayerError(
                f"layer {name!r} has levels {layer.levels} already, which cannot become {values}"
            )
        if layer.threshold is not None:
            raise LayerError(f"layer {name!r} has a threshold, which serves one mean density, not {values}")
        if not layer.levels:
            check_takes_levels(layer.norm, f"layer {name!r}: ")
    for _, layer in gated_layers(network):
        if not layer.levels:
            layer.set_levels(values)


def set_image_densities(network: nn.Module, densities: Tensor) -> None:
    """Give each image of the next batches its own density, the same in every layer; for training.

    densities: (batch,), in ]0, 1]. Holds until `set_density`; until then only batches of that size fit.
    """
    if densities.dim() != 1 or not bool(((densities > 0) & (densities <= 1)).all()):
        raise LayerError(f"expected one density in ]0, 1] for each image, got {densities!r}")
    for _, layer in gated_layers(network):
        channels = layer.conv.out_channels
        counts = [winner_count(value, channels) for value in densities.tolist()]
        layer.image_winners = torch.tensor(counts, device=layer.winners.device)[:, None]


def saliency_penalty(network: nn.Module) -> Tensor:
    """Σ over layers of the batch mean of ‖g(x)‖₁, from the last forward: the paper's Lasso, before wta.

    Add ``1e-8 * saliency_penalty(network)`` to the task loss (the paper's λ).

    >>> layer = GatedConv2d(nn.Conv2d(3, 8, 3, bias=False))
    >>> loss = layer(torch.zeros(1, 3, 5, 5)).sum() + 1e-8 * saliency_penalty(layer)
    >>> saliency_penalty(layer).item()  # of a black image every saliency is ρ = 1
    8.0
    """
    saliencies = [(name, layer.saliency) for name, layer in gated_layers(network)]
    if not saliencies:
        raise LayerError("the network has no gated layer; add some with penstock.add_gates(model, example)")
    total: Tensor | None = None
    for name, saliency in saliencies:
        if saliency is None:
            raise LayerError(f"layer {name!r} has not run yet; call the network on a batch first")
        term = saliency.abs().sum(dim=1).mean()
        total = term if total is None else total + term
    assert total is not None
    return total
