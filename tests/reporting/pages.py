"""A page with everything on it: runs, curves, tables, timings, and text that tries to be markup."""

from __future__ import annotations

from pathlib import Path

from penstock.accounting import account
from penstock.measuring.densities import DensityCost, Measured, RivalTime
from penstock.measuring.timing import Timing
from penstock.reporting import (
    Run,
    Sweep,
    SweepPoint,
    build_page,
    describe_network,
    layer_table,
    memory_cost,
    memory_table,
    network_cost,
    original_cost,
    skip_maps,
)
from penstock.reporting.build import Latency, PointCost
from penstock.reporting.comparison import Accuracy, comparison_table
from penstock.reporting.figures import Curve, CurvePoint
from penstock.reporting.history import EpochSkips
from penstock.reporting.page import Page

from .networks import TwoLayers, coloured, halves

HOSTILE = '<script>alert("x")</script> & "run"'


def whole_page() -> Page:
    network, data = TwoLayers(), coloured()
    maps = skip_maps(network, data)
    counted = account(network, halves(data.images), "executed")
    history = [EpochSkips(epoch, 0.5, data.classes, tuple(maps)) for epoch in (1, 2, 3)]
    rivals = {
        f"dense, {name}": RivalTime(Timing(38.5, 39.0, 9), name.partition("-")[2] or "float32")
        for name in ("onnxruntime", "openvino-bfloat16", "onnxruntime-int8")
    }
    row = DensityCost(0.5, counted, counted, Timing(9.62, 9.7, 9))
    table = comparison_table(Measured((row,), rivals), [Accuracy(90.65, 99.65)], dense=Accuracy(92.33, 99.7))
    part = describe_network(
        "two layers",
        network,
        data,
        maps,
        layer="second",
        channels=[0],
        history=history,
        measured=table,
    )
    baseline = SweepPoint(91.37, 174e6, 174e6, 99.7)
    fbs = Sweep(
        "FBS", (SweepPoint(90.6, 44e6, 41e6, 99.6, 0.5), SweepPoint(91.5, 90e6, 80e6, 99.7, 0.7)), baseline
    )
    slim = Sweep(
        "NS", (SweepPoint(87.5, 87e6, 87e6, ratio=0.4), SweepPoint(9.5, 12e6, 12e6, ratio=0.9)), baseline
    )
    lines = tuple(
        {
            "epoch": e,
            "test_top1": 80.0 + e,
            "test_top5": 97.0 + e,
            "train_top1": 70.0 + e,
            "density": 1.0,
            "loss": 1.0 / e,
            "images_per_second": 258.0,
        }
        for e in (1, 2, 3)
    )
    runs = [
        Run("fbs", Path("fbs"), lines, {"epochs": 3}, sweep=fbs),
        Run("halted", Path("halted"), lines, {"epochs": 9}),
        Run("slim", Path("slim"), sweep=slim),
        Run(HOSTILE, Path("x"), notes=("metrics.jsonl: line 2 is not whole JSON and was left out",)),
    ]
    return build_page(
        runs,
        title="All runs",
        networks=[part],
        layer_costs=layer_table(
            [original_cost("Original", counted), network_cost("FBS", counted, maps, {"second": 0.25})],
            convention="executed",
        ),
        memory=memory_table([memory_cost("Original", counted)], convention="executed"),
        costs=[PointCost("fbs", 0.5, 41e6, Timing(1.25, 1.3, 9), own=True)],
        latency=Latency(
            (Curve("fbs, float32", (CurvePoint(0.7, 90.6, "d = 0.5"), CurvePoint(1.3, 91.5, "d = 0.7"))),),
            (CurvePoint(3.4, 92.3, "dense float32 (openvino)"), CurvePoint(1.0, 92.1, "dense int8 (onnx)")),
            "Measured here.",
        ),
        machine="AMD EPYC (Zen 3), 2 cores; torch 2.13.0",
    )
