"""Which call made a network, so that a checkpoint can name it: ``network.definition``.

{"zoo": "m_cifarnet", "arguments": {"classes": 10, "dropout": 0.0}}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch import nn

P = ParamSpec("P")
N = TypeVar("N", bound=nn.Module)

MAKERS: dict[str, Callable[..., nn.Module]] = {}
"""Every maker of a zoo network by its name."""


def remembered(make: Callable[P, N]) -> Callable[P, N]:
    """Let `make` be known by its name, and let each network it makes know how it was made."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def maker(*args: P.args, **kwargs: P.kwargs) -> N:
        network = make(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        network.definition = {"zoo": make.__name__, "arguments": dict(given.arguments)}  # type: ignore[assignment]
        return network

    MAKERS[make.__name__] = maker
    return maker
