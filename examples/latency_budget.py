"""A budget in, a density for every layer out, and what it costs and keeps.

    python examples/latency_budget.py
    python examples/latency_budget.py --milliseconds 0.6

MACs are the default here because they are the same on every machine; milliseconds are measured on yours.
"""

from __future__ import annotations

import argparse

import penstock as ps


def main(arguments: list[str] | None = None) -> ps.Budget:
    """Returns the densities that were found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--milliseconds", type=float)
    parser.add_argument("--saving", type=float, default=3.0, help="how many times fewer MACs")
    parser.add_argument("--images", type=int, default=200)
    options = parser.parse_args(arguments)

    gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")  # trained for every density
    _, data = ps.datasets.hold_out(ps.datasets.sample(), options.images)
    asked = (
        {"saving": options.saving} if options.milliseconds is None else {"milliseconds": options.milliseconds}
    )
    budget = ps.fit_budget(gated, data, **asked)
    budget.apply(gated)

    for layer, density in budget.densities.items():
        print(f"{layer:8} {density:.2f}")
    print(f"{budget.saving:.2f}× fewer MACs, {budget.top1:.1f}% top-1 on images that no choice saw")
    return budget


if __name__ == "__main__":
    main()
