"""Which class of photographs skips which channel, from a run that was trained on Imagenette.

    python results/photographs.py runs/reproduce/resnet18-d60      # results/figures/resnet18-skipping-*.png

Counts the masks of 500 validation photographs at 160 pixels, 50 of each class. What excites a channel most
and least is shown by `penstock report RUN`; those pictures hold photographs, so none is kept here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import penstock as ps
from penstock.cli.images import in_memory
from penstock.cli.models import CHECKPOINT
from penstock.reporting import skip_maps
from penstock.reporting.figures import save_figure, skipping_figure

TO = Path(__file__).parent / "figures"
LAYERS = ("layer1.1.conv2", "layer3.0.conv1", "layer4.1.conv1")
SIZE, IMAGES = 160, 500


def draw(run: Path) -> None:
    _, chosen = ps.datasets.hold_out(ps.datasets.imagenette("val", size=SIZE), IMAGES)
    data = in_memory(chosen)
    for one in skip_maps(ps.load(run / CHECKPOINT), data):
        if one.layer in LAYERS:
            figure = skipping_figure(
                one.probability, one.never_used, one.order, data.classes, title=one.layer, width=680
            )
            save_figure(figure, TO / f"resnet18-skipping-{one.layer.replace('.', '-')}.png")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
