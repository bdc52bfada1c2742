"""The runtime's three figures: import time, size of its wheel, and how long ResNet-18 takes to load.

    make wheels && python benchmarks/runtime.py [--rounds 9] [--keep]

Imports run in fresh processes, in turn; loads in one process, from a file that the system has cached.
Medians are printed beside what they must stay below.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from kept import keep

import penstock as ps
import penstock_runtime as pr

ROOT = Path(__file__).parent.parent
LIMITS = {"import_ms": 60.0, "wheel_mb": 3.0, "load_float32_ms": 30.0, "load_int8_ms": 30.0}
_CLOCK = "import time; t = time.perf_counter(); {code}; print(1000 * (time.perf_counter() - t))"
_IMPORTS = {
    "nothing": "pass",
    "import_ms": "import penstock_runtime",
    "import_and_load_ms": "import penstock_runtime; penstock_runtime.load",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--wheel", type=Path, help="without it the newest of dist/penstock_runtime-*.whl")
    parser.add_argument("--keep", action="store_true", help="write the figures below benchmarks/results/")
    options = parser.parse_args()
    found = {**imports(options.rounds), **loads(options.rounds)}
    wheel = options.wheel or newest_wheel()
    if wheel is not None:
        found["wheel_mb"] = wheel.stat().st_size / 1e6
    if options.keep:
        medians = {name: round(value, 3) for name, value in found.items()}
        print(keep("runtime", {"rounds": options.rounds, "medians": medians, "limits": LIMITS}))
    for name, value in found.items():
        limit = f"  (must stay below {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"{name:20} {value:8.2f}{limit}")
    if wheel is None:
        print("wheel_mb: no wheel in dist/; run make wheels")


def imports(rounds: int) -> dict[str, float]:
    """Milliseconds of each import in a fresh interpreter."""

    def taken(code: str) -> float:
        words = [sys.executable, "-c", _CLOCK.format(code=code)]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    for code in _IMPORTS.values():
        taken(code)  # once for the disk
    times = [{name: taken(code) for name, code in _IMPORTS.items()} for _ in range(rounds)]
    return {name: statistics.median(t[name] for t in times) for name in _IMPORTS if name != "nothing"}


def loads(rounds: int) -> dict[str, float]:
    """Milliseconds of `load` for a gated ResNet-18 of 224 x 224 images in both precisions; random weights."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 224, 224)
    gated = ps.add_gates(ps.zoo.resnet18().eval(), images, density=0.5)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("float32", "int8"):
            calibration = {"calibration": images} if precision == "int8" else {}
            path = Path(folder) / f"{precision}.penstock"
            ps.compile(gated, images[:1], precision=precision, **calibration).save(path)
            times = []
            for _ in range(rounds + 1):
                begin = time.perf_counter()
                engine = pr.load(path)
                times.append(1000 * (time.perf_counter() - begin))
                del engine
            found[f"file_{precision}_mb"] = path.stat().st_size / 1e6
            found[f"load_{precision}_ms"] = statistics.median(times[1:])
    return found


def newest_wheel() -> Path | None:
    wheels = sorted((ROOT / "dist").glob("penstock_runtime-*.whl"), key=lambda path: path.stat().st_mtime)
    return wheels[-1] if wheels else None


if __name__ == "__main__":
    main()
