"""What a compiled file says about its network besides the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock_runtime.file import Content
from penstock_runtime.preprocess import Preprocess


@dataclass(frozen=True)
class Measurement:
    """The network at one density. top1: percent; milliseconds: of one image. None where nobody measured."""

    density: float
    top1: float | None = None
    milliseconds: float | None = None


@dataclass(frozen=True)
class Info:
    """What a network says about itself.

    levels: the densities for which it has norms of its own, if any. conditions: how `measured` was measured
    (machine, threads, images). licence: the text that goes with the file. versions: (package, version)
    of what made it.
    """

    name: str = ""
    precision: str = "float32"
    classes: tuple[str, ...] = ()
    preprocess: Preprocess | None = None
    levels: tuple[float, ...] = ()
    measured: tuple[Measurement, ...] = ()
    conditions: str = ""
    licence: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    def sections(self) -> dict[str, Content]:
        """The sections of a file that say the same; what is empty has none."""
        found: dict[str, Content] = {
            "about/name": [self.name],
            "about/precision": [self.precision],
            "about/versions": [f"{package} {version}" for package, version in self.versions],
            "about/licence": [self.licence],
            "classes": self.classes,
            "gates/levels": np.array(self.levels, np.float64),
            "measured/densities": np.array([one.density for one in self.measured], np.float64),
            "measured/top1": _column([one.top1 for one in self.measured]),
            "measured/milliseconds": _column([one.milliseconds for one in self.measured]),
            "measured/conditions": [self.conditions],
        }
        if self.preprocess is not None:
            found["preprocess/mean"] = np.array(self.preprocess.mean, np.float64)
            found["preprocess/std"] = np.array(self.preprocess.std, np.float64)
            if self.preprocess.resize is not None:
                found["preprocess/resize"] = np.array([self.preprocess.resize], np.float64)
        return {name: content for name, content in found.items() if len(content) and any(map(_said, content))}

    @classmethod
    def read(cls, find: Callable[[str], Any]) -> Info:
        """find: a section's name → its array or list of strings, or None; C++ has checked the numbers."""

        def numbers(name: str) -> tuple[float, ...]:
            found = find(name)
            return () if found is None else tuple(found.tolist())

        densities = numbers("measured/densities")
        nobody = (None,) * len(densities)
        columns = (numbers(f"measured/{what}") or nobody for what in ("top1", "milliseconds"))
        mean, std, resize = (numbers(f"preprocess/{what}") for what in ("mean", "std", "resize"))
        return cls(
            name=_first(find("about/name")),
            precision=_first(find("about/precision")),
            classes=tuple(find("classes") or ()),
            preprocess=Preprocess(mean, std, resize[0] if resize else None) if mean else None,
            levels=numbers("gates/levels"),
            measured=tuple(Measurement(*row) for row in zip(densities, *columns, strict=True)),
            conditions=_first(find("measured/conditions")),
            licence=_first(find("about/licence")),
            versions=tuple(_pair(text) for text in find("about/versions") or ()),
        )


def _said(part: object) -> bool:
    return part is not None and part != ""


def _column(values: list[float | None]) -> Content:
    """The numbers as an array, which is empty if any of them is unknown."""
    known = [value for value in values if value is not None]
    return np.array(known if len(known) == len(values) else [], np.float64)


def _first(texts: list[str] | None) -> str:
    return texts[0] if texts else ""


def _pair(text: str) -> tuple[str, str]:
    package, _, version = text.rpartition(" ")
    return package, version
