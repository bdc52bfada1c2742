"""From a command's MODEL to a network.

m_cifarnet                      a network of the zoo, fresh
m_cifarnet-cifar10-any          a checkpoint that is shipped
timm:resnet18, torchvision:…    a network of these libraries, fresh
module:callable                 what the callable returns; modules in the current folder are found
run/ or network.safetensors     a run's folder, or a checkpoint
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from torch import nn

from penstock.errors import LayerError, PenstockError
from penstock.zoo.definition import MAKERS
from penstock.zoo.pretrained import available, pretrained

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
"""The option of a command that names a network."""
CHECKPOINT = "model.safetensors"
COMPILED = "model.penstock"
"""The network's file in a run's folder."""


@dataclass(frozen=True)
class ModelOptions:
    """How a MODEL is read."""

    trust_import: bool = False
    """Follow the module:callable that a checkpoint names, which runs that module: for files you trust."""


def find_model(spec: str, classes: int | None = None, trust: ModelOptions | None = None) -> nn.Module:
    """The network that `spec` names, made or loaded; one of the zoo or of a library has `classes` classes."""
    if spec in MAKERS:
        return MAKERS[spec]() if classes is None else MAKERS[spec](classes=classes)
    if spec in available():
        return pretrained(spec)
    path = Path(spec)
    if path.suffix == ".safetensors" or path.is_dir():
        return load_trusted(path / CHECKPOINT if path.is_dir() else path, trust)
    module, colon, name = spec.partition(":")
    if not colon:
        raise LayerError(
            f"MODEL {spec!r} is neither a zoo name ({', '.join(MAKERS)}), nor a shipped checkpoint "
            f"({', '.join(available())}), nor timm:NAME, torchvision:NAME or module:callable, nor a "
            "checkpoint (.safetensors or a run's folder) that exists"
        )
    from penstock.exporting import libraries

    if module in libraries.LIBRARIES:
        return libraries.make(module, name, classes)
    made = _call(spec, module, name)
    made.definition = {"import": spec}  # type: ignore[assignment]  # so that checkpoints can name it
    return made


def load_trusted(path: Path, trust: ModelOptions | None = None) -> nn.Module:
    """The network of a checkpoint, made by an import path if the user said that the file may name one."""
    from penstock.exporting import load

    trusted = trust is not None and trust.trust_import
    if trusted:
        find_in_current_folder()
    return load(path, trust_import=trusted)


def default_place(model: str, suffix: str) -> Path:
    """Where a file made from MODEL goes if nobody says: beside the run's checkpoint, else in this folder."""
    path = Path(model)
    if path.is_dir():
        return path / f"model{suffix}"
    if path.suffix == ".safetensors":
        return path.with_suffix(suffix)
    return Path(model.rpartition(":")[2] + suffix)


def find_in_current_folder() -> None:
    """Let imports look into the current folder first, as `python -m` does; an installed command does not."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def _call(spec: str, module: str, name: str) -> nn.Module:
    find_in_current_folder()
    try:
        made = getattr(importlib.import_module(module), name)()
    except PenstockError:
        raise
    except Exception as error:  # the user's own code: say what it raised, and where
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise LayerError(f"MODEL {spec!r}: {type(error).__name__}: {error} ({where})") from error
    if not isinstance(made, nn.Module):
        raise LayerError(f"MODEL {spec!r}: expected a torch.nn.Module, got {type(made).__name__}")
    return made
