"""`penstock reproduce cifar-rivals`: which rows there are, what a refused one leaves, the table, the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import reproductions
from penstock.cli.main import main
from penstock.cli.reproductions import ALL, Reproduction, Setting, Step
from penstock.cli.reproductions.rivals import fbs_density
from penstock.cli.reproductions.rivals_table import Row, draw_rivals, rivals_table
from penstock.pruning import METHODS
from penstock.reporting.tables import Column, Table, to_json, word


def setting(out: Path, **chosen: Any) -> Setting:
    return Setting("cifar10", 32, 3, 5000, 1, 0, out, **chosen)


def write(path: Path, said: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said))


def test_all_methods_start_from_one_network_with_the_same_data_and_epochs(tmp_path: Path) -> None:
    steps = ALL["cifar-rivals"].steps(setting(tmp_path, seeds=(0, 1), savings=(2.0,)))
    rows = [step for step in steps if step.words[0] in ("prune", "train")]
    assert len(rows) == 2 * (1 + len(METHODS))
    assert {step.words[1] for step in rows} == {"m_cifarnet-cifar10-dense"}
    for option, value in (("--data", "cifar10"), ("--holdout", "5000"), ("--recipe.epochs", "3")):
        assert {step.words[step.words.index(option) + 1] for step in rows} == {value}
    cuts = [step.words for step in rows if step.words[0] == "prune"]
    assert {words[words.index("--finetune-epochs") + 1] for words in cuts} == {"3"}


def test_a_share_of_the_rows_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share = ["--methods", "fbs,thinet", "--savings", "3", "--seeds", "1", "--epochs", "2"]
    share += ["--dense", "mine", "--out", str(tmp_path)]
    assert main(["reproduce", "cifar-rivals", *share, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # the dense network's score; FBS and its score; ThiNet
    assert lines[3].startswith(f"penstock prune mine --out {tmp_path}/m_cifarnet-thinet-3x-e2-s1 ")
    for wrong, message in ((["--methods", "magic"], "'magic'"), (["--savings", "2;3"], "expected numbers")):
        assert main(["reproduce", "cifar-rivals", *wrong, "--dry-run"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("saving", "density"), [(2.0, 0.70), (3.93, 0.50)])
def test_fbs_gets_the_density_that_costs_as_much(saving: float, density: float) -> None:
    # The paper's own pairs for M-CifarNet.
    assert fbs_density("m_cifarnet", 32, saving) == pytest.approx(density, abs=0.005)


def test_a_refused_row_says_why_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = Step("prune x", ("prune", "m_cifarnet", "--out", str(tmp_path / "x")), optional=True)
    then = Step("list", ("reproduce", "--json"), "list.json")
    empty = Table("t", "t", (Column("kind", "kind"),), ((word("a"),),))
    trial = Reproduction("trial", "a trial", lambda _: (refused, then), lambda _: empty)
    monkeypatch.setitem(reproductions.ALL, "trial", trial)
    assert main(["reproduce", "trial", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"kind": "a"}]
    assert "give a budget" in (tmp_path / "prune-x.failed").read_text()
    assert not (tmp_path / "prune-x.done").exists()
    assert (tmp_path / "list.json").exists()


def rows_and_files(out: Path) -> list[Row]:
    """Three methods, two seeds: one is there, one with one seed and without a time, one was refused."""
    rows = [
        Row("net", method, 2.0, seed, 3, 0)
        for seed in (0, 1)
        for method in ("thinet", "lccl", "channel-gating")
    ]
    said = {"macs": 400, "macs_executed": 440, "weights": 1000, "stages": [{"top1": 10.0}]}
    for row, top1 in ((rows[0], 90.0), (rows[3], 91.0), (rows[1], 80.0)):
        write(out / row.name / "pruning.json", said | {"test": {"top1": top1}})
    (out / f"prune-{rows[2].name}.failed").write_text("saving 2: 1.5 is the most that can be had")
    dense = [{"precision": p, "top1": t, "macs_paper": 800} for p, t in (("float32", 92.0), ("int8", 91.9))]
    write(out / "r-dense.json", {"rows": dense})
    times = {"dense, float32": 2.0, "dense, int8": 1.0, rows[0].name: 1.2, rows[3].name: 1.4}
    write(out / "r-times.json", {"rows": [], "milliseconds": times, "unsteady": []})
    return rows


def test_the_table_averages_seeds_and_says_what_is_missing(tmp_path: Path) -> None:
    rows = rows_and_files(tmp_path)
    _, small, thinet, lccl, gating = to_json(rivals_table(setting(tmp_path), "r", rows))
    assert (small["method"], small["milliseconds"]) == ("dense, int8", 1.0)
    assert small["change"] == pytest.approx(-0.1)
    assert (thinet["top1"], thinet["spread"], thinet["change"]) == (90.5, 0.5, -1.5)
    assert (thinet["macs"], thinet["macs_executed"], thinet["saving"]) == (400, 440, 2.0)
    assert thinet["milliseconds"] == pytest.approx(1.3)
    assert thinet["note"] == ""
    assert (lccl["top1"], lccl["spread"], lccl["seeds"], lccl["milliseconds"]) == (80.0, None, 1, None)
    assert lccl["note"] == "the engine does not run it: no time; not run yet"
    assert gating["top1"] is None
    assert gating["note"] == "saving 2: 1.5 is the most that can be had; not run yet"


def test_the_plot_has_a_marker_for_every_method_that_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}
    from penstock.cli.reproductions import rivals_table as module

    whole = module.tradeoff_figure

    def note(curves: Any, **options: Any) -> Any:
        drawn.update(curves=curves, marks=options["marks"])
        return whole(curves, **options)

    monkeypatch.setattr(module, "tradeoff_figure", note)
    path = draw_rivals(setting(tmp_path), "r", rows_and_files(tmp_path))
    assert path is not None
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert [curve.method for curve in drawn["curves"]] == ["ThiNet"]
    assert [mark.label for mark in drawn["marks"]] == ["dense, float32", "dense, int8"]
    assert draw_rivals(setting(tmp_path / "none"), "r", rows_and_files(tmp_path)[:1]) is None
