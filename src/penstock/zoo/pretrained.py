"""Published checkpoints: a name in, a network with its preprocessing out.

Small ones are shipped inside the package. Large ones would make every installation wait for them, so they lie
beside it in the repository (`results/checkpoints`) and are found from the repository's folder; elsewhere,
such a file is put into `checkpoints` in the data folder (PENSTOCK_DATA, else the user's cache).
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from penstock.errors import CheckpointError
from penstock.files import data_folder

_INSIDE = Path(__file__).parent / "checkpoints"
_BESIDE = Path("results", "checkpoints")  # for who stands in the repository
LARGE = ("resnet18-imagenette-any", "resnet18-imagenette-dense")
"""Those that the package does not hold."""


def available() -> list[str]:
    """The names `pretrained` takes.

    >>> all(isinstance(name, str) for name in available())
    True
    """
    return sorted(_files())


def checkpoint_path(name: str) -> Path:
    """The file of a published checkpoint."""
    found = _files()
    if name in found:
        return found[name]
    if name in LARGE:
        raise CheckpointError(
            f"{name!r} is a large checkpoint, which the package does not hold; take {name}.safetensors from "
            f"results/checkpoints of the repository and put it into {data_folder() / 'checkpoints'}"
        )
    raise CheckpointError(
        f"no shipped checkpoint is named {name!r}; there are: {', '.join(available()) or 'none'}"
    )


def pretrained(name: str) -> nn.Module:
    """A trained network in evaluation mode; `network.preprocess` turns uint8 images into its input.

    >>> pretrained("m_cifarnet-cifar10-d50").conv0.density
    0.5
    """
    path = checkpoint_path(name)
    # Loading is the exporting room's work; the zoo needs it only here, and only when asked.
    from penstock.exporting import load

    return load(path).eval()


def _files() -> dict[str, Path]:
    """Every published checkpoint that is there; the package's own come before others of the same name."""
    outside = (_BESIDE, data_folder() / "checkpoints")
    large = [folder / f"{name}.safetensors" for folder in outside for name in LARGE]
    inside = _INSIDE.glob("*.safetensors")
    return {path.stem: path for path in (*large, *inside) if path.is_file()}
