"""penstock doctor says what is here, and the command that adds what is not."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tomllib
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


def test_what_every_extra_brings_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {name: listed for name, listed in project["optional-dependencies"].items() if name != "dev"}
    brought = {re.split(r"[\s<>=\[]", line)[0] for listed in extras.values() for line in listed}
    found = findings(capsys)
    assert brought <= found.keys()
    assert {found[name]["section"] for name in brought} == {"extras"}


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


def test_a_package_that_is_installed_but_does_not_import_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tensorboard.py").write_text("raise RuntimeError('operator missing\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    finding = findings(capsys)["tensorboard"]
    assert not finding["present"]
    assert finding["found"].endswith("but does not import: RuntimeError: operator missing")
    assert "pip install" in finding["remedy"]


def test_timm_and_torchvision_import_in_a_process_of_their_own() -> None:
    """Nothing declared their operators before, as the tests' own set-up does."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "doctor", "--json"], capture_output=True
    )
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["timm"]["present"], found["timm"]
    assert found["torchvision"]["present"], found["torchvision"]


def test_a_wrong_choice_of_instruction_set_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", "mmx")
    assert "PENSTOCK_ISA=mmx" in findings(capsys, code=1)["native module"]["remedy"]
