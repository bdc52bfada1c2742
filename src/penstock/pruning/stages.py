"""The training around a method: a network, data and a plan in; the cheaper, fine-tuned network out.

    for each round:  train with the method's penalty → cut down to the round's share of the budget
                     → measure the norms anew → fine-tune → settle what decides, if the method does
    at the end:      gates on top of the smaller network, trained at their density (the paper's NS+FBS)

Each stage trains in a folder of its own and goes on where it stopped. A cut is kept in its folder too, since
a method may search for it for minutes; run again, it is read and not made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from penstock.datasets import Augment, Images, preprocess_of
from penstock.errors import PruningError
from penstock.pruning.kept import check_plan, keep_cut, read_cut
from penstock.pruning.looking import measure_norms
from penstock.pruning.protocol import (
    ActsOnEpochs,
    AddsToLoss,
    Budget,
    Calibration,
    LooksAtImages,
    Method,
    MovesByEpoch,
    MovesByStep,
    Pruned,
    Settles,
    Skipping,
    Trains,
)
from penstock.surgery import add_gates
from penstock.training import Recipe, Score, Step, evaluate, train

_SETTLING = 256  # training images to which what decides is fitted at the end


class Watcher(Protocol):
    """What a display of a training does with its steps and epochs."""

    def step(self, step: Step) -> None: ...

    def epoch(self, metrics: dict[str, Any], network: nn.Module) -> None: ...


@dataclass(frozen=True)
class Plan:
    """The budget, reached in equal steps over `rounds`, and how each stage trains (None: not at all).

    `norm_images`: the training images on which batch norms are measured anew after each cut. `gated`: train
    gates on top of the smaller network; its density is theirs.
    """

    budget: Budget
    sparse: Recipe | None = None
    finetune: Recipe | None = None
    gated: Recipe | None = None
    rounds: int = 1
    norm_images: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise PruningError(f"rounds: expected a whole number of at least 1, got {self.rounds!r}")
        if self.norm_images < 0:
            raise PruningError(f"norm_images: expected 0 or more, got {self.norm_images!r}")


@dataclass(frozen=True)
class Stage:
    """One stage done: its name ("round1/sparse", "round1/cut", …, "gated"), the network and its score.

    `cut` for a stage that removed channels, `skipping` for one that made layers skip.
    """

    name: str
    network: nn.Module
    score: Score | None
    cut: Pruned | None = None
    skipping: Skipping | None = None


@dataclass(frozen=True)
class Outcome:
    """The cheaper network, with gates on top of it if the plan has them, and every stage on the way."""

    network: nn.Module
    gated: nn.Module | None
    stages: tuple[Stage, ...]

    @property
    def cuts(self) -> tuple[Pruned, ...]:
        return tuple(stage.cut for stage in self.stages if stage.cut is not None)

    @property
    def skipping(self) -> Skipping | None:
        return next((stage.skipping for stage in self.stages if stage.skipping is not None), None)


def prune_in_stages(
    network: nn.Module,
    method: Method,
    train_data: Images,
    test_data: Images | None,
    plan: Plan,
    *,
    out: str | Path | None = None,
    teacher: nn.Module | None = None,
    lessons: str | Path | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    watch: Callable[[str, Recipe], AbstractContextManager[Watcher]] | None = None,
) -> Outcome:
    """Prune a copy of `network`; with `out`, the same call goes on after an interruption.

    `lessons`: a folder where the teacher's answers are kept for other runs that ask the same.
    `watch` is called with a stage's name and recipe before it trains, for a display of that training.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        check_plan(folder / "plan.json", {"method": asdict(method), **asdict(plan)})  # type: ignore[call-overload]
    current = deepcopy(network)
    prepare = preprocess_of(network, train_data)
    current.preprocess = prepare  # type: ignore[assignment]  # travels with every network made from it
    example = prepare(next(iter(train_data.test_batches(2))).images).to(next(current.parameters()).device)
    run = _Run(
        method, train_data, test_data, plan, prepare, example, folder, teacher, lessons, on_stage, watch
    )
    for index in range(1, plan.rounds + 1):
        current = run.round(index, current)
    gated: nn.Module | None = None
    if plan.gated is not None:
        torch.manual_seed(plan.gated.seed)
        gated = add_gates(current, example)
        run.fit("gated", gated, plan.gated)
    return Outcome(current, gated, tuple(run.stages))


@dataclass
class _Run:
    """What every stage needs, and the stages so far. example: images as the network takes them."""

    method: Method
    train_data: Images
    test_data: Images | None
    plan: Plan
    prepare: Callable[[Tensor], Tensor]
    example: Tensor
    folder: Path | None
    teacher: nn.Module | None
    lessons: str | Path | None
    on_stage: Callable[[Stage], None] | None
    watch: Callable[[str, Recipe], AbstractContextManager[Watcher]] | None
    stages: list[Stage] = field(default_factory=list)

    def round(self, index: int, current: nn.Module) -> nn.Module:
        """Prepare `current`, cut it down to the round's share, fine-tune; the cheaper network."""
        cuts = [stage.cut for stage in self.stages if stage.cut is not None]
        share = _share(self.plan.budget, index / self.plan.rounds, cuts)
        if self.plan.sparse is not None:
            self.fit(f"round{index}/sparse", current, self.plan.sparse, **self._before_cut(current, share))
        current = self.cut(f"round{index}/cut", current, share)
        if self.plan.finetune is not None:
            own: dict[str, Any] = {}
            if isinstance(self.method, Trains):
                own["batch_loss"] = self.method.batch_loss
            if isinstance(self.method, MovesByEpoch):
                own["after_epoch"] = self.method.after_epoch
            if isinstance(self.method, MovesByStep):
                own["after_step"] = self.method.after_step
            self.fit(f"round{index}/finetune", current, self.plan.finetune, **own)
            if isinstance(self.method, Settles):
                self.settle(f"round{index}/settled", current, share)
        return current

    def _before_cut(self, current: nn.Module, share: Budget) -> dict[str, Any]:
        """What the method adds to the training before its cut, as `train` takes it."""
        penalty = hook = None
        if isinstance(self.method, AddsToLoss) and self.method.penalty(current) is not None:
            penalty = self.method.penalty
        if isinstance(self.method, ActsOnEpochs):
            hook = self.method.epoch_hook(current, self.example, share)
        return {"extra_loss": penalty, "after_epoch": hook}

    def fit(self, name: str, learner: nn.Module, recipe: Recipe, **options: Any) -> None:
        """The stage `name` that trains `learner`, in place."""
        if self.folder is not None:
            options["out"] = self.folder / name
        with nullcontext() if self.watch is None else self.watch(name, recipe) as watcher:
            if watcher is not None:
                options |= {"on_step": watcher.step, "on_epoch": watcher.epoch}
            result = train(
                learner,
                self.train_data,
                self.test_data,
                recipe,
                teacher=self.teacher,
                lessons=self.lessons,
                **options,
            )
        self._note(Stage(name, learner, result.score))

    def settle(self, name: str, trained: nn.Module, budget: Budget) -> None:
        """The stage `name` that fits what decides to the trained network, in place."""
        assert isinstance(self.method, Settles)
        data = calibration(self.train_data, _SETTLING, self.prepare, self.example.device, seed=2)
        self.method.settle(trained, data, budget)
        self._note(Stage(name, trained, self._score(trained)))

    def _score(self, network: nn.Module) -> Score | None:
        if self.test_data is None:
            return None
        return evaluate(network, self.test_data, preprocess=self.prepare)

    def cut(self, name: str, before: nn.Module, budget: Budget) -> nn.Module:
        """The stage `name` that makes `before` cheaper, read if it has been made already."""
        made = self._made(None if self.folder is None else self.folder / name, before, budget)
        if isinstance(made, Skipping) and (self.plan.rounds > 1 or self.plan.gated is not None):
            raise PruningError(
                f"{self.method.name} removes nothing for good: it takes one round, and no gates on top of it"
            )
        score = self._score(made.network)
        if isinstance(made, Pruned):
            self._note(Stage(name, made.network, score, cut=made))
        else:
            self._note(Stage(name, made.network, score, skipping=made))
        return made.network

    def _made(self, place: Path | None, before: nn.Module, budget: Budget) -> Pruned | Skipping:
        known = None if place is None else read_cut(place, before, self.example)
        if known is not None:
            return known
        device = self.example.device
        if isinstance(self.method, LooksAtImages):
            data = calibration(self.train_data, self.method.images, self.prepare, device)
            made = self.method.prune(before, self.example, budget, data)
        else:
            made = self.method.prune(before, self.example, budget)
        if self.plan.norm_images and (isinstance(made, Pruned) or made.kind == "pixels"):
            shown = calibration(self.train_data, self.plan.norm_images, self.prepare, device, seed=1)
            measure_norms(made.network, shown.images)
        if isinstance(made, Pruned) and place is not None:
            keep_cut(place, before, made)
        return made

    def _note(self, stage: Stage) -> None:
        self.stages.append(stage)
        if self.on_stage is not None:
            self.on_stage(stage)


def calibration(
    data: Images,
    count: int,
    prepare: Callable[[Tensor], Tensor],
    device: torch.device | None = None,
    seed: int = 0,
) -> Calibration:
    """`count` training images as the network takes them, drawn by `seed`; all of them if there are fewer."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(data), generator=draw)[:count]
    batches = data.training_batches(chosen.split(256), Augment(), 0, draw, lambda size: slice(0, size))
    parts = [(prepare(batch.images).to(device), batch.labels.to(device)) for batch in batches]
    return Calibration(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _share(budget: Budget, share: float, cuts: list[Pruned]) -> Budget:
    """What the next cut must remove of the network as it is now to reach `share` of the whole budget."""
    if budget.saving is not None:
        had = cuts[0].macs_before / cuts[-1].macs_after if cuts else 1.0
        return Budget(saving=max(1.0, budget.saving**share / had))
    assert budget.ratio is not None
    left = cuts[-1].channels_after / cuts[0].channels_before if cuts else 1.0
    return Budget(ratio=max(0.0, 1 - (1 - budget.ratio * share) / left))
