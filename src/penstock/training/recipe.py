"""What a training run is: one frozen dataclass with a few parts, and presets.

Recipe(epochs=5, density=0.5)
Recipe(epochs=5, density=0.5, gates=Gates(density_schedule="anneal"), loss=Loss(distill=0.5))
recipe.replace(density=0.7, warmup=0.2)     # by name, whichever part it is in
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from penstock.errors import TrainingError
from penstock.gating import check_density
from penstock.training.choices import (
    Augmentation,
    Choices,
    Gates,
    Loss,
    Optimiser,
    Speed,
    check_positive,
    check_whole,
)

_PARTS: dict[str, type[Choices]] = {
    "optimiser": Optimiser,
    "gates": Gates,
    "loss": Loss,
    "augmentation": Augmentation,
    "speed": Speed,
}
_PART_OF = {one.name: part for part, kind in _PARTS.items() for one in fields(kind)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Recipe(Choices):
    """Every choice of a training run: what most runs set, and five parts with the rest.

    >>> Recipe(epochs=5, density=0.5).learning_rate
    0.1
    >>> Recipe(optimiser=Optimiser(warmup=0.2)) == Recipe().replace(warmup=0.2)
    True
    """

    epochs: int = 15
    """Passes over the training images."""
    epoch_images: int = 0
    """The images of one epoch, drawn anew for each epoch; 0: all of them."""
    batch_size: int = 128
    """Images in one optimiser step, over all processes."""
    learning_rate: float = 0.1
    """Its peak, reached at the end of the warm-up."""
    density: float = 1.0
    """The density the run ends at (with density_schedule="any": the highest it draws)."""
    statistics: Literal["all", "winners"] = "all"
    """Which images the norms of gated layers take their statistics from while training. all: the whole batch,
    as in the paper; winners: for each channel, the images in which it won, so that a step on a CPU computes
    winners only."""
    seed: int = 0
    """All chance of the run comes from it: the order and changes of the images, dropout, drawn densities."""
    threads: int = 0
    """Torch threads; 0 leaves torch's own choice."""

    optimiser: Optimiser = field(default_factory=Optimiser)
    gates: Gates = field(default_factory=Gates)
    loss: Loss = field(default_factory=Loss)
    augmentation: Augmentation = field(default_factory=Augmentation)
    speed: Speed = field(default_factory=Speed)

    def __post_init__(self) -> None:
        for part, kind in _PARTS.items():
            value = getattr(self, part)
            if not isinstance(value, kind):
                raise TrainingError(f"recipe.{part}: expected {kind.__name__}(…), got {value!r}")
        check_density(self.density, "recipe.density")
        check_whole(self, "", "epochs", "batch_size")
        check_positive(self, "", "learning_rate")
        if not isinstance(self.epoch_images, int) or self.epoch_images < 0:
            raise TrainingError(
                f"recipe.epoch_images: expected 0 (all images) or more, got {self.epoch_images!r}"
            )
        if not isinstance(self.threads, int) or not 0 <= self.threads <= 1024:
            raise TrainingError(
                f"recipe.threads: expected 0 (as many as are free) to 1024, got {self.threads!r}"
            )
        if self.statistics not in ("all", "winners"):
            raise TrainingError(f'recipe.statistics: expected "all" or "winners", got {self.statistics!r}')
        for name in ("choice_noise", "threshold_cap"):
            if getattr(self.gates, name) and self.speed.compile:
                raise TrainingError(
                    f"recipe.gates.{name} changes at every step, which speed.compile would compile anew; "
                    "leave one of the two out"
                )

        if self.loss.similarity and self.speed.compile:
            raise TrainingError(
                "recipe.loss.similarity cannot be had with speed.compile; leave one of the two out"
            )

    @property
    def final_density(self) -> float:
        """The density that the trained network has: with thresholds, the most that one image may have."""
        return max(self.density, self.gates.threshold_cap)

    @classmethod
    def advice(cls, name: str, known: list[str]) -> str:
        """What to write instead: a choice may belong to a part."""
        if name in _PART_OF:
            part = _PART_OF[name]
            kind = _PARTS[part].__name__
            return f"it is a choice of a part, Recipe({part}={kind}({name}=…)), or recipe.replace({name}=…)"
        return super().advice(name, [*known, *_PART_OF])

    def replace(self, **choices: Any) -> Self:
        """A copy with other choices, each by its own name or a whole part by the part's.

        >>> Recipe().replace(density=0.7, label_smoothing=0.0).loss
        Loss(label_smoothing=0.0, penalty=1e-08, distill=0.0, temperature=2.0, similarity=0.0)
        """
        own = {name: value for name, value in choices.items() if name not in _PART_OF}
        for part in _PARTS:
            inner = {name: value for name, value in choices.items() if _PART_OF.get(name) == part}
            if inner:
                own[part] = replace(own.get(part, getattr(self, part)), **inner)
        return replace(self, **own)

    def flat(self) -> dict[str, Any]:
        """Every choice by its own name, without the parts.

        >>> Recipe().flat()["warmup"]
        0.1
        """
        own = {one.name: getattr(self, one.name) for one in fields(Recipe) if one.name not in _PARTS}
        return own | {name: getattr(getattr(self, part), name) for name, part in _PART_OF.items()}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Recipe:
        """The recipe that a `run.toml` or a state recorded, in parts or, as by earlier versions, without.

        A record from before a choice existed was made with what is now its default.

        >>> Recipe.from_record({"epochs": 5, "warmup": 0.2}) == Recipe.from_record(
        ...     {"epochs": 5, "optimiser": {"warmup": 0.2}}
        ... )
        True
        """
        choices: dict[str, Any] = {}
        for name, value in record.items():
            if name in _PARTS:
                if not isinstance(value, Mapping):
                    raise TrainingError(f"recipe.{name}: expected the choices of this part, got {value!r}")
                _PARTS[name](**value)  # a name that is another part's is refused here
                choices |= value
            else:
                choices[name] = value
        return Recipe().replace(**choices)

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """The choices in which the two differ, by name: (this one's, the other's).

        >>> Recipe(epochs=5).differences(Recipe(epochs=6))
        {'epochs': (5, 6)}
        """
        own, others = self.flat(), other.flat()
        return {name: (own[name], others[name]) for name in own if own[name] != others[name]}


def finetune_recipe(epochs: int = 6, density: float = 0.5) -> Recipe:
    """For gating a network that is trained already: a density lowered bit by bit, a teacher, a moderate rate.

    The network's own dense form is the teacher that is meant, so labels are not smoothed on top of it. Norms
    take their statistics from winners, so that a step on a CPU computes winners only.
    """
    return Recipe(
        epochs=epochs,
        learning_rate=0.04,
        density=density,
        statistics="winners",
        optimiser=Optimiser(schedule="linear", average=0.998),
        gates=Gates(density_schedule="anneal", anneal_from=0.0, anneal_to=0.4, choice_noise=0.3),
        loss=Loss(label_smoothing=0.0, distill=0.7),
    )


def paper_recipe(epochs: int = 300, density: float = 1.0) -> Recipe:
    """The paper's appendix: rate 0.01, ten times lower every 100 epochs, batch 256, flips, slight colour."""
    return Recipe(
        epochs=epochs,
        batch_size=256,
        learning_rate=0.01,
        density=density,
        optimiser=Optimiser(schedule="step", step_epochs=100, warmup=0.0),
        loss=Loss(label_smoothing=0.0),
        augmentation=Augmentation(crop_padding=0, colour=0.1),
    )
