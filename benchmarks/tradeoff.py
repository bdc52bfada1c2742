"""Accuracy against milliseconds: the shipped gated networks and the dense one, each in float32 and in int8.

    python benchmarks/tradeoff.py            # scores CIFAR-10's 10,000 test images, then measures
    python benchmarks/tradeoff.py --draw     # measures nothing: docs/tradeoff.png from the newest results

One image a call, one thread, everything interleaved in one run. The int8 networks are calibrated on images of
the embedded sample. Results are kept by machine and commit (benchmarks/kept.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from kept import RESULTS, Kept, keep, newest
from rich.console import Console
from torch import Tensor

from penstock import datasets
from penstock.engine import compile as compile_engine
from penstock.files import write_atomically
from penstock.measuring.runtimes import dense_runtimes, runtime_names
from penstock.measuring.timing import interleave, one_by_one
from penstock.reporting.figures import MILLISECONDS, Curve, CurvePoint, save_figure, tradeoff_figure
from penstock.reporting.numbers import milliseconds
from penstock.training import evaluate
from penstock.zoo import pretrained

PREFIX = "m_cifarnet-cifar10"
ANY, EACH = "one network for all densities", "a network for each density"
PRECISIONS = ("float32", "int8")
FIGURE = Path(__file__).parent.parent / "docs" / "tradeoff.png"


@dataclass(frozen=True)
class Options:
    """Score and time the shipped networks."""

    densities: str = "1.0,0.7,0.5,0.4,0.3"
    """Of the network for all densities."""
    against: str = "torch,onnxruntime,openvino,int8"
    data: str = "cifar10"
    """cifar10 (the 10,000 test images) or sample (the embedded 1,000)."""
    calibration: int = 64
    seconds: float = 30.0
    models: Path | None = None
    """Keep the dense runtimes' networks and the scores here, and find them again."""
    draw: bool = False
    machine: str = ""
    """For --draw: the machine's folder in benchmarks/results; without it the latest."""
    out: Path = RESULTS
    figure: Path = FIGURE


@dataclass(frozen=True)
class Contestant:
    """Something that turns images into logits, and what is known of it."""

    series: str
    label: str
    precision: str
    run: Callable[[Tensor], Any]


def contestants(options: Options, example: Tensor) -> tuple[list[Contestant], dict[str, str]]:
    """The shipped networks through the engine, and the dense one in every runtime; and what is missing."""
    made = []
    for precision in PRECISIONS:
        engine = _compiled("any", example, precision)
        for density in (float(d) for d in options.densities.split(",")):
            made.append(Contestant(ANY, f"d = {density:g}", precision, _at(engine, density)))
        for name in ("d70", "d50", "d30"):
            own = _compiled(name, example, precision)
            made.append(Contestant(EACH, f"d = {int(name[1:]) / 100:g}", precision, own))
    dense = pretrained(f"{PREFIX}-dense")
    found = dense_runtimes(dense, example[:1], runtime_names(options.against), 1, example, options.models)
    made += [Contestant("dense", name, one.precision, one) for name, one in found.run.items()]
    return made, found.problems


def measure(options: Options, console: Console) -> list[dict[str, Any]]:
    """One row a contestant: accuracy, least and median milliseconds, and whether these may be compared."""
    data = datasets.cifar10("test") if options.data == "cifar10" else datasets.sample()
    prepare = pretrained(f"{PREFIX}-dense").preprocess
    step = max(1, 1000 // options.calibration)
    example = prepare(datasets.sample().images[::step][: options.calibration])
    all_of_them, problems = contestants(options, example)
    for name, problem in problems.items():
        console.print(f"{name}: {problem}")
    scores = score(all_of_them, data, options.models)
    turns = {str(i): one_by_one(one.run, example.split(1)) for i, one in enumerate(all_of_them)}
    with torch.inference_mode():
        times = interleave(turns, seconds=options.seconds)
    rows = []
    for index, (one, kept) in enumerate(zip(all_of_them, scores, strict=True)):
        time = times[str(index)]
        console.print(
            f"{one.series}, {one.label}, {one.precision}: {kept['top1']:.2f}% at {milliseconds(time.least)}"
        )
        rows.append(
            {
                "series": one.series,
                "label": one.label,
                "precision": one.precision,
                "milliseconds": time.least,
                "median_milliseconds": time.median,
                "steady": time.steady,
                **kept,
            }
        )
    return rows


def score(
    contestants: list[Contestant], data: datasets.ImageArrays, folder: Path | None
) -> list[dict[str, Any]]:
    """Accuracy of each; dense float32 is scored once. With a folder scores are kept there and found again."""
    path = None if folder is None else folder / f"scores-{data.name.replace('/', '-')}.json"
    known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path and path.exists() else {}
    prepare = pretrained(f"{PREFIX}-dense").preprocess
    keys = [
        "dense, float32"
        if (one.series, one.precision) == ("dense", "float32")
        else f"{one.series}, {one.label}, {one.precision}"
        for one in contestants
    ]
    for key, one in zip(keys, contestants, strict=True):
        if key not in known:
            found = evaluate(_tensor(one.run), data, preprocess=prepare)
            known[key] = {"top1": found.top1, "top5": found.top5, "images": found.images, "data": data.name}
            if path is not None:
                write_atomically(path, json.dumps(known, indent=1).encode())
    return [known[key] for key in keys]


def dense_marks(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of the dense rows the fastest in each precision."""
    dense = [row for row in rows if row["series"] == "dense"]
    precisions = sorted({row["precision"] for row in dense})
    return {
        precision: min(
            (row for row in dense if row["precision"] == precision), key=lambda row: row["milliseconds"]
        )
        for precision in precisions
    }


def draw(kept: Kept, path: Path) -> None:
    """The README's picture."""
    curves = [
        Curve(
            f"Penstock {precision}, {series}",
            tuple(
                CurvePoint(row["milliseconds"], row["top1"], row["label"])
                for row in kept.results
                if (row["series"], row["precision"]) == (series, precision)
            ),
        )
        for precision in PRECISIONS
        for series in (EACH, ANY)
    ]
    marks = [
        CurvePoint(row["milliseconds"], row["top1"], f"dense {precision}, {row['label'].split('-')[0]}")
        for precision, row in dense_marks(kept.results).items()
    ]
    save_figure(
        tradeoff_figure(
            curves,
            axis=MILLISECONDS,
            marks=marks,
            accuracy=f"top-1, {kept.results[0]['images']:,} images of {kept.results[0]['data']}",
            width=720,
            height=380,
        ),
        path,
    )


def main(options: Options) -> int:
    console = Console(highlight=False, soft_wrap=True)
    torch.set_num_threads(1)
    if not options.draw:
        console.print(str(keep("tradeoff", measure(options, console), options.out)))
    if options.draw or options.out == RESULTS:
        draw(newest("tradeoff", options.machine or None, options.out), options.figure)
    return 0


def _compiled(name: str, example: Tensor, precision: str) -> Any:
    calibration = example if precision == "int8" else None
    return compile_engine(
        pretrained(f"{PREFIX}-{name}"), example[:1], precision=precision, calibration=calibration
    )


def _at(engine: Any, density: float) -> Callable[[Tensor], Any]:
    return lambda x: engine(x, density=density)


def _tensor(run: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.as_tensor(run(x))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
