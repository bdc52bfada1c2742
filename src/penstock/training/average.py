"""An exponential moving average of the weights: what is evaluated and saved when the recipe averages."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of all floating-point parameters and buffers.

    A parameter that is not trained is copied, not averaged: where something else sets it, older values mean
    nothing.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.values = {name: tensor.detach().clone() for name, tensor in _floating(network)}

    def update(self, network: nn.Module) -> None:
        """Take one step's weights in."""
        # The decay grows with the number of updates, so that the random start is soon forgotten.
        self.updates += 1
        weight = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        resting = {name for name, one in network.named_parameters() if not one.requires_grad}
        learning = [(name, tensor) for name, tensor in _floating(network) if name not in resting]
        names, live = zip(*learning, strict=True)
        torch._foreach_lerp_([self.values[name] for name in names], list(live), weight)
        for name, tensor in _floating(network):
            if name in resting:
                self.values[name].copy_(tensor)

    def copy_to(self, network: nn.Module) -> None:
        """Put the averaged values into `network`."""
        with torch.no_grad():
            for name, tensor in _floating(network):
                tensor.copy_(self.values[name])

    def network(self, like: nn.Module) -> nn.Module:
        """A copy of `like` that carries the averaged values."""
        twin = deepcopy(like)
        self.copy_to(twin)
        return twin


def _floating(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t.data) for n, t in network.state_dict(keep_vars=True).items() if t.is_floating_point()]
