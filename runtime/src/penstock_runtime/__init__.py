"""Penstock's runtime: compiled networks that compute only the channels each image needs, with numpy alone.

    import penstock_runtime as pr

    engine = pr.load("net.penstock", threads=2)
    logits = engine(images, density=0.5)          # numpy in, numpy out
    engine.classify("cat.jpg")

The public surface is the list below; each name is imported when it is first used, so that `import
penstock_runtime` does not wait for numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock_runtime.version import __version__

_HOMES = {
    "Classification": "penstock_runtime.results",
    "Engine": "penstock_runtime.engine",
    "Guess": "penstock_runtime.results",
    "Info": "penstock_runtime.info",
    "LayerTime": "penstock_runtime.results",
    "Measurement": "penstock_runtime.info",
    "PenstockError": "penstock_runtime.errors",
    "Preprocess": "penstock_runtime.preprocess",
    "Profile": "penstock_runtime.results",
    "RunRecord": "penstock_runtime.results",
    "available_isas": "penstock_runtime.native",
    "chosen_isa": "penstock_runtime.native",
    "load": "penstock_runtime.engine",
}

__all__ = [
    "Classification",
    "Engine",
    "Guess",
    "Info",
    "LayerTime",
    "Measurement",
    "PenstockError",
    "Preprocess",
    "Profile",
    "RunRecord",
    "__version__",
    "available_isas",
    "chosen_isa",
    "errors",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "errors":
        value = importlib.import_module("penstock_runtime.errors")
    else:
        raise AttributeError(f"module 'penstock_runtime' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from penstock_runtime import errors
    from penstock_runtime.engine import Engine, load
    from penstock_runtime.errors import PenstockError
    from penstock_runtime.info import Info, Measurement
    from penstock_runtime.native import available_isas, chosen_isa
    from penstock_runtime.preprocess import Preprocess
    from penstock_runtime.results import Classification, Guess, LayerTime, Profile, RunRecord
