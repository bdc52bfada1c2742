"""How long `import penstock` takes on top of `import torch`.

    python benchmarks/import_time.py [--rounds 7] [--json]

Each in a fresh process, in turn, again and again; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

_CLOCK = "import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
_METHOD = "import penstock; penstock.add_gates, penstock.account, penstock.load, penstock.zoo"
_CASES = {
    "import torch": _CLOCK.format(code="import torch"),
    "import penstock, after torch": "import torch; " + _CLOCK.format(code="import penstock"),
    "... and add_gates, account, load, zoo": "import torch; " + _CLOCK.format(code=_METHOD),
}


def seconds(code: str) -> float:
    """What the code prints, run in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for code in _CASES.values():
        seconds(code)  # once for the disk
    rounds = [{name: seconds(code) for name, code in _CASES.items()} for _ in range(options.rounds)]
    medians = {name: statistics.median(taken[name] for taken in rounds) for name in _CASES}
    if options.json:
        print(json.dumps({"rounds": options.rounds, "seconds": medians}))
        return
    for name, median in medians.items():
        print(f"{name:40} {median:.3f} s")
    print(f"medians of {options.rounds} rounds in turn")


if __name__ == "__main__":
    main()
