"""Every error Penstock raises on purpose.

PenstockError
├── DensityError         a density outside ]0, 1], or not a number
├── LayerError           an unknown layer name, or a layer that cannot do what was asked
├── SurgeryError         a network that cannot be traced or gated
├── CheckpointError      a file that is truncated, altered, foreign, or of a newer version
├── DataError            a data set that is missing, incomplete, or has a wrong byte
├── TrainingError        a run that cannot start, resume, or go on
├── PruningError         a budget that cannot be met, or a network that cannot be cut
├── CompileError         a network the engine cannot run
├── InputError           an input of the wrong shape, type, or value
├── ExportError          a network that cannot be written in the format asked for
└── MissingExtraError    an optional package that is not installed (also an ImportError)

All but the last are also ValueErrors, so that callers who know only Python can catch them.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class PenstockError(Exception):
    """The root: catch this to catch everything that Penstock raises on purpose."""


class DensityError(PenstockError, ValueError):
    """A density that is not a number in ]0, 1]."""


class LayerError(PenstockError, ValueError):
    """A layer name that does not exist, or a layer that cannot do what was asked."""


class SurgeryError(PenstockError, ValueError):
    """A network that cannot be traced or gated."""


class CheckpointError(PenstockError, ValueError):
    """A checkpoint that cannot be trusted or does not fit."""


class DataError(PenstockError, ValueError):
    """A data set that is missing, incomplete, or altered."""


class TrainingError(PenstockError, ValueError):
    """A training run that cannot start, resume, or go on."""


class PruningError(PenstockError, ValueError):
    """A budget that cannot be met, or a network whose channels cannot be cut."""


class CompileError(PenstockError, ValueError):
    """A network that the engine cannot run."""


class InputError(PenstockError, ValueError):
    """An input whose shape, type, or values do not fit."""


class ExportError(PenstockError, ValueError):
    """A network that cannot be written in the format asked for."""


class MissingExtraError(PenstockError, ImportError):
    """An optional package is not installed; the message holds the command that adds it."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which command installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module} is not installed ({error}); run: pip install 'penstock[{extra}]'"
        ) from error
