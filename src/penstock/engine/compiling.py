"""compile: a gated (or plain) network and an example in, an engine out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import Tensor, nn

from penstock.engine.constants import carry_code_lists, carry_lists
from penstock.engine.encode import encode
from penstock.engine.fuse import fold_sum, foldable_sums, fuse, join_affines
from penstock.engine.lanes import Layouts, choose_layouts
from penstock.engine.layout import Placement, place
from penstock.engine.lower import lower
from penstock.engine.package import make_engine
from penstock.engine.quantise import quantise
from penstock.engine.steps import Conv, ListedConv, Network
from penstock.errors import CompileError
from penstock.native import chosen_isa
from penstock.quantizing import Ranges, calibrate
from penstock.surgery.trace import trace
from penstock_runtime import Engine
from penstock_runtime.engine import check_threads
from penstock_runtime.program import Program

_ROOM = 1.3  # times the most that one convolution reads and writes; scratch comes on top


def compile(
    network: nn.Module,
    example: Tensor,
    threads: int = 1,
    precision: str = "float32",
    calibration: Tensor | Ranges | None = None,
    keep_float: Collection[str] = (),
) -> Engine:
    """Compile `network` for images of `example`'s size.

    network: from `penstock.add_gates`, or any CNN (then everything is computed). example: a batch of images.
    threads: how many to use; one image is split inside its layers, several images are shared out.
    precision: "float32", or "int8" with `calibration`: a few hundred training images, (batch, channel,
    height, width), preprocessed, or what `penstock.quantizing.calibrate` made of them; a network that carries
    its ranges needs none. keep_float: layers, by name or pattern, that stay in float32.
    A step that the engine does not have is named in a CompileError; nothing has run then.

    >>> import torch, penstock as ps
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    >>> engine = ps.compile(gated, torch.zeros(1, 3, 32, 32))
    >>> engine(torch.zeros(4, 3, 32, 32), density=0.3).shape
    torch.Size([4, 10])
    """
    check_threads(threads)
    isa = chosen_isa()
    ranges = _ranges(network, example, precision, calibration)
    if keep_float and ranges is None:
        raise CompileError('keep_float belongs to precision="int8"')
    steps, program = build_program(network, example, ranges, keep_float)
    densities = {
        step.name: step.gates.density
        for step in steps.steps
        if isinstance(step, Conv) and step.gates is not None
    }
    return make_engine(program, network, densities, threads, isa)


def build_program(
    network: nn.Module,
    example: Tensor,
    ranges: Ranges | None = None,
    keep_float: Collection[str] = (),
    layouts: Layouts = "cheapest",
) -> tuple[Network, Program]:
    """The steps of a network and their program, without an engine to run it; with `ranges`, in int8.

    layouts: where float32 maps lie, for comparisons: one of `Layouts`.
    """
    steps = fuse(lower(trace(network, example)))
    if ranges is None:
        carry_lists(steps)
        choose_layouts(steps, layouts)
        join_affines(steps)
        return steps, encode(steps, _fit(steps))
    float_steps = quantise(steps, ranges, (*ranges.keep_float, *keep_float))
    carry_code_lists(steps)
    program = encode(steps, place(steps))
    return steps, replace(program, precision="int8", float_steps=tuple(float_steps.items()))


def _ranges(
    network: nn.Module, example: Tensor, precision: str, calibration: Tensor | Ranges | None
) -> Ranges | None:
    """The ranges of an int8 network; None for float32."""
    if precision == "float32":
        if calibration is not None:
            raise CompileError('calibration belongs to precision="int8", and the precision is "float32"')
        return None
    if precision != "int8":
        raise CompileError(f'precision: expected "float32" or "int8", got {precision!r}')
    given = getattr(network, "ranges", None) if calibration is None else calibration
    if given is None:
        raise CompileError(
            'precision="int8" needs calibration images: calibration=images, a few hundred of the training '
            "set as one tensor, preprocessed; or write them into the checkpoint with penstock quantize"
        )
    if isinstance(given, Ranges):
        return given
    if isinstance(given, Tensor) and given.ndim == 4 and given.shape[1:] != example.shape[1:]:
        found, expected = tuple(given.shape[1:]), tuple(example.shape[1:])
        raise CompileError(
            f"calibration: images of shape {found}, and the example has {expected}; "
            "give images of the example's size (or ranges of another one, by penstock.quantizing.calibrate)"
        )
    return calibrate(network, given)


def _fit(steps: Network) -> Placement:
    """Place the values; while they take too much memory, let convolutions do their sums themselves."""
    peak = _peak(steps)
    placement = place(steps)
    while placement.floats > _ROOM * peak and (sums := foldable_sums(steps)):
        fold_sum(steps, sums[0])
        placement = place(steps)
    return placement


def _peak(steps: Network) -> int:
    """The accounted peak of activations: the most floats that one convolution reads and writes."""
    sizes = [value.channels * value.area // (1 if value.codes is None else 4) for value in steps.values]
    convs = (step for step in steps.steps if isinstance(step, Conv | ListedConv))
    return max((sizes[step.inputs[0]] + sizes[step.output] for step in convs), default=0)
