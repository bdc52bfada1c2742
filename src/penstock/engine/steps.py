"""What a network does, step by step, before it becomes a program: values and the steps between them.

A value is a feature map of one image (channels × height × width); a vector is a map of 1×1. Weights are
float32 numpy arrays. `lower` makes these from a traced network, `fuse` merges them, `layout` places them in
memory, `encode` writes them down as numbers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# The schema's Activation, which a convolution can apply itself, and Function (kernels/run/schema.h).
AFTER_CONV = frozenset({"none", "relu", "relu6", "silu", "gelu", "hardswish", "leaky_relu"})
FUNCTIONS = AFTER_CONV | {"sigmoid", "hardsigmoid", "tanh", "gelu_tanh", "mish", "softsign", "elu", "selu"}


@dataclass(frozen=True)
class Function:
    """An activation; `slope` belongs to leaky_relu and is elu's alpha; `keeps_zero` says whether f(0) = 0."""

    name: str = "none"
    slope: float = 0.01
    keeps_zero: bool = True


IDENTITY = Function()


@dataclass(frozen=True)
class Codes:
    """How bytes stand for numbers: a code q is scale · (q − zero)."""

    scale: float
    zero: int


class Layout(enum.Enum):
    """How the numbers of a value lie in memory; the names are those of kernels/run/schema.h."""

    PLANES = "planes"  # one channel after the other
    PIXELS = "pixels"  # the channels of a pixel side by side (`engine/lanes.py`)
    VECTOR = "vector"  # one number a channel: 1×1 maps only


@dataclass
class Value:
    """A feature map of one image.

    name: the step of the traced network whose result it is. codes: set where it is kept as bytes. filled:
    channels that are not stored hold constants rather than zeros.
    """

    channels: int
    height: int
    width: int
    name: str = ""
    layout: Layout = Layout.PLANES
    halo: int = 0
    codes: Codes | None = None
    filled: bool = False

    @property
    def is_map(self) -> bool:
        return self.layout is not Layout.VECTOR

    @property
    def in_pixels(self) -> bool:
        return self.layout is Layout.PIXELS

    @property
    def area(self) -> int:
        return self.height * self.width


@dataclass
class Step:
    """One operation: values read, value written, and the name it has in the user's network."""

    name: str
    inputs: list[int]
    output: int


@dataclass
class Import(Step):
    """The image enters."""


@dataclass
class Export(Step):
    """The result leaves; `output` is unused."""


@dataclass
class Levels:
    """What a gated convolution has of its own at each level: bias and a factor for the gains, (level, out).

    edges: the largest number of winners that each level but the last serves.
    """

    bias: Floats
    gain: Floats
    edges: list[int]


@dataclass
class Gates:
    """The predictor of a gated convolution: φ (in, out), ρ (out) or (level, out), which summary.

    threshold: what a winner's saliency is above, if the layer has one; `density` is then its cap.
    """

    phi: Floats
    rho: Floats
    summary: str
    density: float
    levels: Levels | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class QuantisedWeights:
    """int8 (out, in / groups, kh, kw), and what one unit of each output's sum stands for, (out,)."""

    codes: npt.NDArray[np.int8]
    scales: Floats


@dataclass
class Conv(Step):
    """weights (out, in / groups, kh, kw), norm folded in. A second input is added, then `after` applied.

    quantised: the same weights for a convolution from codes to codes. keeps_list: it is depthwise, and what
    its input does not store it does not compute (`penstock.engine.constants`).
    """

    weights: Floats
    bias: Floats | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    function: Function = IDENTITY
    gates: Gates | None = None
    after: Function = IDENTITY
    layer: str | None = None
    quantised: QuantisedWeights | None = None
    keeps_list: bool = False


@dataclass
class ListedConv(Step):
    """A convolution, weights (out, in, kh, kw), at some pixels only (kernels/listed/listed.h).

    pixels: those that are computed, y · width + x; nearest: for every pixel the place in `pixels` of the one
    whose value it has. Both empty: a second input, one map, says where, and multiplies; `shift` is added
    after that.
    """

    weights: Floats
    bias: Floats | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    function: Function = IDENTITY
    shift: Floats | None = None
    pixels: list[int] = field(default_factory=list)
    nearest: list[int] = field(default_factory=list)
    layer: str | None = None


@dataclass
class Pool(Step):
    """Windows of `kernel`; the output's size already tells floor from ceil mode."""

    kind: str  # "max" or "average"
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)
    divisor: int = 0
    count_padding: bool = True


@dataclass
class AdaptivePool(Step):
    """Windows chosen so that the output has its size; 1×1 is global pooling."""

    kind: str


@dataclass
class Add(Step):
    function: Function = IDENTITY


@dataclass
class Concat(Step):
    """Side by side along the channels."""


@dataclass
class Affine(Step):
    """function(x · scale + shift), channel by channel; no scale means 1, no shift means 0.

    In pixels there may be several inputs, which lie side by side (`fuse.join_affines`).
    """

    scale: Floats | None = None
    shift: Floats | None = None
    function: Function = IDENTITY

    @property
    def keeps_zero(self) -> bool:
        return self.shift is None and self.function.keeps_zero


@dataclass
class Scale(Step):
    """The first input times the second, one factor a channel."""


@dataclass
class Linear(Step):
    """weights (out, in): y = function(W x + b), x flattened channel by channel."""

    weights: Floats
    bias: Floats
    function: Function = IDENTITY
    layer: str | None = None


@dataclass
class Pack(Step):
    """The same numbers in another layout or number type: planes, pixels, a packed vector, codes."""


@dataclass
class Spread(Step):
    """The same value with every channel stored, where the input leaves constants out."""


@dataclass
class ChannelNorm(Step):
    """Normalised over the channels at every pixel (layer norm), then scaled and shifted."""

    scale: Floats
    shift: Floats
    eps: float


@dataclass
class Network:
    """Values and steps in the order they run; `layers` are the names of counted layers in that order."""

    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    result_shape: tuple[int, ...] = ()

    def new_value(self, channels: int, height: int, width: int, name: str = "") -> int:
        self.values.append(Value(channels, height, width, name))
        return len(self.values) - 1

    def readers(self) -> dict[int, list[Step]]:
        """Who reads each value."""
        found: dict[int, list[Step]] = {}
        for step in self.steps:
            for value in step.inputs:
                found.setdefault(value, []).append(step)
        return found
