"""From a command's MODEL to a network: a zoo name, `module:callable`, a checkpoint, or a run's folder."""

from __future__ import annotations

import importlib
from pathlib import Path

from torch import nn

from penstock.errors import LayerError
from penstock.zoo.definition import MAKERS
from penstock.zoo.pretrained import available, pretrained


def find_model(spec: str, classes: int | None = None) -> nn.Module:
    """The network that `spec` names, freshly made or loaded; a zoo network is made for so many classes."""
    if spec in MAKERS:
        return MAKERS[spec]() if classes is None else MAKERS[spec](classes=classes)
    if spec in available():
        return pretrained(spec)
    path = Path(spec)
    if path.suffix == ".safetensors" or path.is_dir():
        from penstock.exporting import load

        return load(path / "model.safetensors" if path.is_dir() else path)
    if ":" in spec:
        module, _, name = spec.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)()
        except (ImportError, AttributeError) as error:
            raise LayerError(f"MODEL {spec!r}: {error}") from error
        if not isinstance(made, nn.Module):
            raise LayerError(f"MODEL {spec!r}: expected a torch.nn.Module, got {type(made).__name__}")
        made.definition = {"import": spec}  # type: ignore[assignment]  # so that checkpoints can name it
        return made
    raise LayerError(
        f"MODEL {spec!r} is neither a zoo name ({', '.join(MAKERS)}), nor module:callable, nor a checkpoint "
        "(.safetensors or a run's folder) that exists"
    )
