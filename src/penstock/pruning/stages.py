"""The training around a pruning method: a network, data and a plan in; the smaller, fine-tuned network out.

    for each round:  train with the method's penalty → cut down to the round's share of the budget → fine-tune
    at the end:      gates on top of the smaller network, trained at their density (the paper's NS+FBS)

Each stage trains in a folder of its own and goes on where it stopped. A cut follows from the weights before
it, so it needs no state: run again, it removes the same channels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from penstock.datasets import Images
from penstock.errors import PruningError, TrainingError
from penstock.files import write_atomically
from penstock.pruning.protocol import Budget, Method, Pruned
from penstock.surgery import add_gates
from penstock.training import Recipe, Score, Step, evaluate, train


class Watcher(Protocol):
    """What a display of a training does with its steps and epochs."""

    def step(self, step: Step) -> None: ...

    def epoch(self, metrics: dict[str, Any], network: nn.Module) -> None: ...


@dataclass(frozen=True)
class Plan:
    """The budget, reached in equal steps over `rounds`, and how each stage trains (None: not at all).

    `gated`: train gates on top of the smaller network; its density is theirs.
    """

    budget: Budget
    sparse: Recipe | None = None
    finetune: Recipe | None = None
    gated: Recipe | None = None
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise PruningError(f"rounds: expected a whole number of at least 1, got {self.rounds!r}")


@dataclass(frozen=True)
class Stage:
    """One stage done: its name ("round1/sparse", "round1/cut", …, "gated"), the network and its score."""

    name: str
    network: nn.Module
    score: Score | None
    cut: Pruned | None = None


@dataclass(frozen=True)
class Outcome:
    """The smaller network, with gates on top of it if the plan has them, and every stage on the way."""

    network: nn.Module
    gated: nn.Module | None
    stages: tuple[Stage, ...]

    @property
    def cuts(self) -> tuple[Pruned, ...]:
        return tuple(stage.cut for stage in self.stages if stage.cut is not None)


def prune_in_stages(
    network: nn.Module,
    method: Method,
    train_data: Images,
    test_data: Images | None,
    plan: Plan,
    *,
    out: str | Path | None = None,
    teacher: nn.Module | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    watch: Callable[[str, Recipe], AbstractContextManager[Watcher]] | None = None,
) -> Outcome:
    """Prune a copy of `network`; with `out`, the same call goes on after an interruption.

    `watch` is called with a stage's name and recipe before it trains, for a display of that training.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        _check_plan(folder / "plan.json", {"method": asdict(method), **asdict(plan)})  # type: ignore[call-overload]
    current = deepcopy(network)
    prepare: Callable[[Tensor], Tensor] = getattr(network, "preprocess", None) or train_data.preprocess
    current.preprocess = prepare  # type: ignore[assignment]  # travels with every network made from it
    example = prepare(next(iter(train_data.test_batches(2))).images)
    stages: list[Stage] = []
    cuts: list[Pruned] = []

    def note(name: str, after: nn.Module, score: Score | None, cut: Pruned | None = None) -> None:
        stages.append(Stage(name, after, score, cut))
        if on_stage is not None:
            on_stage(stages[-1])

    def fit(name: str, learner: nn.Module, recipe: Recipe, **options: Any) -> None:
        if folder is not None:
            options["out"] = folder / name
        with nullcontext() if watch is None else watch(name, recipe) as watcher:
            if watcher is not None:
                options |= {"on_step": watcher.step, "on_epoch": watcher.epoch}
            result = train(learner, train_data, test_data, recipe, teacher=teacher, **options)
        note(name, learner, result.score)

    for index in range(1, plan.rounds + 1):
        if plan.sparse is not None:
            penalty = None if method.penalty(current) is None else method.penalty
            fit(f"round{index}/sparse", current, plan.sparse, extra_loss=penalty)
        device = next(current.parameters()).device
        pruned = method.prune(current, example.to(device), _share(plan.budget, index / plan.rounds, cuts))
        cuts.append(pruned)
        current = pruned.network
        score = None if test_data is None else evaluate(current, test_data, preprocess=prepare)
        note(f"round{index}/cut", current, score, pruned)
        if plan.finetune is not None:
            fit(f"round{index}/finetune", current, plan.finetune)
    gated: nn.Module | None = None
    if plan.gated is not None:
        torch.manual_seed(plan.gated.seed)
        gated = add_gates(current, example.to(next(current.parameters()).device))
        fit("gated", gated, plan.gated)
    return Outcome(current, gated, tuple(stages))


def _share(budget: Budget, share: float, cuts: list[Pruned]) -> Budget:
    """What the next cut must remove of the network as it is now to reach `share` of the whole budget."""
    if budget.saving is not None:
        had = cuts[0].macs_before / cuts[-1].macs_after if cuts else 1.0
        return Budget(saving=max(1.0, budget.saving**share / had))
    assert budget.ratio is not None
    left = cuts[-1].channels_after / cuts[0].channels_before if cuts else 1.0
    return Budget(ratio=max(0.0, 1 - (1 - budget.ratio * share) / left))


def _check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Write the plan down, or refuse to go on in a folder that was started with another one."""
    if not path.exists():
        write_atomically(path, json.dumps(plan, indent=2).encode())
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in plan.items() if not _agree(before.get(name), value)]
    except (ValueError, AttributeError) as error:
        raise TrainingError(f"{path}: not the plan of a pruning run ({error}); use another folder") from error
    if changed:
        said = ", ".join(f"{name} was {before.get(name)!r} and is now {plan[name]!r}" for name in changed)
        raise TrainingError(f"{path}: the run was started with another plan ({said}); use another folder")


def _agree(before: Any, now: Any) -> bool:
    """Whether a value of the plan is what it was; what an older version did not write down is left out."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(_agree(before[name], value) for name, value in now.items() if name in before)
    return bool(before == now)
