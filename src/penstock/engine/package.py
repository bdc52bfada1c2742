"""A program, and what its network says about itself → an engine: the compiled file's bytes at work."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from penstock.gating import gated_layers
from penstock_runtime import Engine, Info, Preprocess, __version__
from penstock_runtime.file import pack
from penstock_runtime.program import Program


def make_engine(
    program: Program, network: nn.Module, densities: Mapping[str, float], threads: int, isa: str
) -> Engine:
    """densities: {gated layer: its own}; `network` tells levels and preprocessing."""
    preprocess = getattr(network, "preprocess", None)
    levels = next((layer.levels for _, layer in gated_layers(network)), ())
    info = Info(
        precision=program.precision,
        preprocess=preprocess if isinstance(preprocess, Preprocess) else None,
        levels=tuple(levels),
        versions=(("penstock", __version__), ("torch", str(torch.__version__)), ("numpy", np.__version__)),
    )
    own = np.array([densities[name] for name in program.gated], np.float64)
    engine = Engine(pack({"gates/densities": own, **info.sections(), **program.sections()}), threads, isa)
    engine.preprocess = preprocess  # a function of the user's own stays with the engine, not with its file
    return engine
