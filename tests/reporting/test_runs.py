"""Whatever lies in a runs folder, reading it gives records and notes, and never an exception."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.reporting import read_runs

LINE = {"epoch": 1, "loss": 1.5, "train_top1": 40.0, "density": 1.0, "test_top1": 50.0, "test_top5": 90.0}
CURVE = {
    "version": 1,
    "method": "FBS",
    "baseline": {"top1": 91.4, "top5": 99.7, "macs": 174301824},
    "points": [{"density": 0.5, "top1": 90.6, "top5": 99.6, "macs_paper": 44e6, "macs_executed": 41e6}],
}


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    run = tmp_path / "fbs"
    run.mkdir()
    (run / "metrics.jsonl").write_text(
        json.dumps(LINE) + "\n" + json.dumps(LINE | {"epoch": 2, "test_top1": 60.0}) + "\n"
    )
    (run / "run.toml").write_text('model = "m_cifarnet"\n[recipe]\nepochs = 2\n')
    (run / "curve.json").write_text(json.dumps(CURVE))
    (found,) = read_runs(tmp_path)
    assert (found.name, found.status, found.done, found.planned) == ("fbs", "finished", 2, 2)
    assert found.last("test_top1") == 60.0
    assert found.notes == ()
    assert found.sweep is not None
    assert found.sweep.baseline is not None
    assert found.sweep.baseline.macs_paper == 174301824
    assert found.sweep.points[0].setting == "d = 0.5"


def test_a_half_finished_run_says_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(LINE) + "\n" + '{"epoch": 2, "loss"')
    (tmp_path / "run.toml").write_text("epochs = 15\n")
    (found,) = read_runs(tmp_path)
    assert found.status == "epoch 1 of 15"
    assert found.notes == ("metrics.jsonl: line 2 is not whole JSON and was left out",)


def test_nested_runs_are_found_and_foreign_folders_are_not_runs(tmp_path: Path) -> None:
    for name in ("a/one", "a/two", ".hidden/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(LINE))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("milk")
    assert [run.name for run in read_runs(tmp_path)] == ["a/one", "a/two"]


def test_broken_files_become_notes(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "run.toml").write_text("= what")
    (tmp_path / "curve.json").write_text('{"points": [{"top1": "high"}, 7, {"top1": 90.0, "macs": 5}]}')
    (found,) = read_runs(tmp_path)
    said = "\n".join(found.notes)
    assert "metrics.jsonl: cannot be read" in said
    assert "run.toml: not TOML" in said
    assert "2 of 3 points lack accuracy or MACs" in said
    assert found.sweep is not None
    assert len(found.sweep.points) == 1


def test_a_checkpoint_outside_the_runs_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    points = [
        {"top1": 1.0, "macs": 1, "checkpoint": name}
        for name in ("../../secret.safetensors", "gone.safetensors")
    ]
    (run / "curve.json").write_text(json.dumps({"points": points}))
    (found,) = read_runs(tmp_path / "runs")
    assert found.sweep is not None
    assert [point.checkpoint for point in found.sweep.points] == [None, None]


def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        read_runs(tmp_path / "nowhere")


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert read_runs(tmp_path) == []


@given(
    data=st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)),
    name=st.sampled_from(["metrics.jsonl", "run.toml", "curve.json"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_of_a_file_raises(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(data)
    for run in read_runs(tmp_path):
        assert run.status
        run.last("test_top1")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["points", "baseline", "method", "top1", "macs", "epoch", "checkpoint", "density"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(value=_JSON)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_json_value_raises(tmp_path: Path, value: object) -> None:
    (tmp_path / "curve.json").write_text(json.dumps(value))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(value))
    (run,) = read_runs(tmp_path)
    assert run.status
