"""A finished run becomes a published checkpoint: half-precision weights, checked against the run's own.

    python results/ship.py runs/resnet18-dense resnet18-imagenette-dense
    python results/ship.py runs/resnet18-any resnet18-imagenette-any 1.0,0.7,0.6,0.5

Reads the run's network and what it was trained on (its data.json), writes NAME.safetensors into
results/checkpoints with the training data and its terms in the notes, reads that file again, and scores both
networks on the test part at each density. If their top-1 differs by more than 0.05 points anywhere, the file
is taken away again.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import penstock as ps
from penstock.cli.models import CHECKPOINT
from penstock.cli.scoring import parse_densities, score
from penstock.cli.sources import Source, remembered
from penstock.cli.trainable import find_data
from penstock.errors import CheckpointError, DataError

TO = Path(__file__).parent / "checkpoints"
LIMIT = 0.05  # points of top-1
TERMS = {
    "imagenette": (
        "trained on Imagenette 2 (fast.ai): photographs of ten classes of ImageNet, which belong to their "
        "owners and are offered by ImageNet for non-commercial research and education; none is included"
    ),
    "cifar10": "trained on CIFAR-10 (Krizhevsky, 2009), which names no terms; no image is included",
}


def ship(run: Path, name: str, densities: list[float], to: Path = TO) -> list[dict[str, float | None]]:
    """The scores at each density: density, top1 in float32, top1_half, megabytes. Raises if they differ."""
    source = remembered(run)
    if source is None:
        raise DataError(f"{run}: it has no data.json, so nobody knows what it was trained on")
    network = ps.load(run / CHECKPOINT)
    target = to / f"{name}.safetensors"
    to.mkdir(parents=True, exist_ok=True)
    ps.save(network, target, half=True, notes=notes_of(source))
    _, test = find_data(source.data, 0, source.size)
    wide, half = (score(one, test, densities) for one in (network, ps.load(target)))
    size = target.stat().st_size / 1e6
    found: list[dict[str, float | None]] = []
    for density, one, other in zip(densities or [None], wide, half, strict=True):
        found.append({"density": density, "top1": one.top1, "top1_half": other.top1, "megabytes": size})
        if abs(one.top1 - other.top1) > LIMIT:
            target.unlink()
            raise CheckpointError(
                f"{name}: top-1 {one.top1:.2f}% in float32 and {other.top1:.2f}% in half precision (density "
                f"{density}), which differ by more than {LIMIT} points; ship it without half"
            )
    return found


def notes_of(source: Source) -> dict[str, object]:
    return {
        "source": asdict(source),
        "terms": TERMS.get(source.data, f"trained on {Path(source.data).name}; its terms are not known"),
    }


def main(words: list[str]) -> int:
    if len(words) not in (2, 3):
        sys.exit(__doc__)
    for row in ship(Path(words[0]), words[1], parse_densities(words[2] if len(words) > 2 else "")):
        density = "as it is" if row["density"] is None else f"d = {row['density']:g}"
        scores = f"top-1 {row['top1']:.2f}% in float32, {row['top1_half']:.2f}% as shipped"
        print(f"{words[1]}, {density}: {scores}; {row['megabytes']:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
