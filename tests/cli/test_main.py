"""What every command does alike: help in layers, one line for what went wrong, a quiet end of a pipe."""

from __future__ import annotations

import importlib
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.main import _COMMANDS, main
from penstock.measuring.contest import Contest, Entry
from penstock.reporting.contest_table import contest_table
from penstock.reporting.tables import Column, Table, to_rich, word
from penstock.reporting.terminal import print_table

KEPT = Path(__file__).parent.parent / "runtime" / "files" / "block-float32-v1-format4.penstock"
TRAIN = ["train", "m_cifarnet", "--epochs", "1", "--json", "--data"]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """The options that a page of help names."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code == 0
    return set(re.findall(r"--[a-z][a-z.-]+", capsys.readouterr().out))


def test_help_comes_in_layers(capsys: pytest.CaptureFixture[str]) -> None:
    first = help_of(capsys, "train", "--help")
    assert {"--out", "--data", "--density", "--epochs", "--preset", "--minutes", "--help-recipe"} <= first
    assert "--recipe.momentum" not in first
    recipe = help_of(capsys, "train", "--help-recipe")
    assert {"--recipe.momentum", "--recipe.distill", "--recipe.no-winograd"} <= recipe
    assert "--out" not in recipe
    every = help_of(capsys, "train", "--help-all")
    assert first - {"--help-all"} | {"--teacher", "--tensorboard"} <= every
    assert "--recipe.momentum" not in every


@pytest.mark.parametrize("command", _COMMANDS)
def test_the_first_page_of_help_has_ten_options_at_most(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    page = capsys.readouterr().out
    (own,) = re.findall(r"─ options ─.*?╰", page, re.DOTALL) or [""]
    shown = re.findall(r"^│ (--[a-z-.]+)", own, re.MULTILINE)
    assert len(shown) <= 10, shown
    hidden = getattr(importlib.import_module(f"penstock.cli.{command}"), "FURTHER", ())
    assert ("--help-all" in page) == bool(hidden)
    assert not {f"--{name.replace('_', '-')}" for name in hidden} & set(shown)


def test_no_option_is_shown_or_taken_that_the_command_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = help_of(capsys, "sweep", "--help-recipe")
    assert "--recipe.momentum" in sweep
    assert (
        not {"--recipe.epochs", "--recipe.density", "--recipe.density-schedule", "--recipe.any-low"} & sweep
    )
    prune = help_of(capsys, "prune", "--help-recipe")
    assert "--recipe.density-schedule" in prune
    assert "--recipe.density" not in prune
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "m_cifarnet", "--out", "x", "--recipe.density", "0.5"])
    assert ended.value.code == 2


def without_reader(program: list[str]) -> tuple[int, str]:
    """Exit code, and what was said on stderr, of a program whose output nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, *program], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    return done.returncode, done.stderr


def test_a_reader_who_has_seen_enough_ends_the_command_quietly() -> None:
    """Whether print, tyro or rich is the first to meet the closed pipe."""
    for words in (["--help"], ["data", "cifar10", "--help"], ["reproduce"]):
        assert without_reader(["-m", "penstock", *words]) == (0, ""), words
    for options in ([], ["--json"]):
        assert without_reader(["-m", "penstock_runtime.command", str(KEPT), *options]) == (0, "")


def test_another_broken_pipe_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> int:
        raise BrokenPipeError("a worker has died")

    monkeypatch.setattr("penstock.cli.main.run_command", broken)
    with pytest.raises(BrokenPipeError, match="a worker has died"):
        main(["doctor"])


def one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The command fails, and says why in one line."""
    assert main(words) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "machine is busy" not in line]
    assert len(said) == 1, said
    return said[0]


def test_places_that_cannot_be_written_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, images: Path
) -> None:
    words = [*TRAIN, str(images), "--size", "12", "--out"]
    (tmp_path / "file").write_text("not a folder")
    said = one_line(capsys, [*words, str(tmp_path / "file")])
    assert re.search(r"penstock train: .*file is a file, and a folder was expected", said)
    assert (tmp_path / "file").read_text() == "not a folder"
    assert "cannot be written" in one_line(capsys, [*words, "/proc/penstock/run"])
    words = ["export", "m_cifarnet", "--no-check", "--input", "3x32x32", "--out"]
    assert "penstock export: /proc/no" in one_line(capsys, [*words, "/proc/no/file.onnx"])
    words = ["compile", "m_cifarnet-cifar10-any", "--seconds", "0", "--json", "--out"]
    for folder in (str(tmp_path), "/"):
        said = one_line(capsys, [*words, folder])
        assert f"{folder}: cannot be written (it is a folder, and a file was expected)" in said


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def test_a_full_disk_is_one_line_and_the_last_good_file_stays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, images: Path
) -> None:
    """Files of at most 1 MB stand for a full disk: the system refuses the write in the same way."""
    out = tmp_path / "run"
    words = [*TRAIN, str(images), "--size", "12", "--out"]
    assert main([*words, str(out)]) == 0
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        said = one_line(capsys, [*words, str(out)])
    assert re.search(r"model\.safetensors: cannot be written \(File too large\)", said)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        said = one_line(capsys, [*words, str(tmp_path / "other")])
    assert "state.safetensors" in said


def test_a_device_is_not_replaced_by_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "pipe")]) == 2
    assert "it is a device, and an ordinary file was expected" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("command", ["evaluate", "quantize", "compile", "bench", "train", "sweep"])
def test_a_folder_of_damaged_images_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for part in ("train", "val"):
        (tmp_path / "images" / part / "cat").mkdir(parents=True)
        (tmp_path / "images" / part / "cat" / "a.png").write_bytes(b"no image")
    words = [command, "m_cifarnet", "--data", str(tmp_path / "images")]
    words += ["--out", str(tmp_path / "run")] if command in ("train", "sweep") else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(words) == 2
    assert "none of its images can be read" in capsys.readouterr().err.splitlines()[-1]


def test_too_little_memory_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    taken = int(re.search(r"VmSize:\s*(\d+)", Path("/proc/self/status").read_text()).group(1)) << 10  # type: ignore[union-attr]
    with limited(resource.RLIMIT_AS, taken + (64 << 20)):
        said = one_line(
            capsys, [*TRAIN, "sample", "--recipe.batch-size", "800", "--out", str(tmp_path / "run")]
        )
    assert "out of memory" in said
    assert "--recipe.batch-size" in said


@pytest.mark.parametrize("width", [30, 60, 100])
def test_tables_break_no_word_however_narrow_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = (
        Column("a", "runtime", numeric=False),
        Column("b", "milliseconds"),
        Column("c", "why", numeric=False),
    )
    reason = "bfloat16 where the processor has it"
    table = Table("t", "", columns, ((word("onnxruntime-int8"), word("12.345"), word(reason)),) * 2)
    print_table(Console(width=width), to_rich(table))
    said = capsys.readouterr().out
    for whole in ("onnxruntime-int8", "12.345", "milliseconds", *reason.split()):
        assert whole in said


def test_a_contest_fits_eighty_columns_and_breaks_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        "onnxruntime",
        "openvino-installed",
        "onnxruntime-int8",
        "penstock d = 0.5",
        "penstock int8 d = 0.7",
    ]
    entries = [Entry(name, "float32", 0.5, 4.643, 129.31, 215.6, 174.3e6, 75.0) for name in names]
    dense = [
        Entry("torch", one, None, 45.6, 50.1, 22.0, 174.3e6, 7.0, "", 0.969) for one in ("int8", "float32")
    ]
    contest = Contest("m_cifarnet", 1, 1, "avx2", 92.0, (*dense, *entries), {})
    print_table(Console(width=80), to_rich(contest_table(contest)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in (*names[:-1], "penstock d = 0.7"):
        assert any(name in line and "4.64" in line and "174.3M" in line for line in lines), name


def test_what_stands_in_brackets_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Rich would take "[compare]" in an install command, or brackets in a path, for markup and leave them out.
    out = tmp_path / "net[dim].penstock"
    assert main(["compile", "m_cifarnet", "--data", "sample", "--out", str(out)]) == 0
    assert out.exists()
    assert "net[dim].penstock" in capsys.readouterr().out.replace("\n", "")


def test_training_commands_let_waiting_threads_sleep() -> None:
    said = {}
    for command, given in (("train", {}), ("train", {"OMP_WAIT_POLICY": "active"}), ("doctor", {})):
        code = (
            "import atexit, os; from penstock.cli.main import main; "
            "atexit.register(lambda: print('policy', os.environ.get('OMP_WAIT_POLICY'))); "
            f"main(['{command}', '--help'])"
        )
        clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True)
        said[command, *given.values()] = done.stdout.splitlines()[-1]
    assert said == {
        ("train",): "policy passive",
        ("train", "active"): "policy active",  # what the user says holds
        ("doctor",): "policy None",
    }
