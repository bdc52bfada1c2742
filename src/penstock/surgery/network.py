"""The traced network: a torch.fx GraphModule that keeps what a user or a checkpoint attached to the network.

    network.definition   which call made it, so that a checkpoint can name it
    network.preprocess   from raw images to its input
    network.ranges       how large its values become, for int8 (penstock.quantizing.Ranges)

torch.fx drops plain attributes when a GraphModule is made or copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from penstock.gating import gated_layers


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode; afterwards every module has its own mode again (frozen norms too)."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def count_parameters(network: nn.Module) -> int:
    """How many numbers its parameters hold."""
    return sum(parameter.numel() for parameter in network.parameters())


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody watches or changes what goes in or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


@contextmanager
def keep_densities(network: nn.Module) -> Iterator[None]:
    """Whatever densities are set meanwhile, every gated layer has its own again afterwards."""
    own = [(layer, layer.density) for _, layer in gated_layers(network)]
    try:
        yield
    finally:
        for layer, density in own:
            layer.density = density


CARRIED = ("definition", "preprocess", "ranges")


def carry(source: nn.Module, target: nn.Module) -> None:
    """Hang onto `target` what hangs onto `source`."""
    for name in CARRIED:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


class TracedNetwork(fx.GraphModule):
    """A GraphModule whose copies carry the same attributes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        twin = super().__deepcopy__(memo)
        carry(self, twin)
        return twin
