"""Penstock: convolutional networks that compute only the channels each image needs.

    import penstock as ps

    gated = ps.add_gates(model, example)          # a copy of any CNN, with the paper's gates
    ps.set_density(gated, 0.5)                    # half the channels, chosen image by image
    engine = ps.compile(gated, example)           # the other half is never computed
    logits = engine(images)

The public surface is the list below; each name is imported when it is first used, so that `import penstock`
stays quick and optional packages stay optional.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock_runtime.version import __version__

_HOMES = {
    "Account": "penstock.accounting",
    "Budget": "penstock.search",
    "Engine": "penstock.engine",
    "Explanation": "penstock.surgery",
    "GatedConv2d": "penstock.gating",
    "PenstockError": "penstock.errors",
    "Recipe": "penstock.training",
    "Score": "penstock.training",
    "Thresholds": "penstock.search",
    "account": "penstock.accounting",
    "add_gates": "penstock.surgery",
    "compile": "penstock.engine",
    "evaluate": "penstock.training",
    "explain": "penstock.surgery",
    "export_onnx": "penstock.exporting",
    "fit_budget": "penstock.search",
    "fit_thresholds": "penstock.search",
    "load": "penstock.exporting",
    "remove_unused": "penstock.surgery",
    "saliency_penalty": "penstock.gating",
    "save": "penstock.exporting",
    "set_density": "penstock.gating",
    "train": "penstock.training",
}
_ROOMS = ("datasets", "errors", "zoo")

__all__ = [
    "Account",
    "Budget",
    "Engine",
    "Explanation",
    "GatedConv2d",
    "PenstockError",
    "Recipe",
    "Score",
    "Thresholds",
    "__version__",
    "account",
    "add_gates",
    "compile",
    "datasets",
    "errors",
    "evaluate",
    "explain",
    "export_onnx",
    "fit_budget",
    "fit_thresholds",
    "load",
    "remove_unused",
    "saliency_penalty",
    "save",
    "set_density",
    "train",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"penstock.{name}")
    else:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from penstock import datasets, errors, zoo
    from penstock.accounting import Account, account
    from penstock.engine import Engine, compile
    from penstock.errors import PenstockError
    from penstock.exporting import export_onnx, load, save
    from penstock.gating import GatedConv2d, saliency_penalty, set_density
    from penstock.search import Budget, Thresholds, fit_budget, fit_thresholds
    from penstock.surgery import Explanation, add_gates, explain, remove_unused
    from penstock.training import Recipe, Score, evaluate, train
