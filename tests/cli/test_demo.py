"""penstock demo, small: with shipped checkpoints if there are any, and with the stand-in that trains here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.zoo.pretrained import available

QUICK = ["--images", "60", "--densities", "1.0", "0.5", "--seconds", "0.1", "--training-seconds", "0.1"]


def check(said: dict, out: Path) -> None:  # type: ignore[type-arg]
    gated = [row for row in said["rows"] if row["density"] is not None]
    dense = [row for row in said["rows"] if row["density"] is None]
    assert [row["density"] for row in gated] == [1.0, 0.5]
    assert gated[1]["macs_executed"] < 0.3 * dense[0]["macs_executed"]
    assert dense[0]["macs_executed"] == 174_301_824
    assert "dense, torch" in [row["network"] for row in dense]
    assert all(row["milliseconds"] > 0 for row in dense)
    if said["without_engine"] is None:
        assert all(row["milliseconds"] > 0 for row in gated)
    assert said["report"] == str(out)
    text = out.read_text()
    assert "Heat map of layer conv7" in text
    assert "Accuracy against MACs. FBS:" in text


def test_without_a_shipped_checkpoint_a_stand_in_is_trained_and_the_output_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.demo.available", list)
    out = tmp_path / "demo.html"
    assert main(["demo", "--out", str(out), *QUICK, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["network"].startswith("No checkpoint is shipped yet: a stand-in")
    assert said["images"] == 12  # the fifth that it did not train on
    check(said, out)
    assert "No checkpoint is shipped yet: a stand-in" in out.read_text()


@pytest.mark.skipif("m_cifarnet-cifar10-any" not in available(), reason="no checkpoint is shipped yet")
def test_the_shipped_checkpoint_is_shown_and_the_reports_path_is_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo.html"
    assert main(["demo", "--out", str(out), *QUICK]) == 0
    printed = capsys.readouterr().out
    assert printed.strip().splitlines()[-1] == str(out.resolve())
    assert "The shipped checkpoint m_cifarnet-cifar10-any" in printed
