"""One network for many densities: gated layers with norm statistics, β and ρ of their own for each level.

At a low density a layer's features have another mean and spread than at a high one, and statistics shared by
all serve none of them well. A level is a density that has values of its own; a layer takes those of the level
nearest to its density, which its number of winners tells. Convolutions and φ serve all levels alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import DensityError, LayerError
from penstock.gating.winners import check_density, winner_count


def check_levels(levels: Sequence[float], where: str = "levels") -> tuple[float, ...]:
    """Return `levels` as at least two rising densities, or say what was wrong with them."""
    values = tuple(check_density(level, where) for level in levels)
    if len(values) < 2 or any(high <= low for low, high in itertools.pairwise(values)):
        raise DensityError(
            f"{where}: expected two or more rising densities such as 0.3, 0.5, 1.0, got {levels!r}"
        )
    return values


def level_edges(levels: Sequence[float], channels: int) -> list[int]:
    """The largest number of winners that each level but the last serves.

    >>> level_edges((0.2, 0.4, 1.0), 10)
    [3, 7]
    """
    return [winner_count((low + high) / 2, channels) for low, high in itertools.pairwise(levels)]


def check_takes_levels(norm: nn.Module, where: str = "") -> None:
    """Refuse levels for a gated layer whose norm cannot have any."""
    tracked = type(norm) is nn.BatchNorm2d and norm.running_mean is not None
    if not tracked and not isinstance(norm, nn.Identity):
        raise LayerError(f"{where}levels need a batch norm with running statistics, got {norm}")


class LevelNorm2d(nn.Module):
    """Batch norms without scale and shift, one for each level, (level, channel)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, levels: int, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(levels, channels))
        self.register_buffer("running_var", torch.ones(levels, channels))

    @classmethod
    def of(cls, norm: nn.BatchNorm2d, levels: int) -> LevelNorm2d:
        """Every level begins with the statistics of `norm`."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        made = cls(levels, norm.num_features, norm.eps, 0.1 if norm.momentum is None else norm.momentum)
        made.running_mean = norm.running_mean.detach().expand(levels, -1).clone()
        made.running_var = norm.running_var.detach().expand(levels, -1).clone()
        return made.train(norm.training)

    def one(self, row: int) -> nn.BatchNorm2d:
        """The norm of one level alone."""
        mean, variance = self.running_mean[row].clone(), self.running_var[row].clone()
        norm = nn.BatchNorm2d(len(mean), self.eps, self.momentum, affine=False)
        norm.running_mean, norm.running_var = mean, variance
        return norm.to(mean.device).train(self.training)

    def forward(self, z: Tensor, level: Tensor) -> Tensor:
        """z: (batch, channel, height, width); level: one for all, (), or one for each image, (batch,)."""
        if not self.training:
            scale = (self.running_var[level] + self.eps).rsqrt()
            return (z - self.running_mean[level][..., None, None]) * scale[..., None, None]
        if level.dim() == 0:
            return self._train(z, int(level))
        # The images of each level are normalised among themselves.
        order = torch.argsort(level, stable=True)
        sizes = torch.bincount(level, minlength=len(self.running_mean)).tolist()
        parts = z[order].split(sizes)
        normed = [self._train(part, row) for row, part in enumerate(parts) if len(part)]
        return torch.cat(normed)[torch.argsort(order)]

    def _train(self, z: Tensor, row: int) -> Tensor:
        mean, variance = self.running_mean[row], self.running_var[row]
        return F.batch_norm(z, mean, variance, training=True, momentum=self.momentum, eps=self.eps)

    def extra_repr(self) -> str:
        levels, channels = self.running_mean.shape
        return f"{channels}, levels={levels}, eps={self.eps}, momentum={self.momentum}"
