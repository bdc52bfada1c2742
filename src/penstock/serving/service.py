"""A network that is served: reloaded when its file changes, run through a scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.serving.controller import Controller
from penstock.serving.images import decode, prepare
from penstock.serving.model import load_model, stamp_of
from penstock.serving.scheduler import Done, Scheduler
from penstock_runtime.errors import PenstockError
from penstock_runtime.results import RunRecord, likeliest

log = logging.getLogger("penstock.serving")
_SHOWN = 5  # classes in an answer


@dataclass(frozen=True)
class Settings:
    """What the command line chooses. target: milliseconds; patience: how many targets a request may wait."""

    target: float = 20.0
    floor: float = 0.3
    ceiling: float = 1.0
    percentile: float = 0.95
    workers: int = 1
    patience: float = 10.0
    most_bytes: int = 16 << 20
    most_held: int = 256 << 20  # bytes of all bodies that are arriving, waiting or worked on
    most_images: int = 64
    timeout: float = 10.0  # seconds in which a request's body must have arrived


@dataclass(frozen=True)
class Classified:
    """classes: (name, probability), likeliest first. milliseconds: in the engine alone, without decoding.

    layers: {layer: its computed channels}, if asked for.
    """

    classes: list[tuple[str, float]]
    milliseconds: float
    layers: dict[str, dict[str, Any]] | None


class Served:
    """One model behind its scheduler. The model is replaced as a whole when its file changes."""

    def __init__(self, path: Path, settings: Settings, name: str | None = None) -> None:
        self.settings = settings
        self.model = load_model(path, name, settings.floor, settings.ceiling)
        self.reload_error = ""
        self.reloads = 0
        self._bad: tuple[int, int, int] | None = None  # the stamp of a file that could not be used
        controller = Controller(
            settings.target,
            settings.floor,
            settings.ceiling,
            lambda density: self.model.service(density),
            settings.workers,
            settings.percentile,
        )
        self.scheduler = Scheduler(controller, settings.patience * settings.target)

    async def infer(
        self, images: npt.NDArray[Any], density: float | None, deadline: float | None
    ) -> Done[npt.NDArray[np.float32]]:
        """images: (batch, channel, height, width), float32, or uint8 pixels, which are preprocessed."""
        model = self.model

        def run(at: float) -> npt.NDArray[np.float32]:
            engine = model.engine
            x = prepare(images, engine)
            result: npt.NDArray[np.float32] = engine(x, density=at if engine.gated else None)
            return result

        return await self.scheduler.run(run, density=density, deadline=deadline, weight=len(images))

    async def classify(
        self, content: bytes, density: float | None, deadline: float | None, layers: bool
    ) -> Done[Classified]:
        """content: an image file's bytes. layers: also say which channels were computed."""
        model = self.model

        def run(at: float) -> Classified:
            engine = model.engine
            images = decode(content, engine)
            asked = at if engine.gated else None
            before = time.perf_counter()
            record = engine.record(images, asked) if layers else None
            scores = record.outputs[0] if record else engine(images, density=asked)[0]
            taken = 1000 * (time.perf_counter() - before)
            guesses = likeliest(scores, engine.info.classes, _SHOWN)
            classes = [(one.name or str(one.index), one.probability) for one in guesses]
            return Classified(classes, taken, _channels(record) if record else None)

        return await self.scheduler.run(run, density=density, deadline=deadline)

    async def reload(self) -> None:
        """Load the file again if it changed; what is running goes on with what it has. A bad file is left."""
        stamp = None
        try:
            stamp = stamp_of(self.model.path)
            if stamp in (self.model.stamp, self._bad):
                return
            settings = self.settings
            fresh = await asyncio.to_thread(
                load_model, self.model.path, self.model.name, settings.floor, settings.ceiling
            )
        except (OSError, PenstockError) as error:
            if str(error) != self.reload_error:
                log.warning("%s: kept as it was, the new file cannot be used: %s", self.model.path, error)
            self.reload_error, self._bad = str(error), stamp
            return
        self.model, self.reload_error = fresh, ""
        self.reloads += 1
        log.info("%s: reloaded", fresh.path)

    def accuracy(self, density: float) -> tuple[float | None, float | None]:
        """Top-1 percent at a density, and what that gives away against the ceiling."""
        curve = self.model.accuracy
        if curve is None:
            return None, None
        now = curve(density)
        return now, curve(self.settings.ceiling) - now


def _channels(record: RunRecord) -> dict[str, dict[str, Any]]:
    """{gated layer: {"channels": how many there are, "computed": which of them}}, of one image."""
    return {
        name: {"channels": int(chosen.shape[1]), "computed": np.flatnonzero(chosen[0]).tolist()}
        for name, chosen in record.winners.items()
    }
