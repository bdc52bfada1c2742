"""A loss that is no number: the batch runs once more, watched, to name the layer it began in."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import TrainingError


def first_broken_layer(network: nn.Module, x: Tensor) -> str:
    """In words: where the first value that is not finite comes from when `network` sees `x`.

    Works on a copy, because a forward in training mode moves the norms' statistics.
    """
    if not x.isfinite().all():
        return "the input batch itself holds values that are not finite"
    twin = deepcopy(network)
    found: list[str] = []
    handles = [
        module.register_forward_hook(_watcher(name, found))
        for name, module in twin.named_modules()
        if name and not any(module.children())
    ]
    try:
        with torch.no_grad():
            twin(x)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    broken = next((name for name, p in network.named_parameters() if not p.isfinite().all()), None)
    if broken is not None:
        return f"the weights {broken!r} are not finite"
    return "every layer's output is finite, so the loss itself overflowed"


def _watcher(name: str, found: list[str]) -> Any:
    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if found or not isinstance(output, Tensor) or output.isfinite().all():
            return
        own = [key for key, p in module.named_parameters() if not p.isfinite().all()]
        because = f", whose {own[0]} is not finite either" if own else ""
        found.append(f"the first values that are not finite leave layer {name!r}{because}")

    return watch


def not_finite(loss: Tensor, network: nn.Module, x: Tensor, epoch: int, step: int) -> TrainingError:
    """The error that stops a run whose loss is no number, with the layer it began in."""
    return TrainingError(
        f"the loss became {float(loss.detach())} in epoch {epoch + 1}, step {step + 1}: "
        f"{first_broken_layer(network, x)}. The state on disk is the last one saved. "
        "Try a lower learning rate, a longer warm-up, or init='preserve' for the gates"
    )
