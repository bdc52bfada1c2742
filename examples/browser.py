"""A gated network as an ONNX file in which skipped channels are really skipped, for the browser too.

    python examples/browser.py --out network.onnx

The file has standard operators only. `docs/browser` is a page that runs one with onnxruntime-web: `make page`
builds it, any plain file server shows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime

import penstock as ps


def main(arguments: list[str] | None = None) -> Path:
    """Returns the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("network.onnx"))
    options = parser.parse_args(arguments)

    gated = ps.zoo.pretrained("m_cifarnet-cifar10-any")
    data = ps.datasets.sample()
    images = gated.preprocess(data.images[:8])
    ps.export_onnx(gated, options.out, images[:1])

    # What a browser does, here in Python: one image a call, the density is an input.
    session = onnxruntime.InferenceSession(options.out, providers=["CPUExecutionProvider"])
    for density in (1.0, 0.5, 0.3):
        feeds = {"density": np.array(density, np.float32)}
        logits = [session.run(None, {"images": image[None].numpy(), **feeds})[0] for image in images]
        found = np.concatenate(logits).argmax(1)
        right = int((found == data.labels[:8].numpy()).sum())
        print(f"density {density:g}: {right} of 8 images right")
    return options.out


if __name__ == "__main__":
    main()
