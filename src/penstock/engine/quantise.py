"""Which values become codes, with what scales, and which steps stay in float32 (docs/int8.md).

Enters: a fused `Network` and the ranges of its steps. Leaves: the same network with `codes` on values that
are kept as bytes, int8 weights on convolutions between them, and conversions where the two kinds meet.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from penstock.engine.steps import (
    AFTER_CONV,
    AdaptivePool,
    Add,
    Affine,
    Codes,
    Concat,
    Conv,
    Export,
    Import,
    Linear,
    Network,
    Pack,
    Pool,
    QuantisedWeights,
    Scale,
    Step,
)
from penstock.errors import CompileError
from penstock.gating import layers_matching
from penstock.quantizing import Ranges

_RECTIFIED = frozenset({"relu", "relu6"})
_POSITIVE = frozenset({"relu", "relu6", "sigmoid", "hardsigmoid"})
_FOLLOWS = (Pool, Add, Concat, Affine, Scale)
_FEWEST = 5  # a quantised map other than the image has at least this many channels
_MOST_TAPS = 256
_LEAST, _MOST = 1e-15, 1e15  # scales, as kernels/run/program.cpp accepts them


def quantise(network: Network, ranges: Ranges, keep_float: Collection[str] = ()) -> dict[str, str]:
    """Make `network` an int8 network, in place. Returns {step that stays in float32: why}.

    keep_float: names or patterns of layers that shall stay in float32.
    """
    return _Quantising(network, ranges, keep_float).run()


class _Quantising:
    def __init__(self, network: Network, ranges: Ranges, keep_float: Collection[str]) -> None:
        self.network = network
        self.ranges = ranges
        self.keep_float = keep_float
        self.kept_float: set[str] = set()
        self.readers = network.readers()
        self.makers = {step.output: step for step in network.steps}
        self.why: dict[str, str] = {}
        self.unsigned: set[int] = set()
        self.converted: dict[int, int] = {}

    def run(self) -> dict[str, str]:
        self._check_names()
        for step in self.network.steps:
            if self._never_negative(step):
                self.unsigned.add(step.output)
            reason = self._reason(step)
            if reason is None and step.output >= 0 and self.network.values[step.output].is_map:
                self.network.values[step.output].codes = self._codes(step)
            elif reason:
                self.why[step.name] = reason
        steps: list[Step] = []
        for step in self.network.steps:
            steps += self._convert_inputs(step)
            if isinstance(step, Conv) and self._is_codes(step.output):
                step.quantised = self._weights(step)
            steps.append(step)
        self.network.steps = steps
        return self.why

    def _check_names(self) -> None:
        names = [step.name for step in self.network.steps if isinstance(step, Conv | Linear)]
        for pattern in self.keep_float:
            self.kept_float.update(layers_matching(pattern, names, "layer", "keep_float: "))

    def _is_codes(self, value: int) -> bool:
        return value >= 0 and self.network.values[value].codes is not None

    def _reason(self, step: Step) -> str | None:
        """None if the step works on codes; else why it stays in float32, "" where that needs no words."""
        if isinstance(step, Import):
            takers = self.readers.get(step.output, [])
            fits = takers and all(isinstance(t, Conv) and self._conv_reason(t) is None for t in takers)
            return None if fits else ""
        if isinstance(step, Conv):
            return self._conv_reason(step)
        if isinstance(step, Linear):
            return "linear layers work in float32"
        if isinstance(step, Pack | Export):
            return ""
        if isinstance(step, AdaptivePool):
            if not self._is_codes(step.inputs[0]):
                return ""
            whole = self.network.values[step.output].area == 1 and step.kind == "average"
            return "" if whole else f"adaptive {step.kind} pooling has no int8 form"
        if not isinstance(step, _FOLLOWS):
            return f"{type(step).__name__} has no int8 form"
        value = self.network.values[step.output]
        if not value.is_map:
            return ""
        function = getattr(step, "function", None)
        if function is not None and function.name not in AFTER_CONV:
            return f"{function.name} has no int8 form"
        maps = step.inputs[:1] if isinstance(step, Scale) else step.inputs
        if not all(self._is_codes(source) for source in maps):
            return "what it reads is float32"
        return f"it has fewer than {_FEWEST} channels" if value.channels < _FEWEST else None

    def _conv_reason(self, step: Conv) -> str | None:
        outputs, _, height, width = step.weights.shape
        if step.name in self.kept_float:
            return "keep_float asks for it"
        if outputs < _FEWEST:
            return f"it has fewer than {_FEWEST} output channels"
        source = self.network.values[step.inputs[0]]
        if source.channels < _FEWEST and not isinstance(self.makers[step.inputs[0]], Import):
            return f"it has fewer than {_FEWEST} input channels"
        if height * width > _MOST_TAPS:
            return f"its kernel has more than {_MOST_TAPS} taps"
        if not np.any(step.weights):
            return "its weights are all zero"
        return None

    def _never_negative(self, step: Step) -> bool:
        if isinstance(step, Conv | Add | Affine):
            return step.function.name in _RECTIFIED
        if isinstance(step, Pool | Concat | Pack):
            return all(source in self.unsigned for source in step.inputs)
        if isinstance(step, Scale):
            factors = self.makers[step.inputs[1]]
            function = getattr(factors, "function", None)
            return step.inputs[0] in self.unsigned and function is not None and function.name in _POSITIVE
        return False

    def _codes(self, step: Step) -> Codes:
        """Scale and zero point of the step's result."""
        if isinstance(step, Pool):
            known = self.network.values[step.inputs[0]].codes
            assert known is not None
            return known
        return self._codes_of(step.output, step.name, step.output in self.unsigned)

    def _codes_of(self, value: int, name: str, unsigned: bool) -> Codes:
        largest = self.ranges.largest.get(self.network.values[value].name)
        if largest is None:
            raise CompileError(
                f"layer {name!r}: the calibration knows no range for its result; it was made for another "
                "network. Calibrate this one, or name the layer in keep_float"
            )
        if largest == 0:
            raise CompileError(
                f"layer {name!r}: its result is zero on all {self.ranges.images} calibration images (dead "
                "channels, or images that never reach it), so it has no scale; calibrate with more and "
                "other images, or name the layer in keep_float"
            )
        scale = float(np.float32(largest / (255 if unsigned else 127)))
        if not _LEAST <= scale <= _MOST:
            raise CompileError(
                f"layer {name!r}: its values reach {largest:g} on the calibration images, so its scale would "
                f"be {scale:g}, expected {_LEAST:g} to {_MOST:g}; name the layer in keep_float"
            )
        return Codes(scale, 0 if unsigned else 128)

    def _convert_inputs(self, step: Step) -> list[Step]:
        made: list[Step] = []
        wants_codes = self._is_codes(step.output)
        takes_both = isinstance(step, Export | Pack) or (
            isinstance(step, AdaptivePool) and step.name not in self.why
        )
        for place, source in enumerate(step.inputs):
            if not self.network.values[source].is_map or takes_both or self._is_codes(source) == wants_codes:
                continue
            if source not in self.converted:
                of = self.network.values[source]
                twin = self.network.new_value(of.channels, of.height, of.width, of.name)
                kind = "float32"
                if wants_codes:
                    self.network.values[twin].codes = self._codes_of(
                        source, step.name, source in self.unsigned
                    )
                    kind = "int8"
                made.append(Pack(f"{step.name} (to {kind})", [source], twin))
                self.converted[source] = twin
            step.inputs[place] = self.converted[source]
        return made

    def _weights(self, step: Conv) -> QuantisedWeights:
        source = self.network.values[step.inputs[0]].codes
        assert source is not None
        largest = np.abs(step.weights).reshape(len(step.weights), -1).max(axis=1)
        units = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
        codes = np.rint(step.weights / units[:, None, None, None]).astype(np.int8)
        return QuantisedWeights(codes, (np.float32(source.scale) * units).astype(np.float32))
