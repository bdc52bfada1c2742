"""What `penstock prune` reports: a finished run in, plain data for `pruning.json`, curves and a table out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from penstock.accounting import account
from penstock.measuring.densities import try_compile
from penstock.measuring.timing import interleave
from penstock.pruning import METHODS, Outcome, Pruned, Sensitivity, Skipping
from penstock.reporting.terminal import WholeWords, print_table
from penstock.surgery.network import count_parameters

TIMED = 16  # images that are timed, one a call
_SECONDS = 3.0


def report(
    model: str, method: str, density: float | None, original: nn.Module, outcome: Outcome, images: Tensor
) -> dict[str, Any]:
    """What `pruning.json` holds; savings are against the original network.

    `macs` is the count of the method's authors; `macs_executed` is what our layers did on these images.
    """
    found: dict[str, Any] = {
        "model": model,
        "method": method,
        "macs_before": account(original, images[:1], "paper").macs,
        "stages": [{"stage": stage.name} | asdict(stage.score) for stage in outcome.stages if stage.score],
        "cuts": [describe(cut) for cut in outcome.cuts],
        "weights_before": count_parameters(original),
        "weights": count_parameters(outcome.network),
    }
    if outcome.skipping is None:
        found["macs"] = found["macs_executed"] = account(outcome.network, images[:1], "paper").macs
        found["ratio"] = 1 - outcome.cuts[-1].channels_after / outcome.cuts[0].channels_before
    else:
        cost = outcome.skipping.cost(outcome.network, images)
        found |= {"macs": cost.authors, "macs_executed": cost.executed, "kind": outcome.skipping.kind}
        found["left_alone"] = outcome.skipping.left_alone
        if outcome.skipping.densities is not None:  # each image's own: whoever times the network needs them
            found["densities"] = outcome.skipping.densities(outcome.network, images[:TIMED])
    found["saving"] = found["macs_before"] / found["macs"]
    networks = {"original": original, "smaller": outcome.network, "gated": outcome.gated}
    found["milliseconds"] = milliseconds(networks, images, outcome.skipping, found.get("densities"))
    if outcome.gated is not None:
        found["density"] = density
        found["gated_macs"] = account(outcome.gated, images[:1], "paper").macs
        found["gated_macs_executed"] = account(outcome.gated, images, "executed").macs
        found["gated_saving"] = found["macs_before"] / found["gated_macs"]
    return found


def milliseconds(
    networks: dict[str, nn.Module | None],
    images: Tensor,
    skipping: Skipping | None = None,
    densities: Sequence[dict[str, float]] | None = None,
) -> dict[str, float]:
    """{network: the least milliseconds an image takes in the engine on one thread}, where it can run it.

    A network that decides outside of the engine is timed with each image's own counts, without deciding.
    """
    singles = images[:TIMED].split(1)
    calls: dict[str, Callable[[], object]] = {}
    for name, network in networks.items():
        if network is None:
            continue
        decided: Sequence[dict[str, float] | None] = [None] * len(singles)
        if name == "smaller" and skipping is not None and skipping.plain:
            decided = densities or decided
            network = skipping.plain(network)
        engine = try_compile(network.eval(), images[:1])[0]
        if engine is not None:
            calls[name] = at_own_densities(engine, singles, decided)
    times = interleave(calls, seconds=_SECONDS) if calls else {}
    return {name: time.least for name, time in times.items()}


def at_own_densities(
    engine: Callable[..., object], images: Sequence[Tensor], densities: Sequence[dict[str, float] | None]
) -> Callable[[], object]:
    """A contestant that runs one image a call, at its own densities, and takes the next at the next call."""
    waiting = itertools.cycle(list(zip(images, densities, strict=True)))

    def call() -> object:
        image, density = next(waiting)
        return engine(image, density)

    return call


def describe(cut: Pruned) -> dict[str, Any]:
    """One cut as plain data."""
    return {
        "ratio": cut.ratio,
        "saving": cut.saving,
        "threshold": None if math.isnan(cut.threshold) else cut.threshold,
        "channels_before": cut.channels_before,
        "channels_after": cut.channels_after,
        "weights_before": cut.weights_before,
        "weights_after": cut.weights_after,
        "left_alone": cut.left_alone,
        "layers": [asdict(layer) for layer in cut.layers],
    }


def curves(data: str, found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(folder below `out`, what its curve.json holds), for the smaller network and for the one with gates."""
    scores = {stage["stage"]: stage for stage in found["stages"]}
    plain = [stage for name, stage in scores.items() if name != "gated"]
    common = {"version": 1, "network": found["model"], "data": data, "baseline": found.get("baseline")}
    label, made = METHODS[found["method"]].label, []
    if plain:
        point = {"macs_paper": found["macs"], "macs_executed": found["macs_executed"]}
        point |= {"ratio": found["ratio"]} if "ratio" in found else {}
        made.append(("", common | {"method": label, "points": [point | _accuracy(plain[-1])]}))
    if "gated" in scores:
        point = {"ratio": found["ratio"], "density": found["density"], "macs_paper": found["gated_macs"]}
        point |= {"macs_executed": found["gated_macs_executed"]} | _accuracy(scores["gated"])
        made.append(("gated", common | {"method": f"{label}+FBS", "points": [point]}))
    return made


def _accuracy(stage: dict[str, Any]) -> dict[str, Any]:
    return {"top1": stage["top1"], "top5": stage["top5"], "checkpoint": "model.safetensors"}


def show_methods() -> None:
    """Every method's name, what figures call it, and what it does."""
    table = WholeWords(title="penstock prune --method")
    for heading in ("name", "label", "what it is"):
        table.add_column(heading)
    for name, entry in METHODS.items():
        table.add_row(name, entry.label, entry.purpose)
    print_table(Console(markup=False), table)


def show_sensitivity(rows: Sequence[Sensitivity], as_json: bool) -> None:
    """The accuracy with one layer alone cut: a row a layer, a column a share that it keeps."""
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    keeps = list(dict.fromkeys(row.keep for row in rows))
    table = WholeWords(title="top-1 when one layer alone keeps this share of its channels")
    table.add_column("layer")
    for keep in keeps:
        table.add_column(f"{keep:g}", justify="right")
    for layer in dict.fromkeys(row.layer for row in rows):
        table.add_row(layer, *(f"{100 * row.accuracy:.2f}%" for row in rows if row.layer == layer))
    print_table(Console(markup=False), table)


def show_report(found: dict[str, Any]) -> None:
    """The last cut layer by layer, and the figures in one line each."""
    table = WholeWords(title=f"{found['model']}, {found['method']}")
    for heading in ("layer", "channels", "kept", "MACs", "left"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in found["cuts"][-1]["layers"] if found["cuts"] else ():
        counts = (layer["channels_before"], len(layer["kept"]), layer["macs_before"], layer["macs_after"])
        table.add_row(layer["layer"], *(f"{count:,}" for count in counts))
    console = Console(markup=False)
    if found["cuts"]:
        print_table(console, table)
        for name, why in found["cuts"][-1].get("left_alone", {}).items():
            console.print(f"left alone: {name}: {why}")
    for name, why in found.get("left_alone", {}).items():
        console.print(f"left alone: {name}: {why}")
    scores = {stage["stage"]: stage["top1"] for stage in found["stages"]}
    plain = [score for name, score in scores.items() if name != "gated"]
    times = {name: f", {time:.3f} ms" for name, time in found["milliseconds"].items()}
    console.print(f"original: {found['macs_before']:,.0f} MACs{times.get('original', '')}")
    said = times.get("smaller", "") + (f", top-1 {plain[-1]:.2f}%" if plain else "")
    executed = found.get("macs_executed", found["macs"])
    counted = "" if executed == found["macs"] else f" ({executed:,.0f} executed)"
    console.print(f"smaller: {found['macs']:,.0f} MACs{counted}, {found['saving']:.2f}× fewer{said}")
    if "test" in found:
        console.print(f"on the test part: top-1 {found['test']['top1']:.2f}%")
    if "gated_macs" in found:
        said = times.get("gated", "") + (f", top-1 {scores['gated']:.2f}%" if "gated" in scores else "")
        console.print(
            f"gates at density {found['density']:g}: {found['gated_macs']:,.0f} MACs as the paper counts "
            f"({found['gated_macs_executed']:,.0f} executed), {found['gated_saving']:.2f}× fewer{said}"
        )
