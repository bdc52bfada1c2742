"""Which channels go together: a network in, its groups of tied channels out; and channels taken out for real.

A residual sum ties the channels of all its summands: one channel leaves all of them or none. torch-pruning
finds these groups and cuts the tensors; what is added here is the question whether a cut is exact. Removing a
channel must be the same as masking it, that is, as setting γ and β of all its norms to zero. So every group
is masked once, half its channels at a time, and whoever reads the group must then see zeros. Where not
(an activation with f(0) ≠ 0, a writer without a norm, the input image), the group is left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.errors import PruningError
from penstock.gating import GatedConv2d

_OTHER_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.modules.instancenorm._InstanceNorm)
_SPLITS = (torch_pruning.ops.OPTYPE.SPLIT, torch_pruning.ops.OPTYPE.SLICE, torch_pruning.ops.OPTYPE.UNBIND)


@dataclass(frozen=True)
class Member:
    """Channels of one layer in a group: its ``channels[i]`` is tied to the group's channel ``roots[i]``."""

    layer: str
    channels: tuple[int, ...]
    roots: tuple[int, ...]

    def among(self, removed: Iterable[int]) -> list[int]:
        """This layer's channels that leave with the group's channels `removed`."""
        gone = set(removed)
        return [channel for channel, root in zip(self.channels, self.roots, strict=True) if root in gone]


@dataclass(frozen=True)
class ChannelGroup:
    """Tied channels, named after one layer that writes them; every layer that writes, norms or reads them."""

    layer: str
    size: int
    norms: tuple[Member, ...]
    writers: tuple[Member, ...]
    readers: tuple[Member, ...]
    reason: str = ""
    """Why the group is left alone; empty if it may be cut."""


def channel_groups(network: nn.Module, example: Tensor) -> list[ChannelGroup]:
    """Every group of tied channels, in the order of definition. example: (batch, channel, height, width)."""
    if any(isinstance(module, GatedConv2d) for module in network.modules()):
        raise PruningError(
            "the network is gated, and gates take the place of the norms' scales; prune first, then add_gates"
        )
    copy = deepcopy(network).to("meta")  # tying is a matter of shapes: no arithmetic is needed to find it
    graph = _graph(copy, example.to("meta"))
    groups = [_group(graph, found) for found in graph.get_all_groups(root_module_types=[nn.Conv2d])]
    order = {name: place for place, (name, _) in enumerate(network.named_modules())}
    groups.sort(key=lambda group: order[group.layer])
    leaks = _leaks(network, example, [group for group in groups if not group.reason])
    blame = {layer: f"{reader} would not read zeros there" for layer, reader in leaks.items()}
    return [replace(group, reason=blame.get(group.layer, group.reason)) for group in groups]


def mask_channels(
    network: nn.Module, groups: Iterable[ChannelGroup], removed: Mapping[str, Iterable[int]]
) -> None:
    """Set γ and β to zero, in place, of the channels `removed`: {group's layer: indices}."""
    with torch.no_grad():
        for group in groups:
            for norm in group.norms:
                module = network.get_submodule(norm.layer)
                assert isinstance(module, _BatchNorm)
                gone = norm.among(removed.get(group.layer, ()))
                module.weight[gone] = 0
                if module.bias is not None:
                    module.bias[gone] = 0


def remove_channels(network: nn.Module, example: Tensor, removed: Mapping[str, Iterable[int]]) -> nn.Module:
    """A copy without the channels `removed`, {group's layer: indices}, nor those tied to them."""
    copy = deepcopy(network)
    learns = {name: parameter.requires_grad for name, parameter in copy.named_parameters()}
    training = {name: module.training for name, module in copy.named_modules()}
    layers = {name: copy.get_submodule(name) for name in removed}
    graph = _graph(copy, example[:1])
    for name, indices in removed.items():
        module = layers[name]
        if gone := sorted(set(indices)):
            cut = graph.get_pruner_of_module(module).prune_out_channels
            graph.get_pruning_group(module, cut, gone).prune()
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(learns[name])
        parameter.grad = None
    for name, module in copy.named_modules():
        module.training = training[name]
    return copy


def _graph(network: nn.Module, example: Tensor) -> Any:
    """torch-pruning's dependency graph; it reads autograd's, so everything must want a gradient."""
    network.requires_grad_(True)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on loose parameters: a group that has one is left alone below
            return torch_pruning.DependencyGraph().build_dependency(network, example_inputs=example)
    except Exception as error:  # it raises whatever it stumbles over
        raise PruningError(
            f"{type(network).__name__}: torch-pruning cannot follow its channels "
            f"({type(error).__name__}: {error}); prune a network without channel shuffles and reshapes"
        ) from error


def _group(graph: Any, found: Any) -> ChannelGroup:
    norms, writers, readers = [], [], []
    reason = ""
    for item in found.items:
        module, node = item.dep.target.module, item.dep.target
        writes = graph.is_out_channel_pruning_fn(item.dep.handler)
        # The cached names of torch-pruning: what has none is an operation, not a layer.
        member = partial(Member, graph._module2name.get(module, ""), tuple(item.idxs), tuple(item.root_idxs))
        if isinstance(module, _BatchNorm):
            if not module.affine or not module.track_running_stats:
                reason = reason or f"{member().layer} has no scale or no running statistics"
            norms.append(member())
        elif isinstance(module, _ConvNd | nn.Linear):
            parts = module.groups if isinstance(module, _ConvNd) else 1
            depthwise = parts > 1 and parts == module.in_channels == module.out_channels
            if parts > 1 and not depthwise:
                reason = reason or f"{member().layer} is a grouped convolution"
            if writes:
                writers.append(member())
            if depthwise or not writes:
                readers.append(member())
        elif isinstance(module, _OTHER_NORMS):
            reason = reason or f"{member().layer} ({type(module).__name__}) mixes channels"
        elif isinstance(module, nn.Parameter):
            reason = reason or "a loose parameter is tied to it"
        elif node.type in _SPLITS:
            reason = reason or "its channels are split or sliced"
        is_last = writes and not node.outputs
        if is_last or node.type == graph.ops.OPTYPE.OUTPUT:
            reason = reason or "its channels are the network's output"
    name = str(graph._module2name[found[0].dep.target.module])
    if not norms:
        reason = reason or "no batch norm follows"
    return ChannelGroup(name, len(found[0].idxs), tuple(norms), tuple(writers), tuple(readers), reason)


def _leaks(network: nn.Module, example: Tensor, groups: list[ChannelGroup]) -> dict[str, str]:
    """{group's layer: a reader of it that does not see zeros where the group is masked}."""
    leaks: dict[str, str] = {}
    # Noise, because an example of zeros would hide every leak.
    noise = torch.randn(example[:2].shape, generator=torch.Generator().manual_seed(0)).to(example)
    for parity in (0, 1):
        probe = deepcopy(network).eval()
        # Half the channels: with all of them masked, every reader would see zeros for want of anything else.
        masked = {group.layer: range(parity, group.size, 2) for group in groups}
        mask_channels(probe, groups, masked)

        def check(
            group: ChannelGroup, reader: Member, zeros: list[int], module: nn.Module, inputs: tuple[Any, ...]
        ) -> None:
            axis = inputs[0].dim() - 1 if isinstance(module, nn.Linear) else 1
            if inputs[0].index_select(axis, torch.tensor(zeros, device=inputs[0].device)).any():
                leaks.setdefault(group.layer, reader.layer)

        for group in groups:
            for reader in group.readers:
                zeros = reader.among(masked[group.layer])
                module = probe.get_submodule(reader.layer)
                module.register_forward_pre_hook(partial(check, group, reader, zeros))
        with torch.no_grad():
            probe(noise)
    return leaks
