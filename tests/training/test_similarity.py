"""ManiDP's similarity loss: the formula, with and without the kernels that skip, and off by default."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.training.tiny import RECIPE, data, network
from torch import Tensor

import penstock as ps
from penstock.errors import TrainingError
from penstock.gating import gated_layers, set_density
from penstock.training import Recipe
from penstock.training.fast_layers import FastLayers
from penstock.training.fused import FusedLayers
from penstock.training.losses import similarity


def by_the_formula(maps: dict[str, Tensor], saliencies: dict[str, Tensor]) -> float:
    total = 0.0
    for name, out in maps.items():
        pooled, g = out.abs().mean((2, 3)), saliencies[name]
        pairs = [
            (
                float(F.cosine_similarity(g[i], g[j], dim=0)),
                float(F.cosine_similarity(pooled[i], pooled[j], dim=0)),
            )
            for i in range(len(g))
            for j in range(len(g))
        ]
        total += sum((a - b) ** 2 for a, b in pairs) / len(pairs)
    return total


@pytest.mark.parametrize("statistics", ["all", "winners"])
@pytest.mark.parametrize("kind", [FusedLayers, FastLayers])
def test_the_loss_is_the_formula_and_reaches_gates_and_filters(
    kind: type[FusedLayers], statistics: str
) -> None:
    gated = network().train()
    gated.drop.p = 0.0  # whose mask depends on how a map lies in memory
    set_density(gated, 0.5)
    maps: dict[str, Tensor] = {}
    fast = kind(gated, statistics)
    fast.pools = True
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    with fast:
        gated(x)
    found = similarity(fast.pooled)
    found.backward()
    for _, layer in gated_layers(gated):
        assert layer.gate.weight.grad is not None
        assert layer.conv.weight.grad is not None
        assert bool(layer.conv.weight.grad.any())
    again = network().train()
    again.drop.p = 0.0
    set_density(again, 0.5)
    for name, layer in gated_layers(again):
        layer.register_forward_hook(lambda _layer, _x, out, name=name: maps.__setitem__(name, out.detach()))
    with FusedLayers(again, statistics):
        again(x)
    saliencies = {
        name: layer.saliency.detach() for name, layer in gated_layers(again) if layer.saliency is not None
    }
    assert float(found.detach()) == pytest.approx(by_the_formula(maps, saliencies), rel=1e-3)


def test_it_is_off_by_default_and_changes_what_is_learned() -> None:
    plain, similar = network(), network()
    ps.train(plain, data(), None, RECIPE.replace(epochs=1, density=0.5))
    ps.train(similar, data(), None, RECIPE.replace(epochs=1, density=0.5, similarity=1.0))
    assert not torch.equal(plain.first.gate.weight, similar.first.gate.weight)
    with pytest.raises(TrainingError, match="at least 0"):
        Recipe().replace(similarity=-1.0)
