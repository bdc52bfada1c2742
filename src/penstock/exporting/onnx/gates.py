"""The gated convolution in standard operators, really skipping or masked.

    g = Relu(ss(x)·φ + ρ)                    the rows of φ of the channels that are there
    π, winners = TopK(g, k),  k = ⌈d·C⌉      k is worked out in the graph, from the density input
    y = Conv(x, θ[winners, stored], β[winners]) · π

A threshold τ zeroes the gains of winners that are not above it and, in the skipping form, cuts them off the
list (all but one, since a tensor may not be empty).

The skipping form takes one image. θ and β have the batch norm folded in. A winner whose saliency is 0 is
computed and then multiplied by 0, as in PyTorch. A grouped convolution cannot be cut along both axes with a
plain Conv, so it runs dense and only its winners are passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn

from penstock.errors import LayerError
from penstock.exporting.onnx.call import Unsupported
from penstock.exporting.onnx.graph import GraphWriter, Value
from penstock.exporting.onnx.layers import convolve
from penstock.exporting.onnx.lists import ChannelLists
from penstock.gating import Folded, GatedConv2d, fold_norm, level_edges, winner_count
from penstock.surgery import Dense, Gate
from penstock.surgery.operators.layers import reads_pixels_alone

# The density input is a float32: 0.55 arrives as 0.55000001, which must not buy one more of 100 channels. The
# errors of input, difference and product are below 1.5e-7 together.
_FLOAT32_ROUNDING = 2e-7
# Below this many output pixels, cutting the weights costs more than it saves.
_FEW_POSITIONS = 16


@dataclass
class Densities:
    """How many winners each layer has: fixed, or from the density input.

    given: the name of the density input, or None for a fixed density. A given density that is not above 0
    (or is NaN) stands for the layer's own.
    """

    writer: GraphWriter
    given: str | None
    fixed: float | None = None
    _counts: dict[tuple[int, float], str] = field(default_factory=dict)
    _levels: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)

    def count(self, layer: GatedConv2d) -> str:
        """int64 (1,): k of this layer."""
        w, channels = self.writer, layer.conv.out_channels
        own = self.own(layer)
        if self.given is None:
            return w.ints(winner_count(own, channels))
        key = (channels, own)
        if key not in self._counts:
            with w.scope("density"):
                asked = w.op("Reshape", self.given, w.ints(1))
                chosen = w.op("Where", w.op("Greater", asked, w.number(0.0)), asked, w.number(own))
                share = w.op("Sub", w.op("Min", chosen, w.number(1.0)), w.number(_FLOAT32_ROUNDING))
                count = w.op("Cast", w.op("Ceil", w.op("Mul", share, w.number(channels))), to=7)  # int64
                low, high = (w.constant(np.array(bound, np.int64)) for bound in (1, channels))
                self._counts[key] = w.op("Clip", count, low, high)
        return self._counts[key]

    def own(self, layer: GatedConv2d) -> float:
        """The density of a layer while none is given at run time."""
        return layer.density if self.fixed is None else self.fixed

    def row(self, layer: GatedConv2d, table: Tensor, name: str) -> str:
        """(channels,): what the level that serves the layer's count has in a table (level, channels)."""
        w, edges = self.writer, level_edges(layer.levels, layer.conv.out_channels)
        if not edges:
            return w.constant(table[0].float(), name)
        if self.given is None:
            count = winner_count(self.own(layer), layer.conv.out_channels)
            return w.constant(table[sum(count > edge for edge in edges)].float(), name)
        key = (self.count(layer), tuple(edges))
        if key not in self._levels:
            passed = w.op("Cast", w.op("Greater", key[0], w.ints(*edges)), to=7)  # int64
            self._levels[key] = w.reduce("ReduceSum", passed, (0,), keepdims=False)
        return w.op("Gather", w.constant(table.float(), name), self._levels[key], axis=0)


class Gates:
    """Writes gated layers; `lists` gets the winners of each. ranked: the most salient winner first.

    shortens: lists end where a threshold says; otherwise the density alone gives their length.
    """

    def __init__(
        self,
        writer: GraphWriter,
        lists: ChannelLists,
        densities: Densities,
        ranked: bool = False,
        shortens: bool = True,
    ) -> None:
        self.ranked = ranked
        self.shortens = shortens
        self.writer = writer
        self.lists = lists
        self.densities = densities
        self.winners: dict[str, str] = {}  # {layer: the tensor with the channels it chose}
        self.fixed_counts: dict[str, int] = {}  # {layer: its number of winners}, if the density is fixed
        self._summaries: dict[tuple[str, str], str] = {}
        self._left_out: dict[str, str] = {}

    def skipping(self, name: str, layer: GatedConv2d, x: Value, shape: tuple[int, ...], relu: bool) -> Value:
        """One image; the result holds the winners alone. relu: a ReLU follows, so it may come first."""
        w, conv = self.writer, layer.conv
        x = self.readable(conv, x, shape)
        gains, chosen = self._choose(name, layer, x)
        if layer.threshold is not None and self.shortens:
            gains, chosen = self._shortened(gains, chosen)
        winners = w.op("Reshape", chosen, w.ints(-1))
        self.winners[name] = winners
        if self.densities.given is None and (layer.threshold is None or not self.shortens):
            self.fixed_counts[name] = winner_count(self.densities.own(layer), conv.out_channels)
        gate = Gate(name, conv.out_channels)
        self.lists.set_winners(gate, winners)
        folded = _folded(layer)
        weight, bias = folded.weight.float(), self.densities.row(layer, folded.bias, "bias")
        bias = self.with_constants(x, weight, bias)
        if layer.levels:
            factors = self.densities.row(layer, folded.gain, "level_gain")
            gains = w.op("Mul", gains, w.op("Gather", factors, winners))
        scale = w.op("Reshape", gains, w.ints(1, -1, 1, 1))
        if conv.groups > 1:
            dense = self.lists.relayout(x, Dense(conv.in_channels))
            everything = convolve(w, conv, dense.name, w.constant(weight, "weight"), bias)
            features = w.op("Gather", everything, winners, axis=1)
        else:
            own = w.op("Gather", bias, winners)
            source, kernel = self._cut_weight(conv, weight, x, shape, winners)
            features = convolve(w, conv, source, kernel, own)
        if relu:  # π ≥ 0, so relu(π·y) = π·relu(y), and runtimes fuse Conv with Relu
            features = w.op("Relu", features)
        return Value(w.op("Mul", features, scale), shape, gate, nonnegative=relu)

    def masked(self, name: str, layer: GatedConv2d, x: Value, shape: tuple[int, ...], relu: bool) -> Value:
        """Any batch: everything is computed, and the losers are multiplied by 0."""
        w, conv = self.writer, layer.conv
        kept, chosen = self._choose(name, layer, x)
        self.winners[name] = chosen
        none = w.op("ConstantOfShape", w.op("Concat", self._batch(x), w.ints(conv.out_channels), axis=0))
        gains = w.op("ScatterElements", none, chosen, kept, axis=1)
        folded = _folded(layer)
        bias = self.densities.row(layer, folded.bias, "bias")
        if layer.levels:
            gains = w.op("Mul", gains, self.densities.row(layer, folded.gain, "level_gain"))
        features = convolve(w, conv, x.name, w.constant(folded.weight.float(), "weight"), bias)
        if relu:
            features = w.op("Relu", features)
        scaled = w.op("Mul", features, w.op("Unsqueeze", gains, w.ints(2, 3)))
        return Value(scaled, shape, Dense(conv.out_channels), nonnegative=relu)

    def readable(self, conv: nn.Conv2d, x: Value, shape: tuple[int, ...]) -> Value:
        """The input of a convolution: laid out whole if it holds constants that the kernel cannot take."""
        takes = reads_pixels_alone(conv) and shape[2] * shape[3] >= _FEW_POSITIONS
        return x if x.fill is None or takes else self.lists.relayout(x, Dense(conv.in_channels))

    def with_constants(self, x: Value, weight: Tensor, bias: str) -> str:
        """The bias of a 1×1 convolution together with the part of the input's constants."""
        if x.fill is None:
            return bias
        w = self.writer
        matrix = w.constant(weight[:, :, 0, 0].t().contiguous(), "weight")
        return w.op("Add", bias, w.op("Reshape", w.op("MatMul", self._constants(x), matrix), w.ints(-1)))

    def _constants(self, x: Value) -> str:
        """(1, C): the constants of the channels that are not stored, 0 for the others."""
        assert x.fill is not None
        if x.name not in self._left_out:
            w = self.writer
            listed = self.lists.indices(x.stored)
            none = w.op("ConstantOfShape", w.op("Shape", listed))
            flat = w.op("ScatterElements", w.op("Reshape", x.fill, w.ints(-1)), listed, none)
            self._left_out[x.name] = w.op("Unsqueeze", flat, w.ints(0))
        return self._left_out[x.name]

    def _summary_of_constants(self, x: Value, kind: str) -> str | None:
        """ss of channels that hold one constant, (1, C); their variance is 0."""
        if x.fill is None or kind == "variance":
            return None
        w, positions = self.writer, float(x.shape[2] * x.shape[3])
        share = {"l1": 1.0, "l2": positions**-0.5, "linf": 1 / positions}[kind]
        size = w.op("Abs", self._constants(x))
        return size if kind == "l1" else w.op("Mul", size, w.number(share))

    def cut_inputs(
        self, conv: nn.Conv2d, weight: Tensor, x: Value, shape: tuple[int, ...]
    ) -> tuple[str, str]:
        """For a convolution without a gate: its input and the weight of the channels that are there."""
        return self._cut_weight(conv, weight, x, shape, None)

    def _choose(self, name: str, layer: GatedConv2d, x: Value) -> tuple[str, str]:
        """TopK of the saliencies: gains (batch, k) and channels (batch, k)."""
        w = self.writer
        everything = predictor = w.constant(layer.gate.weight, "phi")
        if x.compact:
            predictor = w.op("Gather", predictor, self.lists.indices(x.stored), axis=0)
        summary = self._summary(x, layer.gate.summary)
        by_level = layer.gate.bias.reshape(-1, layer.conv.out_channels)
        rho = self.densities.row(layer, by_level, "rho")
        constants = self._summary_of_constants(x, layer.gate.summary)
        if constants is not None:
            rho = w.op("Add", rho, w.op("MatMul", constants, everything))
        saliency = w.op("Relu", w.op("Gemm", summary, predictor, rho))
        count = self.densities.count(layer)
        # TopK gives ties to the lower index, sorted or not, so it sorts only where the order is read.
        settings = {"axis": 1, "largest": 1, "sorted": int(self.ranked or layer.threshold is not None)}
        gains, chosen = w.op_with("TopK", (saliency, count), 2, **settings)
        if layer.threshold is not None:
            above = w.op("Greater", gains, w.number(float(layer.threshold)))
            gains = w.op("Where", above, gains, w.number(0.0))
        return gains, chosen

    def _shortened(self, gains: str, chosen: str) -> tuple[str, str]:
        """Without the winners whose gain is 0, which stand at the end; at least one stays."""
        w = self.writer
        salient = w.op("Cast", w.op("Greater", gains, w.number(0.0)), to=7)  # int64
        count = w.op("Max", w.reduce("ReduceSum", salient, (1,), keepdims=False), w.ints(1))
        gains, chosen = (w.op("Slice", part, w.ints(0), count, w.ints(1)) for part in (gains, chosen))
        return gains, chosen

    def _summary(self, x: Value, kind: str) -> str:
        """ss(x): (batch, stored channel); two layers that read one value share it."""
        key = (x.name, kind)
        if key not in self._summaries:
            w, positions = self.writer, float(x.shape[2] * x.shape[3])
            size = x.name if x.nonnegative or kind in ("l2", "variance") else w.op("Abs", x.name)
            if kind == "l1":
                found = w.reduce("ReduceMean", size, (2, 3), keepdims=False)
            elif kind == "l2":
                found = w.op("Div", w.reduce("ReduceL2", size, (2, 3), False), w.number(positions))
            elif kind == "linf":
                found = w.op("Div", w.reduce("ReduceMax", size, (2, 3), False), w.number(positions))
            else:
                apart = w.op("Sub", size, w.reduce("ReduceMean", size, (2, 3), keepdims=True))
                spread = w.reduce("ReduceMean", w.op("Mul", apart, apart), (2, 3), False)
                found = w.op("Div", spread, w.number(positions))
            self._summaries[key] = found
        return self._summaries[key]

    def _cut_weight(
        self, conv: nn.Conv2d, weight: Tensor, x: Value, shape: tuple[int, ...], winners: str | None
    ) -> tuple[str, str]:
        """The input as the convolution reads it, and the weight cut to stored inputs and chosen outputs."""
        w = self.writer
        if x.compact and shape[2] * shape[3] < _FEW_POSITIONS:
            x = self.lists.relayout(x, Dense(conv.in_channels))
        if not x.compact:
            kernel = w.constant(weight, "weight")
            return x.name, kernel if winners is None else w.op("Gather", kernel, winners, axis=0)
        stored = self.lists.indices(x.stored)
        if conv.kernel_size == (1, 1):
            # Picking single numbers out of rows is slow; whole rows twice, with a transpose in between, was
            # 1.1 to 2.8 times faster in ONNX Runtime (docs/onnx.md).
            rows = w.op("Gather", w.constant(weight[:, :, 0, 0].t().contiguous(), "weight"), stored, axis=0)
            rows = w.op("Transpose", rows, perm=[1, 0])
            rows = rows if winners is None else w.op("Gather", rows, winners, axis=0)
            return x.name, w.op("Unsqueeze", rows, w.ints(2, 3))
        kernel = w.constant(weight, "weight")
        if winners is not None:
            kernel = w.op("Gather", kernel, winners, axis=0)
        return x.name, w.op("Gather", kernel, stored, axis=1)

    def _batch(self, x: Value) -> str:
        w = self.writer
        return w.op("Slice", w.op("Shape", x.name), w.ints(0), w.ints(1))


def _folded(layer: GatedConv2d) -> Folded:
    try:
        return fold_norm(layer)
    except LayerError as error:
        raise Unsupported(str(error)) from error
