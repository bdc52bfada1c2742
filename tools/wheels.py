"""Builds the wheels of both packages, audits them, and tries the runtime's beside numpy alone.

    python tools/wheels.py --out dist

In: this source tree, and an environment with penstock, scikit-build-core and auditwheel. Out: dist/*.whl.
The runtime's wheel gets the manylinux tag that its symbols allow and is installed beside numpy in an
environment of its own; there every shipped network's file must give the bits that `penstock.compile`
gives here, in float32 and int8.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

import penstock as ps
from penstock.zoo.pretrained import available

ROOT = Path(__file__).parent.parent
DENSITIES = (1.0, 0.5)
MOST_BYTES = 3_000_000

# Runs in the other environment: files and images in, results compared bit for bit.
TRIAL = """
import importlib.util, pathlib, sys
import numpy as np
import penstock_runtime as pr
assert importlib.util.find_spec("torch") is None, "torch is there"
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.penstock")):
    engine = pr.load(path, threads=2)
    with np.load(path.with_suffix(".npz")) as kept:
        images = kept["images"]
        for name in kept.files:
            if name != "images":
                found = engine(images, density=float(name))
                assert np.array_equal(found, kept[name]), f"{path.name} at density {name} differs"
    print(f"{path.name}: equal bit for bit on {engine.isa}")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder)
        for source in ("runtime", "."):
            words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built)]
            pip(sys.executable, *words, str(ROOT / source))
        (runtime,) = built.glob("penstock_runtime-*.whl")
        (pure,) = built.glob("penstock-*.whl")
        run([sys.executable, "-m", "auditwheel", "show", str(runtime)])
        run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(runtime)])
        pure.replace(out / pure.name)
        wheel = max(out.glob("penstock_runtime-*.whl"), key=lambda path: path.stat().st_mtime)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB", flush=True)
        if wheel.stat().st_size > MOST_BYTES:
            print(f"the runtime's wheel has more than {MOST_BYTES / 1e6:g} MB", file=sys.stderr)
            return 1
        write_files(built)
        try_wheel(wheel, built)
    return 0


def write_files(folder: Path) -> None:
    """Every shipped network in both precisions, and its results on a few images of the sample."""
    data = ps.datasets.sample()
    for name in available():
        network = ps.zoo.pretrained(name)
        images = network.preprocess(data.images[:64])
        for precision in ("float32", "int8"):
            calibration = {"calibration": images} if precision == "int8" else {}
            engine = ps.compile(network, images[:1], precision=precision, **calibration)
            path = folder / f"{name}-{precision}.penstock"
            engine.save(path)
            densities = DENSITIES if engine.gated else (1.0,)
            results = {f"{d:g}": engine(images[:8], density=d).numpy() for d in densities}
            np.savez(path.with_suffix(".npz"), images=images[:8].numpy(), **results)


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel beside numpy alone, without a compiler in sight, and compare."""
    home = folder / "empty"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    pip(python, "install", "--quiet", "--only-binary", ":all:", str(wheel))
    listed = pip(python, "list", "--format", "json")
    names = {row["name"].lower().replace("_", "-") for row in json.loads(listed)} - {"pip", "setuptools"}
    if names != {"numpy", "penstock-runtime"}:
        raise SystemExit(f"expected numpy and penstock-runtime alone, found {sorted(names)}")
    run([python, "-I", "-c", TRIAL, str(folder)])


def pip(python: str, *words: str) -> str:
    return run([python, "-m", "pip", "--disable-pip-version-check", *words])


def run(words: list[str]) -> str:
    """Runs a command, shows what it says, and stops at the first that fails."""
    done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE)
    print(done.stdout, end="", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
