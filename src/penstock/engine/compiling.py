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
    return Engine(program, densities, threads, isa, getattr(network, "preprocess", None))


def build_program(network: nn.Module, example: Tensor) -> tuple[Network, Program]:
    """The steps of a network and their program, without an engine to run it."""
    steps = fuse(lower(trace(network, example)))
    return steps, encode(steps, _fit(steps))


def _fit(steps: Network) -> Placement:
    """Place the values; while they take too much memory, let convolutions do their sums themselves."""
    convs = [step for step in steps.steps if isinstance(step, Conv)]
    values = steps.values
    peak = max(
        (sum(values[v].channels * values[v].area for v in (step.inputs[0], step.output)) for step in convs),
        default=0,
    )
    placement = place(steps)
    while placement.floats > _ROOM * peak and (sums := foldable_sums(steps)):
        fold_sum(steps, sums[0])
        placement = place(steps)
    return placement
