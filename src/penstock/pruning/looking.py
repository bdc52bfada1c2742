"""What a layer reads when images run: a network and images in, sampled rows of its input out.

A row is one position of the layer's output: the input values under the kernel there, (input channel, k²).
With the same seed two networks are sampled at the same positions, so that rows of one can be fitted to the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.surgery.network import eval_mode

_BATCH = 64


class _Enough(Exception):
    """Every layer that is watched has run: the rest of the network need not."""


def sample_rows(
    network: nn.Module,
    layers: Sequence[str],
    images: Tensor,
    positions: int,
    seed: int,
    keep: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """{layer: (rows, input channel, k²)}: `positions` rows an image (one for a linear layer), no gradients.

    keep: what is kept of a layer's rows instead of the rows themselves.
    """
    draws = {name: torch.Generator().manual_seed(seed + crc32(name.encode())) for name in layers}
    rows: dict[str, list[Tensor]] = {name: [] for name in layers}
    batches = images.split(_BATCH)

    def watch(name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            taken = _rows_of(module, inputs[0].detach(), positions, draws[name])
            rows[name].append(taken if keep is None else keep(module, taken))
            if all(len(parts) > done for parts in rows.values()):
                raise _Enough

        return note

    handles = [network.get_submodule(name).register_forward_pre_hook(watch(name)) for name in layers]
    try:
        with eval_mode(network), torch.no_grad():
            for done, batch in enumerate(batches):  # noqa: B007  # `note` reads it
                with suppress(_Enough):
                    network(batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in rows.items()}


def _rows_of(layer: nn.Module, x: Tensor, positions: int, draw: torch.Generator) -> Tensor:
    if isinstance(layer, nn.Linear):
        return x[:, :, None]
    assert isinstance(layer, nn.Conv2d)
    padding = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, padding, mode=mode)
    (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
    height = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    width = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    count = len(x)
    top = torch.randint(0, height, (count, positions, 1, 1), generator=draw).to(x.device) * sh
    left = torch.randint(0, width, (count, positions, 1, 1), generator=draw).to(x.device) * sw
    ys = top + dh * torch.arange(kh, device=x.device)[:, None]
    xs = left + dw * torch.arange(kw, device=x.device)[None, :]
    image = torch.arange(count, device=x.device)[:, None, None, None]
    patches = x.permute(0, 2, 3, 1)[image, ys, xs]  # (image, position, kh, kw, channel)
    return patches.flatten(0, 1).flatten(1, 2).transpose(1, 2).contiguous()


def flat_weight(layer: nn.Module) -> Tensor:
    """The layer's weight as (output channel, input channel, k²), a view."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    return layer.weight.detach().flatten(2) if layer.weight.dim() == 4 else layer.weight.detach()[:, :, None]


def outputs_at(layer: nn.Module, rows: Tensor) -> Tensor:
    """What the layer makes of sampled rows, without its bias: (rows, input, k²) → (rows, output)."""
    return rows.flatten(1) @ flat_weight(layer).flatten(1).T


@torch.no_grad()
def measure_norms(network: nn.Module, images: Tensor, batch: int = 128) -> None:
    """Give every batch norm the mean and variance of what it now sees, as a plain average over batches."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    kept = [(norm, norm.momentum) for norm in norms]
    with eval_mode(network):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        try:
            for part in images.split(batch):
                if len(part) > 1:
                    network(part)
        finally:
            for norm, momentum in kept:
                norm.momentum = momentum


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor, batch: int = 250) -> float:
    """The share of `images` that the network names right, in eval mode."""
    with eval_mode(network):
        hits = [
            (network(part).argmax(1) == wanted).sum()
            for part, wanted in zip(images.split(batch), labels.split(batch), strict=True)
        ]
    return float(torch.stack(hits).sum()) / len(labels)
