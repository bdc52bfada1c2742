"""The page's tables and numbers follow from the records; the two ways of counting are never mixed."""

from __future__ import annotations

from pathlib import Path

from penstock.measuring.timing import Timing
from penstock.reporting import Run, Sweep, SweepPoint, build_page
from penstock.reporting.build import PointCost, merged, points_table, runs_table, sweep_cards, tradeoffs
from penstock.reporting.tables import to_json

BASELINE = SweepPoint(91.0, 100e6, 100e6)


def sweep(method: str, *points: SweepPoint) -> Sweep:
    return Sweep(method, points, BASELINE)


def test_a_card_says_how_far_a_method_goes_within_a_point_of_accuracy() -> None:
    points = (SweepPoint(90.9, 60e6, 50e6, density=0.7), SweepPoint(90.1, 30e6, 25e6, density=0.5))
    too_low = SweepPoint(89.9, 11e6, 10e6, density=0.3)
    baseline, card = sweep_cards([sweep("FBS", *points, too_low)], BASELINE)
    assert baseline.value == "91.00%"
    assert (card.title, card.value) == ("FBS, within a point", "4.00×")
    assert "90.10%, d = 0.5" in card.detail


def test_parts_of_one_methods_curve_become_one_line() -> None:
    parts = [
        sweep("NS", SweepPoint(90.0, 80e6, 80e6)),
        sweep("FBS"),
        sweep("NS", SweepPoint(85.0, 40e6, 40e6)),
    ]
    assert [(one.method, len(one.points)) for one in merged(parts)] == [("NS", 2), ("FBS", 0)]


def test_a_point_counted_one_way_only_is_not_drawn_the_other_way() -> None:
    only_paper = sweep("FBS", SweepPoint(90.0, 44e6, None), SweepPoint(91.0, 80e6, 75e6))
    executed, paper = tradeoffs([only_paper], BASELINE)
    assert "ringed" in paper.wide.caption
    assert not any("ringed" in one.wide.caption for one in tradeoffs([only_paper], None))
    assert (executed.convention, paper.convention) == ("executed", "paper")
    assert "FBS: 91.00% at 75M." in executed.wide.svg
    assert "FBS: 90.00% at 44M, 91.00% at 80M." in paper.wide.svg


def test_points_carry_the_time_that_was_measured_at_their_density() -> None:
    run = Run("a", Path(), sweep=sweep("FBS", SweepPoint(90.0, 44e6, 43e6, density=0.5)))
    other = Run("b", Path(), sweep=sweep("NS", SweepPoint(88.0, 60e6, 60e6, ratio=0.4)))
    costs = [
        PointCost("a", 0.5, 43e6, Timing(1.5, 2.0, 9)),
        PointCost("a", 1.0, 99e6, Timing(4.5, 5.0, 9)),
        PointCost("b", None, 60e6, Timing(2.5, 3.0, 9)),
    ]
    rows = to_json(points_table([run, other], BASELINE, costs))
    assert [(row["method"], row["milliseconds"]) for row in rows] == [
        ("baseline", None),
        ("FBS", 1.5),
        ("NS", 2.5),
    ]
    assert rows[1]["saving"] == 100e6 / 43e6


def test_a_runs_row_has_the_cost_of_its_own_network() -> None:
    runs = [Run("a", Path(), ({"epoch": 3, "test_top1": 80.0},)), Run("b", Path())]
    costs = [
        PointCost("a", 1.0, 9e6, Timing(9.0, 9.0, 5)),
        PointCost("a", 0.5, 4e6, Timing(4.0, 4.0, 5), own=True),
    ]
    first, second = to_json(runs_table(runs, costs))
    assert (first["macs_executed"], first["milliseconds"], first["epochs"]) == (4e6, 4.0, 3)
    assert (second["macs_executed"], second["milliseconds"]) == (None, None)


def test_without_any_run_the_page_is_empty_and_says_so() -> None:
    page = build_page([], title="x")
    assert page.empty
    assert not page.cards
    assert not page.tradeoffs
