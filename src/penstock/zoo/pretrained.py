"""Published checkpoints, shipped inside the package: a name in, a network with its preprocessing out."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from penstock.errors import CheckpointError

_FOLDER = Path(__file__).parent / "checkpoints"


def available() -> list[str]:
    """The names `pretrained` takes.

    >>> all(isinstance(name, str) for name in available())
    True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def pretrained(name: str) -> nn.Module:
    """A trained network in evaluation mode; `network.preprocess` turns uint8 images into its input.

    >>> pretrained("m_cifarnet-cifar10-d50").conv0.density
    0.5
    """
    if name not in available():
        raise CheckpointError(
            f"no shipped checkpoint is named {name!r}; there are: {', '.join(available()) or 'none'}"
        )
    # Loading is the exporting room's work; the zoo needs it only here, and only when asked.
    from penstock.exporting import load

    return load(_FOLDER / f"{name}.safetensors").eval()
