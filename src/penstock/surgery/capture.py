"""Capture: the torch.fx tracing behind `trace`: a network in, its graph out, true in train and in eval mode.

fx evaluates Python once, so whatever depends on ``self.training`` would be frozen in its current mode. The
network is therefore traced in both modes, and what differs is turned back into modules that follow the mode.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from penstock.errors import SurgeryError
from penstock.surgery.network import TracedNetwork
from penstock.surgery.operators import Kind, use_of, use_of_module
from penstock.surgery.operators.moving import DROPOUT, DROPOUT2D, IDENTITY

NOTES = "penstock.notes"  # tuple[str, ...]: what the user should know about the capture
OPAQUE = "penstock.opaque"  # {module name: why torch.fx could not look inside}
_LEAVES = (Kind.GATED, Kind.WEIGHT, Kind.NORM)


def capture(model: nn.Module) -> fx.GraphModule:
    """The network as a graph of its own modules, which are taken over (give a copy)."""
    opaque: dict[str, str] = {}
    modes = {name: module.training for name, module in model.named_modules()}
    graph = _trace_graph(model, opaque)
    _refuse_if_all_is_opaque(model, opaque)
    for module in model.modules():
        module.training = not module.training
    try:
        other: fx.Graph | None = _trace_graph(model, dict(opaque))
    except SurgeryError:
        other = None
    for name, module in model.named_modules():
        module.training = modes[name]
    notes = _untie_from_mode(model, graph, other)
    _split_fused_norms(model, graph)
    traced = TracedNetwork(model, graph, class_name=type(model).__name__)
    for name, module in traced.named_modules():  # fx makes the containers anew, in train mode
        module.training = modes.get(name, module.training)
    traced.meta[NOTES] = notes
    traced.meta[OPAQUE] = opaque
    return traced


class _Tracer(fx.Tracer):
    def __init__(self, opaque: dict[str, str]) -> None:
        super().__init__()
        self.opaque = opaque
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.opaque or use_of_module(m).operator.kind in _LEAVES:
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
    # Such a module (stochastic depth, say) would be frozen in its current mode if it were traced through.
    if any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False)):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


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


def _refuse_if_all_is_opaque(model: nn.Module, opaque: dict[str, str]) -> None:
    convs = [name for name, module in model.named_modules() if isinstance(module, _ConvNd)]
    inside = [any(f"{name}.".startswith(f"{path}.") for path in opaque) for name in convs]
    if convs and all(inside):
        path, why = next(iter(opaque.items()))
        raise SurgeryError(
            f"torch.fx cannot trace {path!r} of {type(model).__name__}, which holds the convolutions: {why}. "
            "Move that step into a submodule without convolutions, or write it so that Python control flow "
            "does not depend on tensor values or shapes"
        )


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


def _untie_from_mode(model: nn.Module, graph: fx.Graph, other: fx.Graph | None) -> tuple[str, ...]:
    """Turn functional dropout that follows ``self.training`` into dropout modules, which keep following it.

    `other` is the same network traced in the other mode; where only the `training` flags differ, they come
    from ``self.training``.
    """
    pairs = [] if other is None else list(zip(graph.nodes, other.nodes, strict=False))
    same = other is not None and len(graph.nodes) == len(other.nodes)
    same = same and all(one.op == two.op and one.target == two.target for one, two in pairs)
    if not same:
        now = "train" if model.training else "eval"
        return (
            "the network's forward differs between train and eval mode; "
            f"captured is what it does in {now} mode",
        )
    for node, twin in pairs:
        use = use_of(node)
        same_mode = node.kwargs.get("training") == twin.kwargs.get("training")
        if same_mode or node.op != "call_function" or use.operator not in (DROPOUT, DROPOUT2D):
            continue
        name = f"{node.name}_module"
        while hasattr(model, name):
            name += "_"
        module = use.operator.modules[0]
        model.add_module(name, module(use.setting("p"), bool(use.setting("inplace"))))
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
            if part is None or use_of_module(part).operator is IDENTITY:
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
