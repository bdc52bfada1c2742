"""Benchmark results are kept by machine and commit: nothing is overwritten, and the newest is found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.surgery.networks import MODELS

from penstock.measuring.contest import Contest, Entry
from penstock.measuring.machine import processor
from penstock.reporting.contest_table import read_contest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_another_commit_leaves_the_old_results_and_the_newest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = script("kept", monkeypatch)
    first = kept.keep("work", [{"ms": 2.0}], tmp_path, commit="aaaaaaa")
    second = kept.keep("work", [{"ms": 1.0}], tmp_path, commit="bbbbbbb")
    assert first == tmp_path / processor().slug / "work-aaaaaaa.json"
    for path, measured in ((first, "2026-01-02T00:00:00+00:00"), (second, "2026-01-01T00:00:00+00:00")):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"measured": measured}))
    assert kept.newest("work", folder=tmp_path).results == [{"ms": 2.0}]
    elsewhere = json.loads(first.read_text()) | {"machine": "zen9", "measured": "2026-02-01T00:00:00+00:00"}
    (tmp_path / "zen9").mkdir()
    (tmp_path / "zen9" / "work-ccccccc.json").write_text(json.dumps(elsewhere))
    assert kept.machines("work", tmp_path) == ["zen9", processor().slug]
    assert kept.newest("work", processor().slug, tmp_path).commit == "aaaaaaa"
    with pytest.raises(FileNotFoundError, match=r"python benchmarks/threads\.py"):
        kept.newest("threads", folder=tmp_path)


def test_pieces_of_one_benchmark_add_up_and_a_repeated_one_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = script("kept", monkeypatch)
    monkeypatch.setattr(kept, "current_commit", lambda: "aaaaaaa")
    kept.add("families", [{"network": "a", "ms": 1}], "network", tmp_path)
    kept.add("families", [{"network": "b", "ms": 2}], "network", tmp_path)
    kept.add("families", [{"network": "a", "ms": 3}], "network", tmp_path)
    rows = kept.newest("families", folder=tmp_path).results
    assert rows == [{"network": "b", "ms": 2}, {"network": "a", "ms": 3}]


def test_every_committed_result_can_be_read_and_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = script("kept", monkeypatch)
    files = sorted(kept.RESULTS.glob("*/*.json"))
    assert files
    for path in files:
        found = kept.load(path)
        assert path == kept.RESULTS / found.file
        assert found.processor
        assert "changed" not in found.commit
        if found.name in ("networks", "families"):
            for row in found.results:
                assert all(entry.precision for entry in read_contest(row).entries)


def test_the_families_are_the_conversion_lists_and_pieces_of_several_commits_make_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = script("kept", monkeypatch)
    families = script("families", monkeypatch)
    assert sorted(families.FAMILIES) == sorted(
        name.removeprefix("timm ") for name in MODELS if name.startswith("timm ")
    )
    shown = kept.newest("families", "zen3").results[0]
    rows = [shown | {"network": name} for name in ("efficientnet_b0", "resnet50")]
    old, new = (kept.keep("families", rows[: 2 - at], tmp_path, commit=f"{at}" * 7) for at in (0, 1))
    for path, measured in ((old, "2026-01-01T00:00:00+00:00"), (new, "2026-01-02T00:00:00+00:00")):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"measured": measured}))
    table = families.markdown(kept.latest_rows("families", "network", None, tmp_path))
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert [line.split(" | ")[0] for line in lines] == ["| resnet50", "| efficientnet_b0"]
    assert table.endswith("commit 0000000: resnet50; commit 1111111: efficientnet_b0.")


@pytest.mark.parametrize(
    ("times", "steady", "said"),
    [
        ({1.0: 9.5, 0.5: 5.0, 0.3: 2.0}, {1.0, 0.5, 0.3}, "from d = 0.5"),
        ({1.0: 9.5, 0.5: 9.6, 0.3: 9.7}, {1.0, 0.5, 0.3}, "no"),
        ({1.0: 9.5, 0.5: 5.0, 0.3: 2.0}, {1.0, 0.3}, "from d = 0.3 or more"),
        ({1.0: 9.5, 0.5: 5.0, 0.3: 2.0}, {0.5}, "from d = 0.5 or more"),
        ({1.0: 20.0, 0.5: 5.0, 0.3: 2.0}, {1.0}, "not known"),
    ],
)
def test_a_verdict_is_not_made_from_disturbed_times(
    times: dict[float, float], steady: set[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("kept", monkeypatch)
    families = script("families", monkeypatch)

    def entry(density: float | None, time: float, steady: bool) -> Entry:
        return Entry("one", "float32", density, time, time, 1.0, 1.0, 1.0, steady=steady)

    gated = (entry(density, time, density in steady) for density, time in times.items())
    contest = Contest("net", 1, 1, "avx2", 1.0, (entry(None, 10.0, True), *gated), {})
    assert families.verdict(contest) == said


def test_what_was_measured_at_this_commit_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = script("kept", monkeypatch)
    families = script("families", monkeypatch)
    monkeypatch.setattr(kept, "current_commit", lambda: "aaaaaaa")
    kept.add("families", [{"network": "resnet50"}], "network", tmp_path)
    before = kept.newest("families", folder=tmp_path)
    assert families.main(families.Options(networks="resnet50", out=tmp_path)) == 0
    assert "resnet50: measured at this commit already" in capsys.readouterr().out
    assert kept.newest("families", folder=tmp_path) == before
