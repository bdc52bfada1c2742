"""penstock demo, small: accuracy, cost and a page; ratios only of times that nothing disturbed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.measuring.test_densities import fake

from penstock.cli.demo import speed_cards
from penstock.cli.main import main
from penstock.measuring.densities import Measured, RivalTime
from penstock.measuring.timing import Timing
from penstock.reporting.comparison import comparison_table
from penstock.reporting.tables import to_json

QUICK = ["--images", "100", "--densities", "1.0", "0.5", "--seconds", "0.1"]


def test_the_dense_network_stands_beside_it_in_float32_and_int8_each_with_its_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo.html"
    assert main(["demo", "--out", str(out), *QUICK, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    gated = [row for row in said["rows"] if row["density"] is not None]
    dense = {row["network"]: row for row in said["rows"] if row["density"] is None}
    assert [(row["density"], row["precision"]) for row in gated] == [
        (1.0, "float32"),
        (1.0, "int8"),
        (0.5, "float32"),
        (0.5, "int8"),
    ]
    for float32, int8 in zip(gated[::2], gated[1::2], strict=True):
        assert abs(float32["top1"] - int8["top1"]) <= 3.0
    assert gated[2]["macs_executed"] < 0.3 * dense["dense, torch"]["macs_executed"]
    assert dense["dense, torch"]["macs_executed"] == 174_301_824
    assert all(row["milliseconds"] > 0 for row in said["rows"])
    assert said["problems"] == {}
    assert {name: row["precision"] for name, row in dense.items() if name.endswith("int8")} == {
        "dense, onnxruntime-int8": "int8",
        "dense, openvino-int8": "int8",
    }
    for row in dense.values():
        assert abs(row["top1"] - dense["dense, torch"]["top1"]) <= 2.0
    assert said["report"] == str(out)
    text = out.read_text()
    assert "Heat map of layer conv7" in text
    assert "Accuracy against MACs. FBS:" in text


def test_the_reports_path_is_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo.html"
    assert main(["demo", "--out", str(out), *QUICK, "--images", "40", "--against", "torch"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip().splitlines()[-1] == str(out.resolve())
    assert "The shipped checkpoint m_cifarnet-cifar10-any" in printed
    assert "penstock serve --demo" in printed


@pytest.mark.parametrize(
    "disturbed", [Timing(14.0, 20.0, 9, processor=5.6), Timing(14.0, 20.0, 9, processor=14.0, again=17.0)]
)
def test_a_time_that_other_work_disturbed_is_shown_but_not_compared(disturbed: Timing) -> None:
    row = fake(0.5, 1.0)
    quiet = Measured((row,), {"dense, torch": RivalTime(Timing(5.6, 5.7, 9, processor=5.6, again=5.7))})
    busy = Measured((row,), {"dense, torch": RivalTime(disturbed)})
    assert quiet.unsteady == ""
    assert [card.value for card in speed_cards(quiet)] == ["5.60×"]
    assert [one.get("speedup") for one in to_json(comparison_table(quiet))] == [5.6, 1.0]
    assert busy.unsteady.startswith("Not compared: dense, torch.")
    assert speed_cards(busy) == []
    assert [one.get("speedup") for one in to_json(comparison_table(busy))] == [None, None]
    assert [one["milliseconds"] for one in to_json(comparison_table(busy))] == [1.0, 14.0]
