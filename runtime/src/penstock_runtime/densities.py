"""Densities: the share of a gated layer's channels that an image may compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_runtime.errors import DensityError, LayerError

Counts = npt.NDArray[np.int32]
_MOST_REMEMBERED = 1000


def check_density(density: object, where: str = "density") -> float:
    """Return `density` as a float in ]0, 1], or say what was wrong with it."""
    try:
        # Numpy and torch scalars are numbers; truth values and text are not, though float() takes them.
        value = math.nan if isinstance(density, bool | str | bytes) else float(density)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0.0 < value <= 1.0:
        raise DensityError(
            f"{where}: expected a number in ]0, 1], got {density!r}; "
            "1.0 computes every channel, 0.5 the most salient half"
        )
    return value


def layers_matching(pattern: str, names: Iterable[str], what: str, where: str = "") -> list[str]:
    """The layers that a name or a pattern such as ``layer4.*`` means.

    what: they are, for the error; where: the pattern stood, to go before it.
    """
    known = list(names)
    hits = [name for name in known if name == pattern or fnmatchcase(name, pattern)]
    if not hits:
        raise LayerError(f"{where}no {what} is named {pattern!r}; there are: {', '.join(known) or 'none'}")
    return hits


class Densities:
    """From what a call asks for to the number of channels that each gated layer computes."""

    def __init__(self, native: Any, gated: tuple[str, ...], own: Mapping[str, float]) -> None:
        self._native = native
        self._gated = gated
        self._own = own
        self._default = self._count(own)
        self._chosen: dict[float, Counts] = {}  # of uniform densities that were asked for

    def counts_for(self, density: float | Mapping[str, float] | None) -> Counts:
        """density: one number, {gated layer or pattern: number}, or None for the network's own."""
        if density is None:
            return self._default
        known = self._chosen.get(density) if type(density) is float else None
        if known is not None:
            return known
        if isinstance(density, Mapping):
            return self._count(self._by_layer(density))
        value = check_density(density)
        if value not in self._chosen:
            if len(self._chosen) >= _MOST_REMEMBERED:
                self._chosen.clear()
            self._chosen[value] = self._count(dict.fromkeys(self._gated, value))
        return self._chosen[value]

    def _by_layer(self, density: Mapping[str, float]) -> dict[str, float]:
        chosen = dict(self._own)
        for pattern, given in density.items():
            value = check_density(given, where=f"density of layer {pattern!r}")
            chosen.update(dict.fromkeys(layers_matching(pattern, self._gated, "gated layer"), value))
        return chosen

    def _count(self, densities: Mapping[str, float]) -> Counts:
        counts = np.empty(len(self._gated), np.int32)
        self._native.count_winners(np.array([densities[name] for name in self._gated], np.float64), counts)
        return counts
