"""Least squares that make up for lost inputs: rows of what a layer reads, and what it should make of them.

    min over W' of ‖Y − X_kept W'‖² + ε‖W'‖²,  ε = ridge · mean of the diagonal of XᵀX

The ridge keeps nearly collinear channels from getting huge weights of opposite signs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from penstock.errors import PruningError
from penstock.pruning.groups import Group
from penstock.pruning.looking import flat_weight
from penstock.pruning.removable import Removable

RIDGE = 1e-4


def solve(gram: Tensor, moment: Tensor, ridge: float = RIDGE) -> Tensor:
    """(G + εI)⁻¹ m in double precision. gram: (n, n); moment: (n,) or (n, m)."""
    gram, moment = gram.double(), moment.double()
    size = float(gram.diagonal().mean())
    eye = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    return torch.linalg.solve(gram + max(ridge * size, 1e-12) * eye, moment)


def parts_by_root(found: Removable, group: Group, reader: str, parts: Tensor) -> Tensor:
    """Sum what each input contributes over the group's channels. parts: (rows, input) → (rows, roots).

    A flattened map gives a linear layer several inputs of one channel; inputs of other groups are left out.
    """
    place = {root: index for index, root in enumerate(group.roots)}
    slots = [place.get(found.ties.root(slot), -1) for slot in found.ties.reads[reader]]
    inputs = [index for index, at in enumerate(slots) if at >= 0]
    target = torch.tensor([slots[index] for index in inputs], device=parts.device)
    summed = parts.new_zeros(len(parts), len(group.roots))
    return summed.index_add_(1, target, parts[:, inputs])


def inputs_left(found: Removable, reader: str, gone: set[int]) -> list[int]:
    """The places of the reader's inputs that are not gone."""
    return found.left(found.ties.reads[reader], gone)


@torch.no_grad()
def refit_layer(
    layer: nn.Module, name: str, kept: Sequence[int], rows: Tensor, wanted: Tensor, ridge: float = RIDGE
) -> None:
    """Fit the weights of the kept inputs, in place; the bias and the other inputs' weights stay.

    rows: (rows, input, k²), what the layer reads now; wanted: (rows, output), without the bias.
    """
    features = rows[:, list(kept)].flatten(1).double()
    need_rows(name, len(features), features.shape[1])
    fitted = solve(features.T @ features, features.T @ wanted.double(), ridge)
    put_weights(layer, kept, fitted)


def put_weights(layer: nn.Module, kept: Sequence[int], fitted: Tensor) -> None:
    """Write fitted weights (kept inputs · k², outputs) into the layer."""
    weight = flat_weight(layer)
    shape = (weight.shape[0], len(kept), weight.shape[2])
    weight[:, list(kept)] = fitted.T.reshape(shape).to(weight)


def need_rows(name: str, rows: int, unknowns: int) -> None:
    """Refuse a fit with fewer equations than unknowns."""
    if rows < unknowns:
        raise PruningError(
            f"layer {name!r}: {rows} sampled rows cannot fit {unknowns} weights an output; "
            f"give at least {-(-unknowns // max(1, rows))} times as many images, or more positions an image"
        )
