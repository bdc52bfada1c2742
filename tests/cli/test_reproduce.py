"""`penstock reproduce`: the list, the commands, going on after a failure, and the tables."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro

from penstock.cli import reproductions
from penstock.cli.main import main
from penstock.cli.reproductions import ALL, Reproduction, Setting, Step
from penstock.cli.reproductions.comparison import Variant, comparison, tradeoff
from penstock.datasets import sample
from penstock.errors import DataError
from penstock.reporting.tables import Column, Table, to_json, word

MIB = 2**20


def setting(out: Path) -> Setting:
    return Setting("imagenette", 32, 20, 473, 1, 0, out, seeds=(0,), savings=(4.0,))


def test_the_list_names_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert names == list(ALL)
    assert {"resnet18-table", "vgg16-table", "memory-table"} <= set(names)


@pytest.mark.parametrize("name", ALL)
def test_every_step_is_a_command_that_its_own_options_accept(name: str, tmp_path: Path) -> None:
    steps = ALL[name].steps(setting(tmp_path))
    kinds = {tuple(word for word in step.words if word.startswith("--")): step for step in steps}
    for step in kinds.values():
        module = importlib.import_module(f"penstock.cli.{step.words[0]}")
        tyro.cli(module.Options, args=list(step.words[1:]))


def test_steps_read_only_what_steps_before_them_made(tmp_path: Path) -> None:
    for one in ALL.values():
        made: set[str] = set()
        for step in one.steps(setting(tmp_path)):
            shared = {str(tmp_path / "lessons")}  # made by whoever comes first
            read = {word for word in step.words if word.startswith(str(tmp_path))} - shared
            out = step.words[step.words.index("--out") + 1] if "--out" in step.words else None
            assert read - {out} <= made, (one.name, step.name)
            made |= {out} if out else set()


def test_a_dry_run_prints_commands_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none"
    assert main(["reproduce", "resnet18-table", "--data", "my images", "--out", str(out), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ALL["resnet18-table"].steps(setting(out)))
    assert lines[0].startswith("penstock train resnet18 ")
    assert "--data 'my images'" in lines[0]
    assert not out.exists()


def test_a_failed_step_stops_it_and_the_next_run_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, missing = tmp_path / "out", tmp_path / "wrong"

    def steps(_: Setting) -> tuple[Step, ...]:
        first = Step("look at it", ("inspect", "m_cifarnet", "--json"), "inspected.json")
        return (first, Step("take", ("data", "cifar10", "--from", str(missing))))

    def table(chosen: Setting) -> Table:
        found = json.loads((chosen.out / "inspected.json").read_text())
        return Table("t", "t", (Column("kind", "kind"),), ((word(type(found).__name__),),))

    monkeypatch.setitem(reproductions.ALL, "trial", Reproduction("trial", "a trial", steps, table))
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))
    words = ["reproduce", "trial", "--out", str(out), "--json"]
    assert main(words) == 1
    assert "wrong: there is no such file" in capsys.readouterr().err
    assert (out / "look-at-it.done").exists()
    assert not (out / "take.done").exists()
    (out / "take.done").write_text(f"penstock data cifar10 --from {missing}")
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "done already: look at it" in captured.err
    assert json.loads(captured.out) == [{"kind": "dict"}]
    assert json.loads((out / "trial.json").read_text()) == [{"kind": "dict"}]
    (out / "inspected.json").unlink()  # what a step made is gone: it is not done any more
    assert main(words) == 0
    assert "done already: look at it" not in capsys.readouterr().err
    assert (out / "inspected.json").exists()


def test_unknown_names_and_epochs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "figure-9"]) == 2
    assert "'figure-9': expected one of resnet18-table" in capsys.readouterr().err
    assert main(["reproduce", "resnet18-table", "--epochs", "0"]) == 2
    assert "--epochs: expected 1 or more" in capsys.readouterr().err


def test_a_comparison_counts_from_its_first_row(tmp_path: Path) -> None:
    rows = {"a": (90.0, 800, 800), "b": (89.5, 400, 380)}
    for name, (top1, paper, executed) in rows.items():
        scored = {"top1": top1, "top5": 99.0, "macs_paper": paper, "macs_executed": executed}
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": [scored]}))
    made = comparison(setting(tmp_path), "t", [Variant("dense", "a"), Variant("gated", "b")])
    dense, gated = to_json(made)
    assert dense["change"] is None
    assert gated["change"] == pytest.approx(-0.5)
    assert gated["saving"] == pytest.approx(2.0)
    assert gated["executed_saving"] == pytest.approx(800 / 380)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(DataError, match=r"b\.json: expected what `penstock evaluate --json` prints"):
        comparison(setting(tmp_path), "t", [Variant("dense", "a"), Variant("gated", "b")])


def test_a_comparison_has_densities_of_one_network_times_and_the_dense_lines(tmp_path: Path) -> None:
    def scored(top1: float, macs: float, density: float | None = None) -> dict[str, object]:
        return {"top1": top1, "top5": 99.0, "macs_paper": macs, "macs_executed": macs, "density": density}

    def entry(name: str, precision: str, density: float | None, milliseconds: float) -> dict[str, object]:
        times = {"milliseconds": milliseconds, "median_milliseconds": milliseconds}
        said = {"name": name, "precision": precision, "density": density, "macs": 1.0, "gflops": 1.0}
        return said | times | {"images_per_second": 1.0}

    files = {"a": [scored(90.0, 800)], "a-224": [scored(91.0, 1600)]}
    files["any"] = [scored(89.0, 800, 1.0), scored(88.0, 400, 0.5)]
    for name, rows in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    entries = [
        entry("openvino", "float32", None, 20.0),
        entry("openvino-int8", "int8", None, 9.0),
        entry("penstock d = 0.5", "float32", 0.5, 10.0),
        entry("penstock int8 d = 0.5", "int8", 0.5, 6.0),
    ]
    contest = {"network": "any", "batch": 1, "isa": "avx2", "peak_gflops": 1.0, "problems": {}}
    timed = json.dumps(contest | {"threads": 1, "entries": entries})
    (tmp_path / "any-times-1.json").write_text(timed)
    variants = [
        Variant("dense", "a"),
        Variant("any, d = 0.5", "any", "1.98×", 0.5, "any", "any density"),
    ]
    rows = to_json(comparison(setting(tmp_path), "t", variants, "any"))
    assert [row["network"] for row in rows[2:]] == ["dense: fastest float32", "dense: fastest int8"]
    assert rows[0]["large_top1"] == pytest.approx(91.0)
    assert rows[1]["large_top1"] is None
    assert rows[1]["change"] == pytest.approx(-2.0)
    assert rows[1]["saving"] == pytest.approx(2.0)
    assert (rows[1]["float32_1"], rows[1]["int8_1"]) == (10.0, 6.0)
    assert (rows[2]["float32_1"], rows[3]["int8_1"]) == (20.0, 9.0)
    assert rows[1]["paper"] == "1.98×"
    (plot,) = tradeoff(setting(tmp_path), "t", variants)
    assert plot.baseline is not None
    assert (plot.baseline.accuracy, plot.curves[0].points[0].accuracy) == (90.0, 88.0)
    (tmp_path / "any-times-1.json").write_text("{}")
    with pytest.raises(DataError, match=r"any-times-1\.json: expected what `penstock bench --json` prints"):
        comparison(setting(tmp_path), "t", variants, "any")


def test_a_trained_dense_network_is_not_trained_again(tmp_path: Path) -> None:
    for name in ("resnet18-table", "vgg16-table"):
        steps = ALL[name].steps(replace(setting(tmp_path), dense="runs/mine"))
        assert steps[0].words[:2] == ("evaluate", "runs/mine")


def test_the_memory_table_is_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "memory-table", "--out", str(tmp_path), "--json"]) == 0
    rows = {row["network"]: row for row in json.loads(capsys.readouterr().out)}
    # MiB, as the paper prints them.
    said = {
        "VGG-16": (56.2, 86.5, 24.6),
        "ResNet-18": (44.6, 17.8, 9.19),
        "ResNet-18, d = 0.6": (20.5, 12.3, 4.68),
    }
    for name, figures in said.items():
        found = [rows[name][key] / MIB for key in ("weights_bytes", "activations_bytes", "peak_1_bytes")]
        assert found == pytest.approx(figures, rel=0.03), name


def test_the_layer_table_has_the_papers_four_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = sample().take(torch.arange(0, 1000, 50))
    monkeypatch.setattr("penstock.cli.reproductions.layers.sample", lambda: few)
    assert main(["reproduce", "cifar-layers", "--out", str(tmp_path), "--json"]) == 0
    rows = {row["layer"]: row for row in json.loads(capsys.readouterr().out)}
    assert [row for row in rows if row.startswith("conv")] == [f"conv{index}" for index in range(8)]
    for row in rows.values():
        assert row["Original"] > row["FBS"] > 0
        assert row["NS"] >= row["NS+FBS"] > 0
    assert rows["conv1"]["Original"] == 64 * 64 * 9 * 30 * 30
