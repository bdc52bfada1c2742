"""penstock-run FILE IMAGE…: what a compiled network sees in images, and how long it takes.

penstock-run FILE alone tells what the file says about itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from penstock_runtime.engine import Engine, load
from penstock_runtime.errors import PenstockError
from penstock_runtime.pipes import run_until_unread
from penstock_runtime.results import Classification


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_until_unread(lambda: _run(_parser().parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    try:
        engine = load(options.file, threads=options.threads)
        found = {path: _classified(engine, path, options) for path in options.images}
    except PenstockError as error:
        print(f"penstock-run: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_plain(engine, found), ensure_ascii=False))
        return 0
    if not found:
        _describe(engine)
    for path, result in found.items():
        guesses = ", ".join(f"{one.name or one.index} {one.probability:.1%}" for one in result.guesses)
        print(f"{path}: {guesses}  ({result.milliseconds:.2f} ms)")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock-run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", metavar="FILE", help="a compiled network, as `penstock compile` writes it")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="photographs to classify")
    parser.add_argument(
        "--density", type=float, help="the share of channels to compute; default: the file's own"
    )
    parser.add_argument("--top", type=int, default=3, help="how many classes to print (3)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--repeats", type=int, default=5, help="calls an image, of which the fastest counts (5)"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def _classified(engine: Engine, path: str, options: argparse.Namespace) -> Classification:
    runs = [engine.classify(path, options.density, options.top) for _ in range(max(1, options.repeats))]
    return min(runs, key=lambda run: run.milliseconds)


def _describe(engine: Engine) -> None:
    info = engine.info
    print(f"{info.name or 'a network'}: {engine!r}")
    if info.classes:
        print(
            f"{len(info.classes)} classes: {', '.join(info.classes[:10])}{', …' if info.classes[10:] else ''}"
        )
    for one in info.measured:
        accuracy = "" if one.top1 is None else f"  top-1 {one.top1:.2f}%"
        print(f"density {one.density:g}{accuracy}{_milliseconds(one.milliseconds)}")
    if info.conditions:
        print(f"measured: {info.conditions}")


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"  {value:.2f} ms"


def _plain(engine: Engine, found: dict[str, Classification]) -> dict[str, Any]:
    return {
        "info": asdict(engine.info),
        "input": engine.input_shape,
        "isa": engine.isa,
        "threads": engine.threads,
        "images": {path: asdict(result) for path, result in found.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
