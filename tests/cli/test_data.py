"""`penstock data cifar10`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.datasets import official

from penstock.cli.main import main
from penstock.datasets import cifar


def test_what_the_user_has_is_read_once_and_found_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar, "SHA256", {key: cifar.sha256(a) for key, a in official.arrays().items()})
    folder = official.write(official.official_files(), tmp_path / "mine")
    assert main(["data", "cifar10", "--from", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["already"] is False
    assert main(["data", "cifar10"]) == 0
    assert "is there already" in capsys.readouterr().out


def test_a_wrong_source_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    assert main(["data", "cifar10", "--from", str(tmp_path / "nothing")]) == 2
    assert "nothing: there is no such file" in capsys.readouterr().err
