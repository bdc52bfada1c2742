"""Makes the embedded sample from the whole CIFAR-10 (`penstock data cifar10` first).

python tools/make_sample.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from penstock.datasets import cifar10
from penstock.datasets.embedded import SHA256, to_mosaic

EACH = 100


def main() -> None:
    data = cifar10("test")
    first = [torch.nonzero(data.labels == label).flatten()[:EACH] for label in range(len(data.classes))]
    indices = torch.cat(first).sort().values
    images = data.images[indices].numpy()
    labels = data.labels[indices].numpy().astype(np.uint8)
    folder = Path(__file__).parent.parent / "src" / "penstock" / "datasets" / "sample"
    Image.fromarray(to_mosaic(images)).save(folder / "cifar10-sample.png", optimize=True)
    notes = {"classes": data.classes, "labels": labels.tolist(), "test_indices": indices.tolist()}
    (folder / "cifar10-sample.json").write_text(json.dumps(notes) + "\n")
    found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    print(f"SHA-256 {found}" + ("" if found == SHA256 else f", and embedded.py says {SHA256}"))


if __name__ == "__main__":
    main()
