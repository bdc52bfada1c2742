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
from penstock.cli.reproductions.rivals_table import Row, rivals_plots, rivals_table
from penstock.cli.reproductions.together import Timed, read_times, time_together
from penstock.cli.reproductions.tradeoff import Plan
from penstock.cli.reproductions.tradeoff_table import Point, tradeoff_plots, tradeoff_table
from penstock.pruning import METHODS, make_method
from penstock.reporting.reproduced import Reproduced, read_reproduced, write_reproduced
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


def test_short_rows_have_names_of_their_own_and_equal_training(tmp_path: Path) -> None:
    steps = ALL["cifar-rivals"].steps(setting(tmp_path, seeds=(0,), savings=(3.0,), short=True))
    rows = [step.words for step in steps if step.words[0] in ("prune", "train")]
    assert {words[words.index("--recipe.epoch-images") + 1] for words in rows} == {"2560"}
    assert all("-e3short-s0" in words[words.index("--out") + 1] for words in rows)
    for words in rows:  # every setting is one that the method has
        if "--settings" in words:
            first = words.index("--settings") + 1
            given = [word.split("=") for word in words[first:] if "=" in word]
            make_method(words[words.index("--method") + 1], dict(given))
    table = rivals_table(setting(tmp_path, short=True), "r", [])
    assert "2,560 images" in table.caption


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
    write(out / "r-times.json", {"asked": [], "milliseconds": times, "unsteady": []})
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
    assert lccl["note"] == "no time is claimed: the engine does not run it; not run yet"
    assert gating["top1"] is None
    assert gating["note"] == "saving 2: 1.5 is the most that can be had; not run yet"


def test_the_plot_has_a_marker_for_every_method_that_was_timed(tmp_path: Path) -> None:
    (plot,) = rivals_plots(setting(tmp_path), "r", rows_and_files(tmp_path))
    assert [(curve.method, curve.points[0].accuracy) for curve in plot.curves] == [("ThiNet", 90.5)]
    assert [mark.label for mark in plot.marks] == ["dense, float32", "dense, int8"]
    assert rivals_plots(setting(tmp_path / "none"), "r", rows_and_files(tmp_path)[:1]) == ()


def test_the_report_shows_what_was_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_and_files(tmp_path)
    table, plots = rivals_table(setting(tmp_path), "r", rows), rivals_plots(setting(tmp_path), "r", rows)
    made = Reproduced("r", "Rivals & controls", table, plots)
    write_reproduced(made, tmp_path)
    assert read_reproduced(tmp_path) == ([made], [])
    (tmp_path / "broken.table.json").write_text("{}")
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(out), "--no-engine", "--json"]) == 0
    assert "broken.table.json: not a table" in json.loads(capsys.readouterr().out)["notes"][0]
    page = out.read_text()
    assert '<h2 id="part-r">Rivals &amp; controls</h2>' in page
    assert "saving 2: 1.5 is the most that can be had; not run yet" in page
    assert 'id="plot-r' in page


def test_the_curves_have_the_points_of_the_issue_and_say_what_is_missing(tmp_path: Path) -> None:
    plan = Plan(setting(tmp_path))
    counts = {
        series: sum(point.series == series for point in plan.points()) for series in ("FBS", "NS", "any")
    }
    assert counts == {"FBS": 9, "NS": 8, "any": 10}
    scored = [
        {"precision": precision, "density": density, "top1": top1 - (precision == "int8")}
        | {"macs_paper": 100 * density, "macs_executed": 99 * density}
        for density, top1 in ((1.0, 92.0), (0.5, 90.0))
        for precision in ("float32", "int8")
    ]
    write(tmp_path / "cifar-tradeoff-any.json", {"rows": scored})
    dense = {"top1": 92.3, "macs_paper": 100, "macs_executed": 100}
    write(tmp_path / "t-dense.json", {"rows": [dense | {"precision": p} for p in ("float32", "int8")]})
    points = [
        Point("any", "d = 0.5", ("cifar-tradeoff-any",), "net", 0.5),
        Point("FBS", "d = 0.5", ("fbs-s0", "fbs-s1")),
    ]
    spent = {"cifar-tradeoff-any at 0.5, float32": 1.0, "cifar-tradeoff-any at 0.5, int8": 0.5}
    write(tmp_path / "t-times.json", {"asked": [], "milliseconds": spent, "unsteady": []})
    whole, half, missing = to_json(tradeoff_table(setting(tmp_path), "t", points))
    assert (whole["series"], whole["top1_int8"], whole["milliseconds"]) == ("dense", 92.3, None)
    assert (half["top1"], half["top1_int8"], half["saving"]) == (90.0, 89.0, 2.0)
    assert (half["milliseconds"], half["milliseconds_int8"]) == (1.0, 0.5)
    assert (missing["top1"], missing["note"]) == (None, "not run yet")
    plots = tradeoff_plots(setting(tmp_path), "t", points)
    assert [(plot.name, plot.axis) for plot in plots] == [
        ("t-macs", "macs"),
        ("t-float32", "milliseconds"),
        ("t-int8", "milliseconds"),
    ]
    assert [plot.curves[0].points[0].cost for plot in plots] == [50.0, 1.0, 0.5]


def test_networks_are_timed_together_once(tmp_path: Path) -> None:
    chosen = Setting("sample", 32, 1, 16, 1, 0, tmp_path)
    own = [{f"conv{index}": 0.5 for index in range(8)}] * 16
    networks = {"any": Timed("m_cifarnet-cifar10-any", 0.3), "own": Timed("m_cifarnet-cifar10-any", own)}
    path = tmp_path / "times.json"
    time_together(chosen, path, networks, again=False)
    found = read_times(path)
    assert set(found.milliseconds) == set(found.asked) == {"any", "own"}
    before = path.read_bytes()
    time_together(chosen, path, {"any": networks["any"]}, again=False)
    assert path.read_bytes() == before
