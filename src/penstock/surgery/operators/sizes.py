"""The sizes written out in a reshape: ``x.view(n, 64, -1)`` names its channels and must learn of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from penstock.surgery.operators.moving import RESHAPE, VIEW
from penstock.surgery.operators.table import use_of


def names_sizes(node: fx.Node) -> bool:
    """Whether a node is a reshape with sizes among its arguments."""
    return use_of(node).operator in (VIEW, RESHAPE)


def written_sizes(node: fx.Node) -> tuple[list[Any], bool]:
    """The sizes, numbers or steps that work them out, and whether they are packed into one argument."""
    packed = len(node.args) > 1 and isinstance(node.args[1], list | tuple)
    return (list(node.args[1]) if packed else list(node.args[1:])), packed  # type: ignore[arg-type]


def write_sizes(node: fx.Node, sizes: Sequence[Any], packed: bool) -> None:
    """Put `sizes` where `written_sizes` found them."""
    node.args = (node.args[0], tuple(sizes)) if packed else (node.args[0], *sizes)
