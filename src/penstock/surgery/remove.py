"""Removal of channels that no image used: a gated network and images in, a smaller gated network out.

The paper drops the weights of channels that are never among the winners; here they go physically, in the
gated layer and in all that read it, and the outputs on those images stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, fx, nn

from penstock.errors import InputError, LayerError
from penstock.gating import gated_layers, is_gated
from penstock.surgery.channels import active_mask
from penstock.surgery.flow import weight_layers
from penstock.surgery.network import eval_mode
from penstock.surgery.shrink import cut
from penstock.surgery.ties import Ties, find_ties
from penstock.surgery.trace import check_example, trace

_BATCH = 64


def remove_unused(gated: nn.Module, images: Tensor | Iterable[Tensor]) -> fx.GraphModule:
    """A copy of `gated` without the output channels that no image ever used; same outputs on those images.

    images: (many, channel, height, width), as the network takes them, or an iterable of such batches.
    Densities change so that each layer keeps its number of winners. `removal_report` says what was saved.

    >>> import penstock as ps
    >>> from penstock.surgery import removal_report
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-d30")
    >>> small = ps.remove_unused(gated, gated.preprocess(ps.datasets.sample().images[:2]))
    >>> removal_report(small).weights_saved > 0
    True
    """
    if not is_gated(gated):
        raise LayerError("the network has no gated layer; add some with penstock.add_gates(model, example)")
    traced: fx.GraphModule | None = None
    used: dict[str, Tensor] = {}
    example = torch.empty(0)
    for batch in _batches(images):
        if traced is None:
            example = batch[:2]
            traced = trace(gated, example)
        check_example(traced, batch)
        _note_used(traced, batch, used)
    if traced is None:
        raise InputError("images: there is none; give at least one image")
    ties = find_ties(traced)
    return cut(traced, ties, _needed(traced, ties, used), example)


def _batches(images: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        yield from images.split(_BATCH) if len(images) else ()
        return
    for batch in images:
        yield batch[0] if isinstance(batch, list | tuple) else batch


def _note_used(traced: fx.GraphModule, batch: Tensor, used: dict[str, Tensor]) -> None:
    with eval_mode(traced), torch.no_grad():
        traced(batch)
    for name, layer in gated_layers(traced):
        if layer.gains is not None:
            won = (layer.gains != 0).any(dim=0, keepdim=True)
            used[name] = won | used[name] if name in used else won
        layer.saliency = layer.gains = None


def _needed(traced: fx.GraphModule, ties: Ties, used: dict[str, Tensor]) -> set[int]:
    """The roots that must stay: pinned, among some gate's winners, or read as nonzero by some layer."""
    stay = ties.pinned()
    for name, won in used.items():
        # A winner that nobody reads must stay as well: without it another channel would win.
        stay.update(
            ties.root(slot)
            for slot, on in zip(ties.writes.get(name, ()), won[0].tolist(), strict=False)
            if on
        )
    for layer in weight_layers(traced):
        active = active_mask(layer.input, used, 1)[0].tolist()
        if layer.constants:
            active = [True] * len(active)  # a constant is not zero
        slots = ties.reads.get(layer.name, [])
        if len(slots) == len(active):
            stay.update(ties.root(slot) for slot, on in zip(slots, active, strict=True) if on)
    return stay
