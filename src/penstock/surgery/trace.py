"""Capture: a network and an example in, a traced copy out (torch.fx), every node with the shape of its value.

The copy is deep: the user's network keeps its weights, statistics and mode. Module names stay as they were
(``layer1.0.conv1``), so state dicts, densities by name and reports all speak the user's language. A submodule
that torch.fx cannot trace is kept whole, as one node; only a network that cannot be traced at its outermost
level is refused.
"""

from __future__ import annotations

import copy
import inspect
import linecache
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.errors import InputError, SurgeryError
from penstock.gating import GatedConv2d
from penstock.surgery.network import TracedNetwork, carry

_NOTES = "penstock.notes"  # tuple[str, ...]: what the user should know about the capture
_OPAQUE = "penstock.opaque"  # {module name: why torch.fx could not look inside}
_LEAVES = (GatedConv2d, _ConvNd, nn.Linear, _BatchNorm)
_EXAMPLE_SAMPLES = 2  # enough for batch norms without running statistics, cheap for any image size


def trace(model: nn.Module, example: Tensor) -> fx.GraphModule:
    """A traced deep copy of `model`; ``node.meta["shape"]`` of each node is a tuple, or None if not a tensor.

    model: a plain network, or one that already has gates. example: (batch, channel, height, width), as the
    network takes it; at most its first two images are run, in eval mode, to learn the shapes.
    """
    check_example(model, example)
    traced = copy.deepcopy(model) if isinstance(model, fx.GraphModule) else _capture(copy.deepcopy(model))
    carry(model, traced)
    annotate_shapes(traced, example)
    return traced


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


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of the node's value, or None for what is not one tensor."""
    if "shape" not in node.meta:
        raise SurgeryError(
            f"node {node.name!r} carries no shape; run penstock.surgery.trace(network, example) first"
        )
    return node.meta["shape"]


def capture_notes(traced: fx.GraphModule) -> tuple[str, ...]:
    """What the capture could not keep, in words; usually empty."""
    return traced.meta.get(_NOTES, ())


def opaque_modules(traced: fx.GraphModule) -> dict[str, str]:
    """Submodules that torch.fx could not look into, each with the reason."""
    return traced.meta.get(_OPAQUE, {})


class _Tracer(fx.Tracer):
    def __init__(self, opaque: dict[str, str]) -> None:
        super().__init__()
        self.opaque = opaque
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.opaque or isinstance(m, _LEAVES):
            return True
        return _reads_its_mode(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed is None:  # the innermost module gets here first
                self.failed = self.path_of_module(m)
            raise

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # Optional inputs (`targets=None`) take their defaults: a proxy is never None and would take the
        # wrong branch.
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        parameters = list(inspect.signature(root_fn).parameters.values())
        if len(parameters) != len(args):
            return function, args  # *args or **kwargs: leave it to fx
        for place, parameter in enumerate(parameters[2:], start=2):
            if parameter.default is inspect.Parameter.empty:
                raise SurgeryError(
                    f"{type(self.root).__name__}.forward takes more than one input ({parameter.name!r} has "
                    "no default); wrap it in a module whose forward takes the images alone"
                )
            self.graph.erase_node(args[place].node)
            args[place] = parameter.default
        return function, args


def _reads_its_mode(module: nn.Module) -> bool:
    # Such a module (stochastic depth, say) would be frozen in today's mode if it were traced through.
    if any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False)):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


def _capture(model: nn.Module) -> fx.GraphModule:
    opaque: dict[str, str] = {}
    modes = {name: module.training for name, module in model.named_modules()}
    graph = _trace_graph(model, opaque)
    for module in model.modules():
        module.training = not module.training
    other = _trace_graph(model, opaque)
    for name, module in model.named_modules():
        module.training = modes[name]
    notes = _untie_from_mode(model, graph, other)
    _split_fused_norms(model, graph)
    traced = TracedNetwork(model, graph, class_name=type(model).__name__)
    for name, module in traced.named_modules():  # fx makes the containers anew, in train mode
        module.training = modes.get(name, module.training)
    traced.meta[_NOTES] = notes
    traced.meta[_OPAQUE] = opaque
    return traced


def _trace_graph(model: nn.Module, opaque: dict[str, str]) -> fx.Graph:
    while True:
        tracer = _Tracer(opaque)
        try:
            return tracer.trace(model)
        except SurgeryError:
            raise
        except Exception as error:
            where = _source_line(error)
            if not tracer.failed or tracer.failed in opaque:
                raise SurgeryError(
                    f"torch.fx cannot trace {type(model).__name__}: {where}: {error}. Move that step "
                    "into a submodule of its own (one that cannot be traced is kept whole), or write it so "
                    "that Python control flow does not depend on tensor values or shapes"
                ) from error
            opaque[tracer.failed] = f"{where}: {error}"


def _source_line(error: BaseException) -> str:
    """The line of the user's own source at which tracing stopped."""
    torch_home = str(Path(torch.__file__).parent)
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((torch_home, __file__))
    ]
    if not frames:
        return "in torch itself"
    frame = frames[-1]
    text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return f"{Path(frame.filename).name} line {frame.lineno}, `{text}`"


def _untie_from_mode(model: nn.Module, graph: fx.Graph, other: fx.Graph) -> tuple[str, ...]:
    """Turn functional dropout that follows ``self.training`` into dropout modules, which keep following it.

    `other` is the same network traced in the other mode; where only the `training` flags differ, they come
    from ``self.training``.
    """
    pairs = list(zip(graph.nodes, other.nodes, strict=False))
    same = len(graph.nodes) == len(other.nodes) and all(
        a.op == b.op and a.target == b.target for a, b in pairs
    )
    if not same:
        now = "train" if model.training else "eval"
        return (
            "the network's forward differs between train and eval mode; "
            f"captured is what it does in {now} mode",
        )
    kinds = {nn.functional.dropout: nn.Dropout, nn.functional.dropout2d: nn.Dropout2d}
    for node, twin in pairs:
        if node.kwargs.get("training") == twin.kwargs.get("training") or node.target not in kinds:
            continue
        name = f"{node.name}_module"
        while hasattr(model, name):
            name += "_"
        probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
        model.add_module(name, kinds[node.target](probability, bool(node.kwargs.get("inplace", False))))
        getattr(model, name).training = model.training
        with graph.inserting_after(node):
            call = graph.call_module(name, (node.args[0] if node.args else node.kwargs["input"],))
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    return ()


def _split_fused_norms(model: nn.Module, graph: fx.Graph) -> None:
    """A batch norm with an activation built in (timm's BatchNormAct2d) becomes norm, dropout, activation.

    The norm keeps its name; the others are its children, as they already are in timm.
    """
    modules = dict(model.named_modules())
    for node in list(graph.nodes):
        module = modules[str(node.target)] if node.op == "call_module" else None
        parts = {name: getattr(module, name, None) for name in ("drop", "act")}
        if not isinstance(module, nn.BatchNorm2d) or not all(
            isinstance(p, nn.Module) for p in parts.values()
        ):
            continue
        last = node
        for name, part in parts.items():
            if isinstance(part, nn.Identity):
                continue
            with graph.inserting_after(last):
                call = graph.call_module(f"{node.target}.{name}", (last,))
            last.replace_all_uses_with(call)
            call.args = (last,)
            last = call
        model.set_submodule(str(node.target), _plain_norm(module, parts))


def _plain_norm(norm: nn.BatchNorm2d, children: dict[str, Any]) -> nn.BatchNorm2d:
    plain = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    plain.weight, plain.bias = norm.weight, norm.bias
    plain.running_mean, plain.running_var = norm.running_mean, norm.running_var
    plain.num_batches_tracked = norm.num_batches_tracked
    plain.training = norm.training
    for name, child in children.items():
        plain.add_module(name, child)
    return plain


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
    modes = [(module, module.training) for module in traced.modules()]
    recorder = _ShapeRecorder(traced)
    devices = [example.device] if example.device.type == "cuda" else []
    try:
        traced.eval()
        _check_channels(traced, example)
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            recorder.run(example[:_EXAMPLE_SAMPLES])
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        where = "" if recorder.at is None else f" at {_place(recorder.at)}"
        raise InputError(
            f"example: the network does not run on shape {tuple(example.shape)}; it stopped{where}: "
            f"{reason}. "
            "Give one batch of the size the network is made for"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
            if isinstance(module, GatedConv2d):
                module.saliency = module.gains = None


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


def _place(node: fx.Node) -> str:
    return f"layer {node.target!r}" if node.op == "call_module" else f"step {node.name!r}"
