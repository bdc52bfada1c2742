"""Networks of timm and torchvision by name: `make("timm", "resnet18", classes=10)`.

Fresh weights, nothing is downloaded. The network knows how it was made, so that checkpoints can name it, and
how it takes images. Loading such a checkpoint makes an architecture of an installed library by its name in
that library's own list, and follows no path that a file chose.

torchvision's compiled operators are often missing beside a CPU build of torch, and its import then fails on
the first one it describes (`operator torchvision::nms does not exist`). No classifier needs these operators,
so those that are missing are declared, without an implementation, before the import.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from penstock.datasets.folder import IMAGENET
from penstock.datasets.preprocess import Preprocess
from penstock.errors import LayerError, import_extra

LIBRARIES = ("timm", "torchvision")

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_DECLARED_AT_IMPORT = ("nms", "qnms")
_declared: list[Any] = []  # torch forgets a library whose object is gone
# These two have a second output in training, and warn unless told whether to draw their weights.
_WITH_EXTRA_HEADS = ("googlenet", "inception_v3")


def import_library(name: str) -> ModuleType:
    """timm or torchvision, whatever the state of torchvision's compiled operators."""
    mend_torchvision()
    return import_extra(name, "timm")  # timm brings torchvision


def mend_torchvision() -> list[str]:
    """Declare the operators that torchvision's import needs and that are missing; returns their names."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return []
    for binary in Path(found.submodule_search_locations[0]).glob("_C*.*"):
        if binary.suffix in (".so", ".pyd", ".dylib"):
            with contextlib.suppress(OSError, RuntimeError, ImportError):  # built for another torch
                torch.ops.load_library(str(binary))
    missing = [name for name in _DECLARED_AT_IMPORT if not hasattr(torch.ops.torchvision, name)]
    if missing:  # a second call finds them
        fragment = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            fragment.define(name + _SIGNATURE)
        _declared.append(fragment)
    return missing


def make(library: str, name: str, classes: int | None = None) -> nn.Module:
    """The network `name` of `library`, for `classes` classes, or for as many as the library gives it."""
    module = import_library(library)
    network = _make_timm(module, name, classes) if library == "timm" else _make_torchvision(name, classes)
    arguments = {} if classes is None else {"classes": classes}
    network.definition = {"library": library, "name": name, "arguments": arguments}  # type: ignore[assignment]
    return network


def _make_timm(timm: ModuleType, name: str, classes: int | None) -> nn.Module:
    _check_name("timm", name, timm.list_models(), timm.is_model(name.split(".")[0]))
    arguments = {} if classes is None else {"num_classes": classes}
    network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    known: dict[str, Any] = getattr(network, "pretrained_cfg", None) or {}
    if "mean" in known and "std" in known:
        network.preprocess = Preprocess(tuple(known["mean"]), tuple(known["std"]))  # type: ignore[assignment]
    return network


def _make_torchvision(name: str, classes: int | None) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    names = models.list_models(module=models)
    _check_name("torchvision", name, names, name in names)
    arguments: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if name in _WITH_EXTRA_HEADS:
        arguments |= {"aux_logits": False, "init_weights": True}
    network: nn.Module = models.get_model(name, weights=None, **arguments)
    network.preprocess = IMAGENET  # type: ignore[assignment]
    return network


def _check_name(library: str, name: str, names: list[str], known: bool) -> None:
    if known and name.replace("_", "").replace(".", "").isalnum():
        return
    near = [one for one in names if name and one.startswith(name[:4])][:5] or names[:5]
    raise LayerError(
        f"MODEL '{library}:{name}': {library} has no such network; some of its {len(names)}: "
        f"{', '.join(near)}"
    )
