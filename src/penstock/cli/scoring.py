"""Accuracy at several densities, through the engine or another runtime: what several commands print."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import nn

from penstock.cli.images import first_images
from penstock.datasets import Images, preprocess_of
from penstock.errors import DensityError
from penstock.gating import check_density, is_gated, set_density
from penstock.measuring.densities import try_compile
from penstock.measuring.runtimes import Runtime
from penstock.measuring.timing import at_density
from penstock.quantizing import Ranges
from penstock.reporting.comparison import Accuracy
from penstock.surgery.network import keep_densities
from penstock.training import evaluate


def parse_densities(text: str, option: str = "--density") -> list[float]:
    """ "0.5,0.7" → [0.5, 0.7].

    >>> parse_densities("0.5, 1")
    [0.5, 1.0]
    """
    values = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(item)
        except ValueError:
            raise DensityError(f"{option}: expected numbers as in 0.5,0.7, got {item!r}") from None
        values.append(check_density(value, option))
    return values


def score(
    network: nn.Module,
    data: Images,
    densities: Sequence[float],
    *,
    engine: bool = True,
    say: Callable[[str], None] | None = None,
    ranges: Ranges | None = None,
) -> list[Accuracy]:
    """Accuracy at each density, through the engine where there is one: it is what will be used.

    ranges: score the engine in int8, with these; none if it cannot be had.
    """
    prepare = preprocess_of(network, data)
    example = prepare(first_images(data, 1))
    runner, _ = try_compile(network, example, os.cpu_count() or 1, ranges) if engine else (None, "")
    if runner is None and ranges is not None:
        return []
    found = []
    with keep_densities(network):
        for density in list(densities) if densities and is_gated(network) else [None]:
            if density is not None:
                set_density(network, density)
            scored = network if runner is None else at_density(runner, density)
            one = evaluate(scored, data, preprocess=prepare)
            found.append(Accuracy(one.top1, one.top5))
            if say is not None:
                setting = "as it is" if density is None else f"at density {density:g}"
                precision = "" if ranges is None else " in int8"
                say(f"{setting}{precision}: top-1 {one.top1:.2f}%")
    return found


def score_runtime(run: Runtime, data: Images, network: nn.Module) -> Accuracy:
    """What a dense network keeps in another runtime."""
    found = evaluate(lambda x: torch.as_tensor(run(x)), data, preprocess=preprocess_of(network, data))
    return Accuracy(found.top1, found.top5)
