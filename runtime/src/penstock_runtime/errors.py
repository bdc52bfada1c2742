"""Every error the runtime raises on purpose; `penstock.errors` has these and those of its own.

PenstockError
├── DensityError         a density outside ]0, 1], or not a number
├── LayerError           an unknown layer name, or a layer that cannot do what was asked
├── CompileError         a network the engine cannot run
│   └── FileError        a compiled file that is cut off, damaged, foreign, newer, or too large
├── InputError           an input of the wrong shape, type, or value
├── WriteError           a file that cannot be written: a full disk, a read-only folder (also an OSError)
└── MissingExtraError    an optional package that is not installed (also an ImportError)

All but the last two are also ValueErrors, so that callers who know only Python can catch them.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class PenstockError(Exception):
    """The root: catch this to catch everything that Penstock raises on purpose.

    >>> import penstock_runtime
    >>> try:
    ...     penstock_runtime.load("nowhere.penstock")
    ... except PenstockError as error:
    ...     print(type(error).__name__)
    FileError
    """


class DensityError(PenstockError, ValueError):
    """A density that is not a number in ]0, 1]."""


class LayerError(PenstockError, ValueError):
    """A layer name that does not exist, or a layer that cannot do what was asked."""


class CompileError(PenstockError, ValueError):
    """A network that the engine cannot run."""


class FileError(CompileError):
    """A compiled file that cannot be trusted or cannot run here."""


class InputError(PenstockError, ValueError):
    """An input whose shape, type, or values do not fit."""


class WriteError(PenstockError, OSError):
    """A file that the system does not let us write; what stood there before is untouched."""

    def __str__(self) -> str:
        return str(self.args[1])


class MissingExtraError(PenstockError, ImportError):
    """An optional package is not installed; the message holds the command that adds it."""


def import_extra(module: str, extra: str, distribution: str = "penstock") -> ModuleType:
    """Import an optional module, or say which command installs it.

    >>> import_extra("json", "anything").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module} is not installed ({error}); run: pip install '{distribution}[{extra}]'"
        ) from error
