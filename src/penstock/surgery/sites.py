"""Where gates can go: a traced network in, one verdict for every convolution out.

A convolution can be gated if the zeros of its suppressed channels survive up to an activation with f(0) = 0
or to the next layer with weights: conv→norm→activation, conv→norm→add→activation, conv with a bias and no
norm, with dropout and pooling in between. Every other convolution gets a reason, in words a user can act on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.nn.modules.conv import _ConvNd

from penstock.gating import layers_matching
from penstock.surgery.operators import Kind, kind_of, module_of, shape_of, use_of
from penstock.surgery.operators.layers import is_plain
from penstock.surgery.trace import opaque_modules


@dataclass(frozen=True)
class Site:
    """A convolution that can be gated, with the batch norm that goes into the gate."""

    conv: fx.Node
    norm: fx.Node | None


@dataclass(frozen=True)
class Verdict:
    """One convolution: a site for a gate, or the reason why it is left alone."""

    name: str
    conv: _ConvNd
    output_shape: tuple[int, ...] | None  # (batch, channel, height, width), None if it never runs
    site: Site | None
    reason: str


def find_sites(traced: fx.GraphModule, original: nn.Module, keep_dense: Sequence[str] = ()) -> list[Verdict]:
    """A verdict for every convolution of `original` (the network before tracing, for those that never run).

    keep_dense: names or patterns (``layer4.*``) of convolutions to leave alone; one that matches none is an
    error.
    """
    runs = {str(node.target): node for node in traced.graph.nodes if isinstance(module_of(node), _ConvNd)}
    convs = {name: module for name, module in original.named_modules() if isinstance(module, _ConvNd)}
    kept = _matches(keep_dense, convs)
    calls = Counter(id(module_of(node)) for node in traced.graph.nodes if node.op == "call_module")
    owners = Counter(id(p) for m in traced.modules() for p in m.parameters(recurse=False))
    ordered = [name for name in runs if name in convs] + [name for name in convs if name not in runs]
    verdicts = []
    for name in ordered:
        node = runs.get(name)
        shape = None if node is None else shape_of(node)
        conv = convs[name] if node is None else module_of(node)
        assert isinstance(conv, _ConvNd)
        site, reason = None, _refuse_module(name, conv, node, kept, calls, owners, traced)
        if not reason:
            assert node is not None
            norm, reason = _norm_after(node, calls, owners)
            reason = reason or _fate(norm or node)
            site = None if reason else Site(node, norm)
        verdicts.append(Verdict(name, conv, shape, site, reason))
    return verdicts


def _matches(keep_dense: Sequence[str], convs: dict[str, _ConvNd]) -> dict[str, str]:
    patterns = (keep_dense,) if isinstance(keep_dense, str) else tuple(keep_dense)
    kept = {}
    for pattern in patterns:
        kept.update(dict.fromkeys(layers_matching(pattern, convs, "convolution"), pattern))
    return kept


def _refuse_module(
    name: str,
    conv: _ConvNd,
    node: fx.Node | None,
    kept: dict[str, str],
    calls: Counter[int],
    owners: Counter[int],
    traced: fx.GraphModule,
) -> str:
    """Why this convolution cannot be gated whatever follows it, or an empty string."""
    if name in kept:
        return f"kept dense on request ({kept[name]!r})"
    if node is None:
        for opaque, why in opaque_modules(traced).items():
            if name == opaque or name.startswith(f"{opaque}."):
                return f"inside {opaque!r}, which torch.fx cannot trace ({why})"
        return "never runs on its own: it is not called in the traced forward"
    if not isinstance(conv, nn.Conv2d) or not is_plain(conv):
        return f"{type(conv).__name__} is not a plain Conv2d"
    if hasattr(conv, "parametrizations") or conv._forward_pre_hooks or conv._forward_hooks:
        return "its weight is parametrised or it has hooks, which a gate would cut off"
    if calls[id(conv)] > 1:
        return f"it runs {calls[id(conv)]} times in one forward: one gate cannot serve two inputs"
    if owners[id(conv.weight)] > 1:
        return "it shares its weight with another layer"
    if conv.groups > 1 and conv.groups == conv.in_channels:
        return "depthwise: each output reads one input, so there is nothing to choose"
    shape, source = shape_of(node), shape_of(node.all_input_nodes[0])
    if shape is None or source is None or len(shape) != 4:
        return "its input is one image without a batch axis"
    # MACs of the convolution over MACs of its predictor: k²·C_in/groups·C_out·H·W over C_in·C_out.
    if conv.kernel_size[0] * conv.kernel_size[1] * shape[2] * shape[3] <= conv.groups:
        return f"its output map is {shape[2]}x{shape[3]}: a gate would cost as much as the convolution"
    return ""


def _norm_after(conv: fx.Node, calls: Counter[int], owners: Counter[int]) -> tuple[fx.Node | None, str]:
    """The batch norm to take into the gate (None if there is none), and a reason if it cannot be taken."""
    norms = [user for user in conv.users if kind_of(user) is Kind.NORM]
    if not norms:
        return None, ""
    norm = module_of(norms[0])
    assert norm is not None
    name = norms[0].target
    if len(conv.users) > 1:
        return None, f"its output is used before its norm {name!r}, by another step too"
    if type(norm) not in (nn.BatchNorm2d, SyncBatchNorm):
        return None, f"its norm {name!r} is a {type(norm).__name__}, not a plain BatchNorm2d"
    if calls[id(norm)] > 1:
        return None, f"its norm {name!r} is shared: it runs {calls[id(norm)]} times in one forward"
    if any(owners[id(parameter)] > 1 for parameter in norm.parameters(recurse=False)):
        return None, f"its norm {name!r} shares its parameters with another layer"
    return norms[0], ""


_HARMLESS = frozenset(
    {Kind.PASS, Kind.MOVE, Kind.MULTIPLY, Kind.CONCAT, Kind.SELECT, Kind.REDUCE, Kind.SIZE, Kind.PAD}
)


def _fate(start: fx.Node) -> str:
    """Why the zeros leaving `start` would be lost or reach the network's output; empty if all is well.

    Every path is followed up to the next layer with weights. Before an activation nothing on it may turn a
    zero channel into something else; after one, a suppressed channel has had its effect and anything may
    follow.
    """
    seen: set[tuple[fx.Node, fx.Node, bool]] = set()
    waiting = [(start, user, False) for user in start.users]
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        source, node, activated = step
        kind = kind_of(node)
        if kind is Kind.OUTPUT:
            return "its output reaches the network's output with no other layer with weights in between"
        if kind in (Kind.WEIGHT, Kind.GATED):
            continue
        if not activated and _only_scales(node, source):
            continue  # the product stands among the source's users, and is walked from there
        if not activated:
            if kind is Kind.ADD and not _adds_features(node):
                return f"{_describe(node)} adds a constant to it, so a suppressed channel would not stay zero"
            if kind not in _HARMLESS and kind not in (Kind.ACTIVATION, Kind.ADD):
                return f"{_describe(node)} follows, which does not keep a suppressed channel at zero"
        waiting.extend((node, user, activated or kind is Kind.ACTIVATION) for user in node.users)
    return ""


def _only_scales(node: fx.Node, source: fx.Node) -> bool:
    """Whether all that comes of `node` is multiplied onto `source` again, as in ``x * sigmoid(x)``."""
    if not node.users or kind_of(node) in (Kind.WEIGHT, Kind.GATED, Kind.OUTPUT):
        return False
    return all(
        source in user.all_input_nodes
        if kind_of(user) is Kind.MULTIPLY
        else len(user.all_input_nodes) == 1 and _only_scales(user, source)
        for user in node.users
    )


def _adds_features(node: fx.Node) -> bool:
    """Whether both summands are computed from the input (a residual sum), not a number or a parameter."""
    operands = node.args[:2]
    return len(operands) == 2 and all(
        isinstance(operand, fx.Node) and kind_of(operand) is not Kind.CONSTANT for operand in operands
    )


def _describe(node: fx.Node) -> str:
    title = use_of(node).title
    return f"{title} {node.target!r}" if node.op == "call_module" else title
