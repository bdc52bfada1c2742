"""Sizing by simulation: requests a second that keep p95 within a target, for 1 to 1,000 cores.

python benchmarks/queues.py
"""

from __future__ import annotations

from penstock.serving.simulation import sizing_rows


def main() -> None:
    print("| cores | density 1 | with the controller, 0.3..1.0 | gain |")
    print("| --- | --- | --- | --- |")
    for cores, fixed, controlled in sizing_rows((1, 2, 4, 16, 64, 256, 1000), 10.0, 1.4, 20.0):
        print(f"| {cores:,} | {fixed:,} | {controlled:,} | {controlled / max(fixed, 1):.1f}× |", flush=True)


if __name__ == "__main__":
    main()
