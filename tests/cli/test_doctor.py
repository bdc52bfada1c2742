"""penstock doctor says what is here, and the command that adds what is not."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.cli import doctor
from penstock.cli.main import main


def findings(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    assert main(["doctor", "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is (code == 0)
    return {finding["name"]: finding for finding in said["findings"]}


def test_versions_and_the_machine_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)
    assert found["torch"]["found"] == torch.__version__
    assert platform.python_version() in found["python"]["found"]
    assert "threads" in found["cores"]["found"]
    assert found["native module"]["present"]
    assert "baseline" in found["native module"]["found"]
    assert "GFLOPS" in found["one core"]["found"]


def test_the_table_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "everything needed is here" in said
    assert all(section in said for section in ("machine", "engine", "packages", "extras", "data"))


def test_missing_data_names_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    finding = findings(capsys)["CIFAR-10"]
    assert not finding["present"]
    assert finding["remedy"] == "run: penstock data cifar10"
    main(["doctor"])
    assert "optional: CIFAR-10; run: penstock data cifar10" in capsys.readouterr().out


def test_missing_packages_name_the_command_and_only_needed_ones_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = doctor.distribution

    def without(*absent: str) -> None:
        def look(name: str) -> Any:
            if name in absent:
                raise PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(doctor, "distribution", look)

    without("timm", "openvino")
    found = findings(capsys)
    assert found["timm"]["remedy"].endswith("pip install 'penstock[timm]'")
    assert found["openvino"]["remedy"].endswith("pip install 'penstock[compare]'")
    without("safetensors")
    assert findings(capsys, code=1)["safetensors"]["remedy"] == "run: pip install safetensors"
    assert main(["doctor"]) == 1
    assert "MISSING" in capsys.readouterr().out


def test_a_wrong_choice_of_instruction_set_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", "mmx")
    assert "PENSTOCK_ISA=mmx" in findings(capsys, code=1)["native module"]["remedy"]
