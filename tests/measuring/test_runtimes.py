"""Every runtime says its precision; int8 networks are made from calibration images and stay true to float."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.measuring.test_densities import small

from penstock import datasets, zoo
from penstock.cli import bench, demo, report
from penstock.cli.main import main
from penstock.errors import InputError
from penstock.measuring.contest import Contest, Entry, prepare_contest, random_gates
from penstock.measuring.machine import processor
from penstock.measuring.runtimes import INSTALLED, INT8, dense_runtimes, runtime_names, same_classes
from penstock.reporting.contest_table import (
    contest_figure,
    contest_json,
    contest_table,
    dense_words,
    read_contest,
)
from penstock.reporting.tables import to_json
from penstock.surgery import add_gates

ZEN4 = """vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9B14
flags\t\t: fpu avx2 avx512f avx512_vnni

vendor_id\t: AuthenticAMD
"""


@pytest.fixture(scope="module")
def shipped() -> tuple[torch.nn.Module, torch.Tensor]:
    network = zoo.pretrained("m_cifarnet-cifar10-dense").eval()
    return network, network.preprocess(datasets.sample().images[::10])


# Two contests that overlap, then a signal whose handler runs on the alternate stack, as Python's do.
CHILD_ENDS = """
import faulthandler, os, signal, torch
from torch import nn
from penstock.measuring.runtimes import dense_runtimes
faulthandler.enable()
signal.signal(signal.SIGCHLD, lambda *_: print("child ended"))
network, image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()), torch.zeros(1, 3, 6, 6)
first = dense_runtimes(network, image, ["openvino"])
second = dense_runtimes(network, image, ["openvino"])
del first
del second
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_signals_are_handled_after_openvino_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD_ENDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "child ended" in done.stdout


@pytest.mark.parametrize("name", INT8)
def test_the_int8_network_has_the_float_networks_classes_on_images_it_was_not_calibrated_on(
    name: str, shipped: tuple[torch.nn.Module, torch.Tensor]
) -> None:
    network, images = shipped
    found = dense_runtimes(network, images[:1], [name], calibration=images[:16])
    assert found.problems == {}
    runtime = found.run[name]
    assert runtime.precision == "int8"
    assert runtime.agreement is not None
    assert runtime.agreement >= 0.9
    assert same_classes(network, runtime, images[16:]) >= 0.96
    with torch.no_grad():  # and it is not the float network under another name
        assert not torch.allclose(torch.as_tensor(runtime(images[:1])), network(images[:1]), atol=1e-4)


def test_without_calibration_images_there_is_no_int8_and_the_reason_is_said() -> None:
    found = dense_runtimes(small(), torch.rand(1, 3, 8, 8), INT8)
    assert found.run == {}
    assert all("needs calibration images" in why for why in found.problems.values())


def test_openvino_as_installed_says_what_it_computes_in() -> None:
    found = dense_runtimes(small(), torch.rand(1, 3, 8, 8), ["openvino", INSTALLED])
    assert found.run["openvino"].precision == "float32"
    wide = processor().flags & {"avx512_bf16", "amx_bf16", "bf16"}
    assert found.run[INSTALLED].precision == ("bfloat16" if wide else "float32")


def test_int8_stands_for_every_int8_runtime_and_an_unknown_name_is_refused() -> None:
    assert runtime_names("onnxruntime, int8,openvino-int8") == ["onnxruntime", *INT8]
    with pytest.raises(InputError, match=r"there is no 'tensorrt'; there are: torch, .*int8"):
        runtime_names("torch,tensorrt")


@pytest.mark.parametrize("threads", [0, -3, 100_000])
def test_a_number_of_threads_that_no_machine_has_is_refused(threads: int) -> None:
    with pytest.raises(InputError, match=f"threads: expected 1 to 1024, got {threads}"):
        dense_runtimes(small(), torch.rand(1, 3, 8, 8), ["torch"], threads)


def test_openvino_held_to_float32_brings_openvino_as_it_installs() -> None:
    assert runtime_names("openvino,int8") == ["openvino", INSTALLED, *INT8]
    for options in (bench, demo, report):
        assert {"openvino", INSTALLED, *INT8} <= {*runtime_names(options.Options.against)}


def test_a_processor_is_known_by_its_family_where_its_name_says_little() -> None:
    found = processor(ZEN4)
    assert (found.words, found.slug, found.multiplies_bytes) == ("AMD EPYC 9B14 (Zen 4)", "zen4", True)
    other = processor("model name\t: Some CPU 3\nflags\t: sse2\n")
    assert (other.words, other.slug, other.multiplies_bytes) == ("Some CPU 3", "some-cpu-3", False)


def entry(name: str, precision: str, density: float | None, milliseconds: float) -> Entry:
    return Entry(name, precision, density, milliseconds, milliseconds, 1.0, 100.0, 1.0)


CONTEST = Contest(
    "net",
    1,
    1,
    "avx2",
    100.0,
    (
        entry("torch", "float32", None, 40.0),
        entry("openvino", "float32", None, 30.0),
        entry(INSTALLED, "bfloat16", None, 15.0),
        entry("onnxruntime-int8", "int8", None, 12.0),
        entry("openvino-int8", "int8", None, 10.0),
        entry("penstock d = 0.5", "float32", 0.5, 5.0),
    ),
    {},
)


def test_the_dense_network_has_three_lines_and_each_names_its_precision() -> None:
    said = [(line, one.name, one.precision) for line, one in CONTEST.dense_lines.items()]
    assert said == [
        ("fastest float32", "openvino", "float32"),
        ("OpenVINO as installed", INSTALLED, "bfloat16"),
        ("fastest int8", "openvino-int8", "int8"),
    ]
    words = dense_words(CONTEST)
    assert words[:3] == [
        "dense, fastest float32: 30.0 ms (openvino, float32)",
        "dense, OpenVINO as installed: 15.0 ms (openvino-installed, bfloat16)",
        "dense, fastest int8: 10.0 ms (openvino-int8, int8)",
    ]
    assert contest_json(CONTEST)["dense_lines"] == {line: name for line, name, _ in said}


def test_a_disturbed_contestant_is_not_compared_and_a_contest_survives_being_written() -> None:
    shaky = replace(CONTEST.entries[1], steady=False)
    contest = replace(CONTEST, entries=(CONTEST.entries[0], shaky, *CONTEST.entries[2:]))
    assert contest.speed_up(contest.entries[-1]) is None
    assert contest.speed_up(contest.entries[-1], "int8") == 2.0
    assert any("Not compared: openvino." in line for line in dense_words(contest))
    assert read_contest(json.loads(json.dumps(contest_json(contest) | {"share": 1.0}))) == contest


def test_the_table_and_the_figure_name_every_contestants_precision() -> None:
    rows = to_json(contest_table(CONTEST))
    assert [row["precision"] for row in rows] == ["float32"] * 2 + ["bfloat16"] + ["int8"] * 2 + ["float32"]
    assert (rows[-1]["speed_up"], rows[-1]["speed_up_int8"]) == (6.0, 2.0)
    labels = [label.get_text() for label in contest_figure([CONTEST]).axes[0].get_yticklabels()]
    assert labels == [f"{one.name}, {one.precision}" for one in CONTEST.entries]


def test_a_contest_makes_the_int8_networks_itself() -> None:
    dense, images = small(), torch.rand(4, 3, 8, 8)
    contest = prepare_contest(
        "small",
        random_gates(add_gates(dense, images), images),
        dense,
        images[:1],
        densities=[0.5],
        rivals=["torch", "onnxruntime-int8"],
        calibration=images,
    ).hold(0.0, least_rounds=1)
    assert contest.problems == {}
    assert [(one.name, one.precision) for one in contest.entries] == [
        ("torch", "float32"),
        ("onnxruntime-int8", "int8"),
        ("penstock d = 0.5", "float32"),
        ("penstock int8 d = 0.5", "int8"),
    ]
    assert contest.entries[1].agreement is not None


def test_bench_holds_runtimes_to_an_instruction_set_and_says_which_cannot_be() -> None:
    # In a process of its own: oneDNN reads the setting once.
    command = ["bench", "m_cifarnet", "--against", "onnxruntime,openvino", "--density", "0.5"]
    command += ["--seconds", "0.01", "--isa", "baseline"]
    code = f"import sys; from penstock.cli.main import main; sys.exit(main({[*command, '--json']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ.copy())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["isa"] == "baseline"
    isas = {one["name"]: one["isa"] for one in said["entries"]}
    assert isas["openvino"].startswith("sse")
    assert isas["penstock d = 0.5"] == "baseline"
    held = Contest("net", 1, 1, "baseline", 1.0, (entry("onnxruntime", "float32", None, 1.0),), {})
    assert "ONNX Runtime has no such switch" in dense_words(held)[-1]


def test_bench_prints_the_machine_and_refuses_a_runtime_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "m_cifarnet", "--against", "torch", "--density", "0.5", "--seconds", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert processor().name in printed.splitlines()[0]
    assert "dense, fastest float32:" in printed
    assert main(["bench", "m_cifarnet", "--against", "tensorrt"]) != 0
    assert "there is no 'tensorrt'" in capsys.readouterr().err
