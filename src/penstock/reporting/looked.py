"""What looking into networks gave, as the page takes it: costs by method, accuracy against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.accounting import Account
from penstock.measuring.densities import DensityCost, Measured
from penstock.measuring.runtimes import INSTALLED
from penstock.reporting.build import Latency
from penstock.reporting.comparison import Accuracy
from penstock.reporting.costs import layer_table, memory_cost, memory_table, network_cost, original_cost
from penstock.reporting.figures import Curve, CurvePoint
from penstock.reporting.runs import Sweep, SweepPoint
from penstock.reporting.skipping import SkipMap
from penstock.reporting.tables import Table


@dataclass(frozen=True)
class Cost:
    """A network at its own density, what it skips, and what it would cost with nothing skipped."""

    own: DensityCost
    maps: tuple[SkipMap, ...]
    whole: Account


@dataclass(frozen=True)
class TimedNetwork:
    """A gated network with its accuracy, in float32 and in int8, and its time at several densities."""

    name: str
    accuracies: Sequence[Accuracy | None]
    measured: Measured
    int8: Sequence[Accuracy | None] = ()


def cost_tables(costs: Mapping[str, Cost]) -> tuple[Table | None, Table | None]:
    """The layer table and the memory table, one column or row a method; none without a network."""
    if not costs:
        return None, None
    # Without a dense run the original is what the widest network was before it got gates.
    plain = costs.get("Original")
    whole = (
        plain.whole if plain else max((cost.whole for cost in costs.values()), key=lambda one: one.dense_macs)
    )
    first = original_cost("Original", whole, plain.own.layer_milliseconds if plain else None)
    others = {method: cost for method, cost in costs.items() if method != "Original"}
    layers = [
        network_cost(method, cost.own.executed, cost.maps, cost.own.layer_milliseconds)
        for method, cost in others.items()
    ]
    memory = [memory_cost(method, cost.own.executed) for method, cost in others.items()]
    return (
        layer_table([first, *layers], convention="executed"),
        memory_table([memory_cost("Original", whole), *memory], convention="executed"),
    )


def measured_curve(network: TimedNetwork, dense: Accuracy | None, method: str) -> Sweep:
    """Accuracy against MACs at the densities that were measured. dense: the accuracy with nothing skipped."""
    rows = network.measured.rows
    points = tuple(
        SweepPoint(score.top1, row.paper.macs, row.executed.macs, score.top5, row.density)
        for row, score in zip(rows, network.accuracies, strict=True)
        if score is not None
    )
    whole = float(rows[0].paper.original_macs)
    baseline = None if dense is None else SweepPoint(dense.top1, whole, whole, dense.top5)
    return Sweep(method, points, baseline)


def latency_of(networks: Sequence[TimedNetwork], dense: Mapping[str, Accuracy], images: str) -> Latency:
    """Accuracy against milliseconds. dense: the accuracy of the dense network in each runtime beside them.

    Of the dense runtimes the fastest in each precision is shown. images: which ones the accuracy is of.
    """
    curves = []
    for network in networks:
        rows = network.measured.rows
        for precision, times, scores in (
            ("float32", [row.time for row in rows], network.accuracies),
            ("int8", [row.int8 for row in rows], network.int8),
        ):
            points = tuple(
                CurvePoint(time.least, score.top1, f"d = {row.density:.3g}" if row.density else "as it is")
                for row, time, score in zip(rows, times, scores, strict=False)
                if time is not None and score is not None
            )
            curves += [Curve(f"{network.name}, {precision}", points)] if points else []
    marks = []
    beside = next((network.measured for network in networks if network.measured.rivals), None)
    precisions = sorted({rival.precision for rival in beside.rivals.values()}) if beside else []
    for precision in precisions:
        assert beside is not None
        found = beside.fastest_rival(precision)
        if found is not None and found[0] in dense:
            name, rival = found
            label = f"dense {precision} ({name.removeprefix('dense, ').removesuffix('-int8')})"
            marks.append(CurvePoint(rival.time.least, dense[name].top1, label))
    words = f"Milliseconds of one image, measured on this machine; accuracy on {images}."
    installed = beside.rivals.get(f"dense, {INSTALLED}") if beside else None
    if installed is not None and installed.precision == "float32":
        words += " OpenVINO as installed computes in float32 here, so it is among those runtimes."
    shaky = next((one.measured.unsteady for one in networks if one.measured.unsteady), "")
    return Latency(tuple(curves), tuple(marks), f"{words} {shaky}".strip())
