"""compile: a gated (or plain) network and an example in, an engine out."""

from __future__ import annotations

from torch import Tensor, nn

from penstock.engine.encode import Program, encode
from penstock.engine.engine import Engine
from penstock.engine.fuse import fold_sum, foldable_sums, fuse
from penstock.engine.layout import Placement, place
from penstock.engine.lower import lower
from penstock.engine.native import chosen_isa
from penstock.engine.steps import Conv, Network
from penstock.errors import CompileError
from penstock.surgery.trace import trace

_MOST_THREADS = 1024
_ROOM = 1.3  # times the most that one convolution reads and writes; scratch comes on top
_TIGHT = 1.4  # the same, scratch included, above which the placement is done again


def compile(network: nn.Module, example: Tensor, threads: int = 1) -> Engine:
    """Compile `network` for images of `example`'s size.

    network: from `penstock.add_gates`, or any CNN (then everything is computed). example: a batch of images.
    threads: how many to use; one image is split inside its layers, several images are shared out.
    A step that the engine does not have is named in a CompileError; nothing has run then.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS:
        raise CompileError(f"threads: expected a whole number from 1 to {_MOST_THREADS}, got {threads!r}")
    isa = chosen_isa()
    steps, program = build_program(network, example)
    densities = {
        step.name: step.gates.density
        for step in steps.steps
        if isinstance(step, Conv) and step.gates is not None
    }
    preprocess = getattr(network, "preprocess", None)
    engine = Engine(program, densities, threads, isa, preprocess)
    if engine.arena_bytes > 4 * _TIGHT * _peak(steps):
        # Scratch did not fit beside the values; now that its sizes are known, place both together.
        better = encode(steps, place(steps, engine.scratch))
        second = Engine(better, densities, threads, isa, preprocess)
        engine = second if second.arena_bytes < engine.arena_bytes else engine
    return engine


def build_program(network: nn.Module, example: Tensor) -> tuple[Network, Program]:
    """The steps of a network and their program, without an engine to run it."""
    steps = fuse(lower(trace(network, example)))
    return steps, encode(steps, _fit(steps))


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
    sizes = [value.channels * value.area for value in steps.values]
    convs = (step for step in steps.steps if isinstance(step, Conv))
    return max((sizes[step.inputs[0]] + sizes[step.output] for step in convs), default=0)
