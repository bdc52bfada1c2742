"""Networks timed together: every one in one interleaved run, one image a call, one thread.

What is compared must be timed together, and rows come about hours apart: so a reproduction times all its
networks once more at the end, and keeps the times in a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.models import find_model
from penstock.cli.prune_report import TIMED, at_own_densities
from penstock.cli.reproductions.plan import Setting
from penstock.cli.trainable import find_data
from penstock.datasets import preprocess_of
from penstock.errors import DataError
from penstock.files import write_atomically
from penstock.measuring.densities import try_compile
from penstock.measuring.machine import machine_words
from penstock.measuring.timing import interleave
from penstock.pruning import calibration
from penstock.quantizing import calibrate
from penstock_runtime import load

_CALIBRATION = 256
_SECONDS_EACH = 0.6


@dataclass(frozen=True)
class Timed:
    """A network to time. model: as commands take it, or a compiled file. density: one for all layers, or each
    timed image's own."""

    model: str
    density: float | Sequence[dict[str, float]] | None = None
    precision: str = "float32"

    def densities(self) -> Sequence[Any]:
        """One for each image that is timed."""
        if isinstance(self.density, Sequence):
            return self.density
        return [self.density] * TIMED


@dataclass(frozen=True)
class Times:
    """Milliseconds by name; `unsteady` names those that may not be compared; `asked`: all that were tried,
    also those that the engine does not run."""

    milliseconds: Mapping[str, float] = field(default_factory=dict)
    unsteady: Sequence[str] = ()
    asked: Sequence[str] = ()
    machine: str = ""


def read_times(path: Path) -> Times:
    """What `time_together` wrote; nothing if it has not."""
    said = read_json(path)
    try:
        return Times() if said is None else Times(**said)
    except TypeError as error:
        raise DataError(f"{path}: not a file of times ({error}); delete it and run again") from error


def time_together(setting: Setting, path: Path, networks: Mapping[str, Timed], again: bool) -> None:
    """Time the networks into `path`, unless all of them are in it already."""
    if not networks or (not again and set(networks) <= set(read_times(path).asked)):
        return
    shown, test = find_data(setting.data, setting.holdout, setting.size)
    pixels = next(iter(test.test_batches(TIMED))).images
    calls: dict[str, Callable[[], object]] = {}
    compiled: dict[tuple[str, str], Any] = {}
    isa = ""
    for name, one in networks.items():
        key = (one.model, one.precision)
        if key not in compiled and one.model.endswith(".penstock"):
            engine = load(one.model, threads=1)
            compiled[key] = (engine, "", engine.preprocess(pixels))
        elif key not in compiled:
            network = find_model(one.model).eval()
            prepare = preprocess_of(network, test)
            ranges = None
            if one.precision == "int8":
                ranges = calibrate(network, calibration(shown, _CALIBRATION, prepare).images)
            compiled[key] = (*try_compile(network, prepare(pixels[:1]), 1, ranges), prepare(pixels))
        engine, _, images = compiled[key]
        if engine is not None:
            isa = engine.isa
            calls[name] = at_own_densities(engine, images.split(1), one.densities())
    timed = interleave(calls, seconds=_SECONDS_EACH * len(calls)) if calls else {}
    said = {
        "machine": machine_words(isa),
        "asked": list(networks),
        "milliseconds": {name: time.least for name, time in timed.items()},
        "unsteady": [name for name, time in timed.items() if not time.steady],
    }
    write_atomically(path, json.dumps(said, indent=1).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """An object from a file; None if there is no such file."""
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete it and run the same command again"
        ) from error
