"""Tracing: a network and an example in, a traced copy out (torch.fx), every node with the shape of its value.

The copy is deep: the user's network keeps its weights, statistics and mode. Module names stay as they were
(``layer1.0.conv1``), so state dicts, densities by name and reports all speak the user's language. A submodule
that torch.fx cannot trace is kept whole, as one node; only a network that cannot be traced at its outermost
level is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from penstock.errors import InputError, SurgeryError
from penstock.gating import GatedConv2d, gated_layers
from penstock.surgery.capture import NOTES, OPAQUE, capture
from penstock.surgery.network import carry, eval_mode
from penstock.surgery.operators import place_of

_EXAMPLE_SAMPLES = 2  # enough for batch norms without running statistics, cheap for any image size


def trace(model: nn.Module, example: Tensor) -> fx.GraphModule:
    """A traced deep copy of `model`; ``node.meta["shape"]`` of each node is a tuple, or None if not a tensor.

    model: a plain network, or one that already has gates. example: (batch, channel, height, width), as the
    network takes it; at most its first two images are run, in eval mode, to learn the shapes.
    """
    model = unwrapped(model)
    check_example(model, example)
    if isinstance(model, torch.jit.ScriptModule):
        raise SurgeryError("the network is a ScriptModule; give the torch.nn.Module that it was made from")
    try:
        twin = copy.deepcopy(model)
    except Exception as error:
        raise SurgeryError(
            f"{type(model).__name__} cannot be copied ({error}); surgery works on a copy"
        ) from error
    traced = twin if isinstance(twin, fx.GraphModule) else capture(twin)
    carry(model, traced)
    annotate_shapes(traced, example)
    return traced


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, if it was given as torch.compile's wrapper around it."""
    return getattr(model, "_orig_mod", model)


def check_example(model: nn.Module, example: Tensor) -> None:
    """Refuse an example that cannot be one batch of images for `model`."""
    if not isinstance(example, Tensor):
        raise InputError(
            f"example: expected a tensor (batch, channel, height, width), got {type(example).__name__}"
        )
    if example.ndim != 4 or 0 in example.shape:
        raise InputError(
            "example: expected one batch of images, (batch, channel, height, width), "
            f"got shape {tuple(example.shape)}"
        )
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return
    if example.dtype != weight.dtype:
        raise InputError(
            f"example: its type is {example.dtype} and the network's weights are {weight.dtype}; "
            f"give it as the network takes it, for instance example.to({weight.dtype})"
        )
    if example.device != weight.device:
        raise InputError(
            f"example: it is on {example.device} and the network is on {weight.device}; move one to the other"
        )


def capture_notes(traced: fx.GraphModule) -> tuple[str, ...]:
    """What the capture could not keep, in words; usually empty."""
    return traced.meta.get(NOTES, ())


def opaque_modules(traced: fx.GraphModule) -> dict[str, str]:
    """Submodules that torch.fx could not look into, each with the reason."""
    return traced.meta.get(OPAQUE, {})


class _ShapeRecorder(fx.Interpreter):
    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=True)
        self.extra_traceback = False
        self.at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.at = n
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def annotate_shapes(traced: fx.GraphModule, example: Tensor) -> None:
    """Run `example` once, in eval mode, and write each value's shape into ``node.meta["shape"]``."""
    recorder = _ShapeRecorder(traced)
    devices = [example.device] if example.device.type == "cuda" else []
    try:
        _check_channels(traced, example)
        with eval_mode(traced), torch.no_grad(), torch.random.fork_rng(devices=devices):
            recorder.run(example[:_EXAMPLE_SAMPLES])
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        where = "" if recorder.at is None else f" at {place_of(recorder.at)}"
        raise InputError(
            f"example: the network does not run on shape {tuple(example.shape)}; it stopped{where}: "
            f"{reason}. "
            "Give one batch of the size the network is made for"
        ) from error
    finally:
        for _, layer in gated_layers(traced):
            layer.saliency = layer.gains = None


def _check_channels(traced: fx.GraphModule, example: Tensor) -> None:
    for node in traced.graph.nodes:
        if node.op != "call_module" or not node.args or getattr(node.args[0], "op", "") != "placeholder":
            continue
        module = traced.get_submodule(str(node.target))
        conv = module.conv if isinstance(module, GatedConv2d) else module
        if isinstance(conv, nn.Conv2d) and conv.in_channels != example.shape[1]:
            raise InputError(
                f"example: its shape {tuple(example.shape)} has {example.shape[1]} channels, and "
                f"the network's first convolution {node.target!r} expects {conv.in_channels}"
            )
