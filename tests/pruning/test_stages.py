"""The training around a method: rounds, gates on top, and going on after an interruption."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pruning.colours import RECIPE, coloured
from torch import Tensor, nn

from penstock.errors import PruningError, TrainingError
from penstock.gating import gated_layers, is_gated
from penstock.pruning import Budget, NetworkSlimming, Plan, Pruned, Stage, prune_in_stages
from penstock.training import Recipe, Step


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 12, 3, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.conv3, self.norm3 = nn.Conv2d(12, 16, 3, bias=False), nn.BatchNorm2d(16)
        self.act = nn.ReLU()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(x)))
        x = self.act(x + self.norm2(self.conv2(x)))
        return self.fc(self.act(self.norm3(self.conv3(x))).mean((2, 3)))


def test_rounds_train_cut_and_fine_tune_and_reach_the_budget(tmp_path: Path) -> None:
    seen: list[Stage] = []
    plan = Plan(Budget(saving=2.0), RECIPE, RECIPE, rounds=2)
    network = Small()
    first = network.conv1.weight.clone()
    outcome = prune_in_stages(
        network, NetworkSlimming(), coloured(), coloured(30), plan, out=tmp_path, on_stage=seen.append
    )
    names = [f"round{index}/{stage}" for index in (1, 2) for stage in ("sparse", "cut", "finetune")]
    assert [stage.name for stage in seen] == names == [stage.name for stage in outcome.stages]
    assert torch.equal(network.conv1.weight, first)
    one, two = outcome.cuts
    assert 2**0.5 <= one.saving < 1.2 * 2**0.5  # one channel of so small a network is a tenth of its cost
    assert two.macs_before == one.macs_after
    assert 2.0 <= one.macs_before / two.macs_after < 2.4
    assert outcome.gated is None
    assert (tmp_path / "round2" / "finetune" / "metrics.jsonl").exists()
    last = outcome.stages[-1].score
    assert last is not None
    assert last.images == 30


def test_a_ratio_over_rounds_adds_up() -> None:
    plan = Plan(Budget(ratio=0.5), rounds=3)
    cuts = prune_in_stages(Small(), NetworkSlimming(), coloured(), None, plan).cuts
    assert 1 - cuts[-1].channels_after / cuts[0].channels_before == pytest.approx(0.5, abs=0.06)
    assert cuts[0].channels_after > cuts[1].channels_after > cuts[2].channels_after


def test_the_lasso_makes_the_scales_smaller_before_the_cut() -> None:
    def scales(sparsity: float) -> float:
        torch.manual_seed(0)
        stages: list[Stage] = []
        plan = Plan(Budget(ratio=0.1), RECIPE)
        prune_in_stages(Small(), NetworkSlimming(sparsity), coloured(), None, plan, on_stage=stages.append)
        norms = [m.weight for m in stages[0].network.modules() if isinstance(m, nn.BatchNorm2d)]
        return torch.cat([norm.detach().abs() for norm in norms]).sum().item()

    assert scales(0.5) < scales(0.0) - 1.0


def test_gates_come_on_top_of_the_smaller_network_and_train_at_their_density() -> None:
    gates = Recipe(epochs=1, batch_size=16, learning_rate=0.02, density=0.6, threads=1)
    plan = Plan(Budget(ratio=0.25), gated=gates)
    outcome = prune_in_stages(Small(), NetworkSlimming(), coloured(), coloured(12), plan)
    assert outcome.gated is not None
    layers = dict(gated_layers(outcome.gated))
    assert set(layers) == {"conv1", "conv2", "conv3"}
    kept = {layer.layer: layer.channels_after for layer in outcome.cuts[-1].layers}
    for name, layer in layers.items():
        assert layer.conv.out_channels == kept[name]
        assert layer.density == 0.6
    assert not is_gated(outcome.network)
    assert outcome.stages[-1].name == "gated"


class Interrupted(Exception):
    pass


class Stopper(AbstractContextManager["Stopper"]):
    """Stops the run after `steps` optimiser steps."""

    def __init__(self, steps: int | None) -> None:
        self.left = steps

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, step: Step) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Interrupted

    def epoch(self, metrics: dict[str, Any], network: nn.Module) -> None:
        assert metrics["epoch"] >= 1


@pytest.mark.parametrize("steps", [1, 5, 8, 13])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, steps: int) -> None:
    gates = Recipe(epochs=1, batch_size=16, density=0.5, learning_rate=0.02, threads=1).replace(average=0.9)
    plan = Plan(Budget(ratio=0.4), RECIPE, RECIPE, gates)
    images = coloured()

    def run(out: Path, stop: int | None = None) -> dict[str, Tensor]:
        torch.manual_seed(3)
        watcher = Stopper(stop)
        names: list[str] = []

        def watch(name: str, recipe: Recipe) -> Stopper:
            names.append(name)
            return watcher

        outcome = prune_in_stages(Small(), NetworkSlimming(), images, None, plan, out=out, watch=watch)
        assert names == ["round1/sparse", "round1/finetune", "gated"]
        assert outcome.gated is not None
        return outcome.network.state_dict() | {f"gated.{k}": v for k, v in outcome.gated.state_dict().items()}

    whole = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", stop=steps)
    again = run(tmp_path / "broken")
    assert whole.keys() == again.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, again[name]), name


def test_a_folder_started_with_another_plan_is_refused(tmp_path: Path) -> None:
    prune_in_stages(Small(), NetworkSlimming(), coloured(), None, Plan(Budget(ratio=0.2)), out=tmp_path)
    with pytest.raises(TrainingError, match=r"budget was .*0\.2.* and is now .*0\.3"):
        prune_in_stages(Small(), NetworkSlimming(), coloured(), None, Plan(Budget(ratio=0.3)), out=tmp_path)
    with pytest.raises(TrainingError, match=r"method was .*1e-05.* and is now .*0\.1"):
        prune_in_stages(
            Small(), NetworkSlimming(0.1), coloured(), None, Plan(Budget(ratio=0.2)), out=tmp_path
        )
    (tmp_path / "plan.json").write_text("[")
    with pytest.raises(TrainingError, match="use another folder"):
        prune_in_stages(Small(), NetworkSlimming(), coloured(), None, Plan(Budget(ratio=0.2)), out=tmp_path)


def test_rounds_must_be_at_least_one() -> None:
    with pytest.raises(PruningError, match="rounds"):
        Plan(Budget(ratio=0.2), rounds=0)


def test_another_method_joins_with_a_name_and_a_prune() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Keep:
        name: str = "keep"

        def prune(self, network: nn.Module, example: Tensor, budget: Budget) -> Pruned:
            return NetworkSlimming().prune(network, example, Budget(ratio=0.0))

    outcome = prune_in_stages(Small(), Keep(), coloured(), None, Plan(Budget(ratio=0.5), sparse=RECIPE))
    assert outcome.cuts[0].saving == 1.0
