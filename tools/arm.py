"""Runs the 64-bit ARM build under qemu-user and compares it with this machine's; `make arm` calls it.

    python tools/arm.py --build build/arm

In: the checks cross-compiled to --build. For each of three processors (matrix products, dot products,
neither) the kernels' own checks run, then every kept file and a shipped M-CifarNet in float32 and int8:
results must equal those of the runtime on this machine, to 1e-5 of the largest in float32 and exactly in
int8. Then the inner loops are read from the machine code: what they hold, and that they spill nothing. No
time is measured: an emulator has none to tell.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from arm_loops import LOOPS, check_loop

import penstock as ps
import penstock_runtime as pr

ROOT = Path(__file__).parent.parent
# qemu's name, and the int8 kernels that int8_test must have found there.
PROCESSORS = {
    "max": ("int8_neon_matrix", "int8_neon_dot", "int8_neon", "int8_baseline"),
    "neoverse-n1": ("int8_neon_dot", "int8_neon", "int8_baseline"),
    "cortex-a72": ("int8_neon", "int8_baseline"),
}
CHECKS = {
    "conv_test": ["20"],
    "ops_test": ["100"],
    "int8_test": ["40"],
    "fuzz_program": ["1000"],
    "team_test": ["200"],
}
DENSITIES = (0.0, 1.0, 0.5, 0.3)
NETWORK = "m_cifarnet-cifar10-any"
TOLERANCE = 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "arm")
    build: Path = parser.parse_args().build
    with tempfile.TemporaryDirectory() as folder:
        files = [*sorted((ROOT / "tests/runtime/files").glob("*.penstock")), *shipped(Path(folder))]
        failures = sum(run_checks(build, processor, sets) for processor, sets in PROCESSORS.items())
        for processor in PROCESSORS:
            failures += sum(not same_results(build, processor, file, Path(folder)) for file in files)
    failures += sum(not check_loop(build / "libpenstock.a", loop) for loop in LOOPS)
    print("ARM holds" if failures == 0 else f"{failures} failures")
    return int(failures > 0)


def shipped(folder: Path) -> list[Path]:
    """The shipped network, compiled on this machine in both precisions."""
    network = ps.zoo.pretrained(NETWORK)
    images = network.preprocess(ps.datasets.sample().images[:64])
    made = []
    for precision in ("float32", "int8"):
        calibration = {"calibration": images} if precision == "int8" else {}
        path = folder / f"{NETWORK}-{precision}.penstock"
        ps.compile(network, images[:1], precision=precision, **calibration).save(path)
        made.append(path)
    return made


def run_checks(build: Path, processor: str, sets: tuple[str, ...]) -> int:
    """How many of the kernels' own checks fail on `processor`."""
    failures = 0
    for check, words in CHECKS.items():
        done = emulate(processor, [build / check, *words])
        said = (done.stdout + done.stderr).strip().splitlines()
        print(f"{processor}: {check}: {said[-1] if said else ''}", flush=True)
        missing = [name for name in sets if check == "int8_test" and f" {name}" not in done.stdout]
        if done.returncode != 0 or missing:
            print(f"  failed with code {done.returncode}; kernels that did not run: {missing}")
            failures += 1
    return failures


def same_results(build: Path, processor: str, file: Path, folder: Path) -> bool:
    """Whether `file` gives on `processor` what it gives here."""
    engine = pr.load(file)
    images = np.random.default_rng(3).standard_normal((2, *engine.input_shape)).astype(np.float32)
    images.tofile(folder / "images")
    words = [build / "run_file", file, folder / "images", folder / "results", "2", *map(str, DENSITIES)]
    done = emulate(processor, words)
    if done.returncode != 0:
        print(f"{processor}: {file.stem}: {done.stderr}")
        return False
    wanted = np.stack([engine(images, density=d or None) for d in DENSITIES])
    found = np.fromfile(folder / "results", np.float32).reshape(wanted.shape)
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    exact = engine.precision == "int8"
    good = np.array_equal(found, wanted) if exact else error <= TOLERANCE
    rule = "exactly" if exact else f"to {error:.1e}"
    verdict = f"equal {rule}" if good else f"differ by {error:.1e}"
    sets = f"{done.stdout.strip()} against {engine.isa}"
    print(f"{processor}: {file.stem}: {wanted.size} results {verdict}, {sets}", flush=True)
    return good


def emulate(processor: str, words: list[str | Path]) -> subprocess.CompletedProcess[str]:
    command = ["qemu-aarch64", "-cpu", processor, "-L", "/usr/aarch64-linux-gnu", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
