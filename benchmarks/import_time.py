"""How long `import penstock` takes on top of `import torch`.

    python benchmarks/import_time.py [--rounds 11] [--json]

Each import runs in a fresh process; the two are interleaved, and the median of the differences is printed, so
that a busy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

_TORCH = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
_BOTH = (
    "import time; t = time.perf_counter(); import torch; import penstock; "
    "penstock.add_gates, penstock.account, penstock.load; print(time.perf_counter() - t)"
)
_ALONE = "import torch, time; t = time.perf_counter(); import penstock; print(time.perf_counter() - t)"


def seconds(code: str) -> float:
    """What the code prints, run in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for code in (_TORCH, _BOTH):
        seconds(code)  # once for the disk
    rounds = [(seconds(_TORCH), seconds(_BOTH), seconds(_ALONE)) for _ in range(options.rounds)]
    result = {
        "rounds": options.rounds,
        "import_torch_s": statistics.median(torch for torch, _, _ in rounds),
        "import_penstock_after_torch_s": statistics.median(alone for _, _, alone in rounds),
        "with_the_method_s": statistics.median(both - torch for torch, both, _ in rounds),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"import torch                                 {result['import_torch_s']:.3f} s")
    print(f"import penstock after it                     {result['import_penstock_after_torch_s']:.3f} s")
    print(f"and add_gates, account and load looked up    {result['with_the_method_s']:.3f} s")
    print(f"medians of {options.rounds} interleaved rounds")


if __name__ == "__main__":
    main()
