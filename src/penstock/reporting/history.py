"""The heat maps of every epoch: a callback for `train(on_epoch=…)` writes them, `read_history` reads them.

    train(network, train_data, test_data, recipe, out=out, on_epoch=SkipRecorder(test_data, out))

One small safetensors file an epoch, `skipping/epoch-0007.safetensors`, written whole or not at all; a resumed
run writes the same files again. Tensors: `images` (class,) and `skipped.LAYER` (class, channel), both int32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from torch import nn

from penstock.datasets import ImageArrays, hold_out
from penstock.errors import CheckpointError
from penstock.files import write_atomically
from penstock.gating import gated_layers
from penstock.reporting.skipping import SkipMap, skip_maps

_VERSION = "1"


@dataclass(frozen=True)
class EpochSkips:
    """The heat maps as they stood after one epoch."""

    epoch: int
    density: float | None
    classes: tuple[str, ...]
    maps: tuple[SkipMap, ...]


class SkipRecorder:
    """Called with (metrics, network) after each epoch, it keeps the epoch's heat maps in the run's folder.

    `limit`: the most images to look at, equally many of each class. `then`: another callback, called next.
    A network without gates is left alone.
    """

    def __init__(
        self,
        data: ImageArrays,
        folder: str | Path,
        *,
        limit: int = 1000,
        then: Callable[[dict[str, Any], nn.Module], None] | None = None,
    ) -> None:
        self.data = hold_out(data, limit)[1] if 0 < limit < len(data) else data
        self.folder = Path(folder)
        self.then = then

    def __call__(self, metrics: dict[str, Any], network: nn.Module) -> None:
        layers = list(gated_layers(network))
        if layers:
            density = sum(layer.density for _, layer in layers) / len(layers)
            maps = tuple(skip_maps(network, self.data))
            write_skips(EpochSkips(int(metrics["epoch"]), density, self.data.classes, maps), self.folder)
        if self.then is not None:
            self.then(metrics, network)


def write_skips(skips: EpochSkips, folder: Path) -> Path:
    """Keep one epoch's maps under the run's folder; returns the file."""
    tensors = {f"skipped.{one.layer}": one.skipped.astype(np.int32) for one in skips.maps}
    tensors["images"] = skips.maps[0].images.astype(np.int32)
    metadata = {
        "penstock-skipping": _VERSION,
        "epoch": str(skips.epoch),
        "density": json.dumps(skips.density),
        "classes": json.dumps(skips.classes),
        "layers": json.dumps([one.layer for one in skips.maps]),
    }
    path = folder / "skipping" / f"epoch-{skips.epoch:04d}.safetensors"
    write_atomically(path, safetensors.numpy.save(tensors, metadata))
    return path


def read_history(folder: str | Path) -> list[EpochSkips]:
    """All epochs that a recorder kept under the run's folder, in order; empty if there are none."""
    return [read_skips(path) for path in sorted((Path(folder) / "skipping").glob("epoch-*.safetensors"))]


def read_skips(path: Path) -> EpochSkips:
    """One epoch's maps."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("penstock-skipping") != _VERSION:
                raise CheckpointError(f"{path}: not an epoch of skipping maps of version {_VERSION}")
            images = file.get_tensor("images").astype(np.int64)
            layers: list[str] = json.loads(metadata["layers"])
            maps = tuple(SkipMap(n, file.get_tensor(f"skipped.{n}").astype(np.int64), images) for n in layers)
        for one in maps:
            if one.skipped.ndim != 2 or len(one.skipped) != len(images):
                raise CheckpointError(
                    f"{path}: layer {one.layer!r} has shape {one.skipped.shape}, expected ({len(images)}, …)"
                )
        density = json.loads(metadata["density"])
        return EpochSkips(int(metadata["epoch"]), density, tuple(json.loads(metadata["classes"])), maps)
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: cannot be read as an epoch of skipping maps ({error})") from error
