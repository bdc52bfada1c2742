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
│   └── FileError        a compiled file that is cut off, damaged, foreign, newer, or too large
├── InputError           an input of the wrong shape, type, or value
├── ExportError          a network that cannot be written in the format asked for
├── WriteError           a file that cannot be written: a full disk, a read-only folder (also an OSError)
└── MissingExtraError    an optional package that is not installed (also an ImportError)

All but the last two are also ValueErrors, so that callers who know only Python can catch them.

>>> import penstock as ps
>>> try:
...     ps.set_density(ps.zoo.pretrained("m_cifarnet-cifar10-any"), 1.5)
... except ps.errors.DensityError as error:
...     print(isinstance(error, ps.PenstockError), isinstance(error, ValueError))
True True
"""

from __future__ import annotations

from penstock_runtime.errors import (
    CompileError,
    DensityError,
    FileError,
    InputError,
    LayerError,
    MissingExtraError,
    PenstockError,
    WriteError,
    import_extra,
)

__all__ = [
    "CheckpointError",
    "CompileError",
    "DataError",
    "DensityError",
    "ExportError",
    "FileError",
    "InputError",
    "LayerError",
    "MissingExtraError",
    "PenstockError",
    "PruningError",
    "SurgeryError",
    "TrainingError",
    "WriteError",
    "import_extra",
]


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


class ExportError(PenstockError, ValueError):
    """A network that cannot be written in the format asked for."""
