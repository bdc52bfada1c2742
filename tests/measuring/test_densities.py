"""Counts equal the accounting's, times come from one interleaved run, and no engine is no failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.reporting.networks import TwoLayers, coloured, halves
from torch import nn

from penstock.accounting import account
from penstock.errors import CompileError
from penstock.gating import set_density
from penstock.measuring.densities import DensityCost, Measured, RivalTime, measure, whole_account
from penstock.measuring.runtimes import dense_runtimes
from penstock.measuring.timing import Timing
from penstock.quantizing import Ranges, calibrate
from penstock.reporting.comparison import Accuracy, agreement_words, comparison_table
from penstock.reporting.tables import to_json
from penstock.surgery import add_gates


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def test_measured_counts_are_the_accounts_and_the_densities_are_put_back() -> None:
    network, x = TwoLayers(), halves(coloured().images)
    measured = measure(network, x, [1.0, 0.5], engine=False)
    assert [row.density for row in measured.rows] == [1.0, 0.5]
    assert (network.first.density, network.second.density) == (1.0, 0.5)
    for row in measured.rows:
        set_density(network, row.density)
        assert row.executed.macs == account(network, x, "executed").macs
        assert row.paper.macs == account(network, x, "paper").macs
        assert row.time is None
    assert measured.without_engine == "it was not asked for"


def test_the_whole_account_skips_nothing_and_puts_densities_back() -> None:
    network, x = TwoLayers(), halves(coloured().images[:1])
    whole = whole_account(network, x)
    assert [layer.active_out for layer in whole.layers] == [3, 4]
    assert network.second.density == 0.5


def test_the_engine_agrees_with_pytorch_and_is_timed() -> None:
    torch.manual_seed(1)
    network = add_gates(small(), torch.rand(1, 3, 8, 8))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("gate.weight"):
                parameter.normal_(0, 1)
    measured = measure(network, torch.rand(6, 3, 8, 8), [1.0, 0.5], seconds=0.0)
    if measured.without_engine:
        pytest.skip(measured.without_engine)
    for row in measured.rows:
        assert row.time is not None
        assert row.agreement is not None
        assert row.agreement.same == row.agreement.images == 6
        assert row.agreement.difference < 1e-4
        assert row.int8 is None
    assert "agree: the same class in all 12" in agreement_words(measured.rows)
    ranges = calibrate(network, torch.rand(6, 3, 8, 8))
    quantised = measure(network, torch.rand(6, 3, 8, 8), [1.0, 0.5], seconds=0.0, ranges=ranges)
    assert all(row.int8 is not None for row in quantised.rows)
    other = measure(network, torch.rand(6, 3, 8, 8), [1.0], seconds=0.0, ranges=Ranges({}, 1))
    assert "made for another network" in other.without_int8
    assert other.rows[0].int8 is None


def test_without_the_native_module_the_counts_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise CompileError("the native module is not built")

    monkeypatch.setattr("penstock.measuring.densities.compile", missing)
    measured = measure(TwoLayers(), halves(coloured().images), [0.5])
    assert measured.without_engine == "the native module is not built"
    assert measured.rows[0].time is None
    assert "milliseconds" not in [column.key for column in comparison_table(measured).columns]


def test_every_installed_runtime_computes_the_same() -> None:
    network, x = small(), torch.rand(2, 3, 8, 8)
    runtimes = dense_runtimes(network, x[:1])
    assert "torch" in runtimes.run
    with torch.no_grad():
        expected = network(x)
        for name, run in runtimes.run.items():
            for image, wanted in zip(x.split(1), expected, strict=True):
                assert torch.allclose(torch.as_tensor(run(image))[0], wanted, atol=1e-5), name
    for name, why in runtimes.problems.items():
        assert "not installed" in why, name


def test_a_runtime_that_is_not_there_is_left_out_with_a_reason() -> None:
    found = dense_runtimes(small(), torch.rand(1, 3, 8, 8), names=("torch", "no_such_runtime"))
    assert list(found.run) == ["torch"]
    assert "pip install no_such_runtime" in found.problems["no_such_runtime"]


def fake(density: float | None, milliseconds: float | None) -> DensityCost:
    network, x = TwoLayers(), halves(coloured().images)
    time = None if milliseconds is None else Timing(milliseconds, milliseconds, 5)
    return DensityCost(density, account(network, x, "paper"), account(network, x), time)


def test_faster_is_against_the_fastest_dense_runtime() -> None:
    rivals = {
        "dense, slow": RivalTime(Timing(9.0, 9.0, 5)),
        "dense, quick": RivalTime(Timing(4.0, 4.0, 5)),
        "dense, bytes": RivalTime(Timing(1.0, 1.0, 5), "int8"),
    }
    measured = Measured((fake(1.0, 5.0), fake(0.5, 2.0)), rivals)
    rows = to_json(
        comparison_table(
            measured,
            [Accuracy(90.0, 99.0), Accuracy(89.0, 98.0)],
            dense=Accuracy(91.0, 99.5),
            rivals={"dense, bytes": Accuracy(90.9, 99.4)},
        )
    )
    assert [(row["network"], row["precision"], row["speedup"], row["speedup_int8"]) for row in rows] == [
        ("d = 1", "float32", 0.8, 0.2),
        ("d = 0.5", "float32", 2.0, 0.5),
        ("dense, bytes", "int8", 4.0, 1.0),
        ("dense, quick", "float32", 1.0, 0.25),
        ("dense, slow", "float32", pytest.approx(4 / 9), pytest.approx(1 / 9)),
    ]
    assert [row["top1"] for row in rows] == [90.0, 89.0, 90.9, 91.0, 91.0]


def test_the_float_networks_accuracy_is_never_shown_for_int8() -> None:
    measured = Measured((fake(1.0, 5.0),), {"dense, bytes": RivalTime(Timing(1.0, 1.0, 5), "int8")})
    rows = to_json(comparison_table(measured, [Accuracy(90.0, 99.0)], dense=Accuracy(91.0, 99.5)))
    assert [row["top1"] for row in rows] == [90.0, None]


def test_int8_stands_below_float32_at_every_density_that_was_timed_or_scored_in_it() -> None:
    both = replace(fake(1.0, 5.0), int8=Timing(2.0, 2.0, 5))
    measured = Measured((both, fake(0.5, 2.0)), {"dense, bytes": RivalTime(Timing(4.0, 4.0, 5), "int8")})
    scores = [Accuracy(90.0, 99.0), Accuracy(89.0, 98.0)]
    rows = to_json(comparison_table(measured, scores, int8=[Accuracy(89.9, 98.9)]))
    assert [(row["network"], row["precision"], row["top1"], row["speedup_int8"]) for row in rows] == [
        ("d = 1", "float32", 90.0, 0.8),
        ("d = 1", "int8", 89.9, 2.0),
        ("d = 0.5", "float32", 89.0, 2.0),
        ("dense, bytes", "int8", None, 1.0),
    ]


def test_without_rivals_faster_is_against_the_highest_density() -> None:
    rows = to_json(comparison_table(Measured((fake(0.5, 2.0), fake(1.0, 5.0)))))
    assert [row["speedup"] for row in rows] == [2.5, 1.0]


def test_disagreement_is_said() -> None:
    from penstock.measuring.densities import Agreement

    row = fake(0.5, 1.0)
    bad = DensityCost(row.density, row.paper, row.executed, row.time, Agreement(10, 9, 0.5))
    assert "differ: the same class in 9 of 10" in agreement_words([bad])
    assert agreement_words([row]) == ""
