"""Running part of a traced network: from the input, or from kept values, to the steps that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, fx, nn

Values = dict[fx.Node, Any]


def node_of(network: fx.GraphModule, layer: str) -> fx.Node:
    """The (first) step that runs `layer`."""
    return next(n for n in network.graph.nodes if n.op == "call_module" and n.target == layer)


def run_to(
    network: fx.GraphModule, x: Tensor | None, wanted: Sequence[fx.Node], start: Values | None = None
) -> list[Tensor]:
    """The values of `wanted`, in that order; steps behind the last of them do not run.

    x: the network's input, or None with `start`, the values that `values_before` kept.
    """
    runner = _Runner(network, list(wanted))
    with suppress(_Reached):
        runner.run(x, initial_env=None if start is None else dict(start))
    return [runner.found[node] for node in wanted]


def values_before(network: fx.GraphModule, x: Tensor, node: fx.Node) -> Values:
    """Everything that `node` and the steps behind it need of the steps before it."""
    before = list(network.graph.nodes)
    before = before[: before.index(node)]
    needed = [n for n in before if n.op != "output" and any(user not in before for user in n.users)]
    kept = dict(zip(needed, run_to(network, x, needed), strict=True))
    return {n: kept.get(n) for n in before}  # None: not needed any more, and so not run again


def output_node(network: fx.GraphModule) -> fx.Node:
    """The step whose value the network returns."""
    output = next(n for n in network.graph.nodes if n.op == "output")
    return output.all_input_nodes[0]


@contextmanager
def without_inplace(network: nn.Module) -> Iterator[None]:
    """Activations that overwrite their input make a copy instead, so that kept values stay as they are."""
    changed = [module for module in network.modules() if getattr(module, "inplace", False) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


class _Reached(Exception):
    """All that was asked for has been computed."""


class _Runner(fx.Interpreter):
    def __init__(self, network: fx.GraphModule, wanted: list[fx.Node]) -> None:
        super().__init__(network, garbage_collect_values=False)
        self.extra_traceback = False
        self.wanted = set(wanted)
        self.found: Values = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            self.found[n] = value
            if len(self.found) == len(self.wanted):
                raise _Reached
        return value
