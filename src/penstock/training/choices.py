"""The parts of a recipe: how weights move, what the loss is made of, which densities are drawn, how images
are changed, and how the machine is used. Each is a frozen dataclass that checks its own values.

A share is a fraction of the whole run, from 0 to 1. Every choice has one name over all the parts, so that a
command's option (`--recipe.warmup`) and `Recipe.replace(warmup=0.2)` need not say which part it is in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, Self

from penstock.errors import TrainingError
from penstock.gating import check_density, check_levels


class Choices:
    """What the recipe and its parts share: they refuse a name that does not exist, and say which one does."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        known = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in known:
                raise TrainingError(f"{cls.__name__}({name}=…): {cls.advice(name, known)}")
        return super().__new__(cls)

    @classmethod
    def advice(cls, name: str, known: list[str]) -> str:
        """What to write instead of a `name` that does not exist."""
        near = get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        return f"there is no such choice; {meant}"


@dataclass(frozen=True)
class Optimiser(Choices):
    """How the weights move.

    >>> Optimiser(warmpu=0.2)
    Traceback (most recent call last):
    penstock.errors.TrainingError: Optimiser(warmpu=…): there is no such choice; did you mean warmup?
    """

    schedule: Literal["cosine", "linear", "step"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = 0.1
    """Share of the run over which the learning rate rises from a tenth of its peak."""
    step_epochs: int = 100
    """With schedule="step": divide the learning rate by ten after each run of this many epochs."""
    momentum: float = 0.9
    """Of SGD, in Nesterov's form; 0 turns it off."""
    weight_decay: float = 5e-4
    """On convolution and linear weights only: not on gates, norms, shifts and biases."""
    accumulate: int = 1
    """Split each process's part of a batch into this many forwards; gradients add up."""
    average: float = 0.0
    """Decay per step of the averaged weights, which are evaluated and saved; 0 turns averaging off."""
    freeze_norms_at: float = 1.0
    """From this share of the run on, norms keep their statistics: training sees what inference will."""

    def __post_init__(self) -> None:
        check_shares(self, "optimiser", "warmup", "average", "freeze_norms_at")
        check_whole(self, "optimiser", "step_epochs", "accumulate")


@dataclass(frozen=True)
class Loss(Choices):
    """What is added up to the loss."""

    label_smoothing: float = 0.1
    """The share of a label's weight that is spread over all classes."""
    penalty: float = 1e-8
    """λ, the weight of the Lasso on the saliencies."""
    distill: float = 0.0
    """Weight of the divergence from the teacher; the labels' loss has weight 1 - distill."""
    temperature: float = 2.0
    """Of the teacher's and the network's answers, when they are compared."""
    similarity: float = 0.0
    """Weight of ManiDP's loss: images with similar features get similar saliencies, layer by layer. A
    departure from the paper; 0 is off."""

    def __post_init__(self) -> None:
        check_shares(self, "loss", "label_smoothing", "distill")
        check_not_negative(self, "loss", "similarity")
        check_positive(self, "loss", "temperature")


@dataclass(frozen=True)
class Gates(Choices):
    """Which densities the gates are trained at, on the way to the recipe's `density`."""

    density_schedule: Literal["fixed", "anneal", "paper", "any", "own"] = "fixed"
    """anneal: falls from 1 between two shares of the run; paper: 1, then ten points lower at each step;
    any: drawn for each image, its lower end falling from 1 to `any_low` between the two shares; own: every
    layer keeps the density that it has, as after a search."""
    anneal_from: float = 0.15
    """Share of the run at which the density begins to fall."""
    anneal_to: float = 0.55
    """Share of the run at which it has fallen as far as it will."""
    any_low: float = 0.2
    """With "any": the lowest density drawn."""
    any_full: float = 0.0
    """With "any": the share of the images that get the highest density, which few of the others come near."""
    any_levels: str = ""
    """With "any": densities at which the layers get norms, β and ρ of their own, as "0.3,0.5,1.0". All get as
    many images, or as many as their weights say: "0.3:2,0.5:2,1.0:1"."""
    any_near: float = 0.5
    """Of the images assigned to a level, the share whose density is drawn around it instead of at it."""
    choice_noise: float = 0.0
    """Gaussian noise on the choice of winners at the start of the run, in standard deviations of an image's
    saliencies; gains stay as they are. A departure from the paper: 0.3 is a good value, 0 is off."""
    choice_noise_until: float = 0.6
    """The share of the run over which the noise falls to 0."""
    threshold_cap: float = 0.0
    """Winners are the channels above a threshold that follows the batches, so that images differ in cost: the
    density is their mean share, and this the most that one image may have. 0: exactly k winners."""

    def __post_init__(self) -> None:
        check_density(self.any_low, "recipe.gates.any_low")
        check_shares(self, "gates", "anneal_from", "anneal_to", "any_full", "any_near", "choice_noise_until")
        check_not_negative(self, "gates", "choice_noise")
        if self.threshold_cap:
            check_density(self.threshold_cap, "recipe.gates.threshold_cap")
            if self.density_schedule in ("any", "own"):
                raise TrainingError(
                    "recipe.gates.threshold_cap: thresholds follow one mean density of all layers, which "
                    f'density_schedule="{self.density_schedule}" does not have; leave one of the two out'
                )
        if self.any_levels and self.density_schedule != "any":
            raise TrainingError(
                f'recipe.gates.any_levels goes with density_schedule="any", got "{self.density_schedule}"'
            )
        self.levels()

    def levels(self) -> tuple[float, ...]:
        """The densities of `any_levels`, rising; empty without any.

        >>> Gates(density_schedule="any", any_levels="0.3:2,1.0").levels()
        (0.3, 1.0)
        """
        return tuple(level for level, _ in self._weighted_levels())

    def level_weights(self) -> tuple[float, ...]:
        """How often each level is drawn, relative to the others."""
        return tuple(weight for _, weight in self._weighted_levels())

    def _weighted_levels(self) -> list[tuple[float, float]]:
        if not self.any_levels:
            return []
        try:
            pairs = [(*item.split(":"), "1")[:2] for item in self.any_levels.split(",")]
            weights = [float(weight) for _, weight in pairs]
            if not all(0.0 < weight < float("inf") for weight in weights):
                raise ValueError("weights must be positive")
            levels = check_levels([float(level) for level, _ in pairs], "recipe.gates.any_levels")
        except ValueError as error:
            raise TrainingError(
                'recipe.gates.any_levels: expected rising densities such as "0.3,0.5,1.0" or, with weights, '
                f'"0.3:2,0.5:2,1.0:1", got {self.any_levels!r}'
            ) from error
        return list(zip(levels, weights, strict=True))


@dataclass(frozen=True)
class Augmentation(Choices):
    """How training images are changed before the network sees them."""

    crop_padding: int = 4
    """Pixels of padding around an image, from which a piece of its own size is cut at random."""
    flip: bool = True
    """Mirror each image with probability one half."""
    cutout: int = 0
    """The side of a square that is blanked out; 0 for none."""
    colour: float = 0.0
    """Strength of random brightness, saturation and hue changes (the paper's; 0.1 is slight)."""
    smallest_area: float = 0.08
    """Of a photograph: the least share of its area that a random cut keeps; 0.35 suits short runs."""
    mixup: float = 0.0
    """Blend every image with another one of its batch, and the loss alike, by a share drawn from
    Beta(mixup, mixup) in every step: 0.2 blends little, 1 anything between none and half; 0 is off."""
    image_sizes: str = ""
    """Smaller images early in the run, as "share:size,…"; "0:20,0.4:24,0.7:32" starts at 20×20."""

    def __post_init__(self) -> None:
        check_shares(self, "augmentation", "smallest_area")
        check_not_negative(self, "augmentation", "mixup")
        self.sizes()

    def sizes(self) -> tuple[tuple[float, int], ...]:
        """`image_sizes` as ((share, size), …) in order; empty means the data's own size throughout.

        >>> Augmentation(image_sizes="0:20,0.6:32").sizes()
        ((0.0, 20), (0.6, 32))
        """
        pairs: list[tuple[float, int]] = []
        for item in filter(None, self.image_sizes.split(",")):
            try:
                share, size = item.split(":")
                pairs.append((float(share), int(size)))
            except ValueError:
                raise TrainingError(
                    f'recipe.augmentation.image_sizes: expected "share:size,…" such as "0:20,0.6:32", '
                    f"got {item!r}"
                ) from None
        if pairs and (pairs != sorted(pairs) or pairs[0][0] != 0.0 or any(size < 1 for _, size in pairs)):
            raise TrainingError(
                f"recipe.augmentation.image_sizes: shares must start at 0 and rise, got {self.image_sizes!r}"
            )
        return tuple(pairs)


@dataclass(frozen=True)
class Speed(Choices):
    """How the machine is used. None of these changes what is learned beyond rounding."""

    channels_last: bool = True
    """Keep feature maps in torch's channels-last memory format."""
    compile: bool = False
    """Train through torch.compile."""
    winograd: bool = True
    """On a CPU, 3×3 convolutions by Winograd's F(4×4, 3×3), and gated norms in native code: the same to about
    1e-5, in half the time."""


def check_shares(choices: Choices, part: str, *names: str) -> None:
    """Refuse what is not from 0 to 1. part: of the recipe, for the message; "" for the recipe itself."""
    for name, value in _values(choices, part, names):
        if not _is_number(value) or not 0.0 <= value <= 1.0:
            raise TrainingError(f"{name}: expected a number from 0 to 1, got {value!r}")


def check_whole(choices: Choices, part: str, *names: str) -> None:
    """Refuse what is not a whole number of at least 1."""
    for name, value in _values(choices, part, names):
        if not isinstance(value, int) or value < 1:
            raise TrainingError(f"{name}: expected a whole number of at least 1, got {value!r}")


def check_positive(choices: Choices, part: str, *names: str) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in _values(choices, part, names):
        if not _is_number(value) or not 0.0 < value < float("inf"):
            raise TrainingError(f"{name}: expected a positive number, got {value!r}")


def check_not_negative(choices: Choices, part: str, *names: str) -> None:
    """Refuse what is not a finite number of at least 0."""
    for name, value in _values(choices, part, names):
        if not _is_number(value) or not 0.0 <= value < float("inf"):
            raise TrainingError(f"{name}: expected a number of at least 0, got {value!r}")


def _values(choices: Choices, part: str, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    place = f"recipe.{part}." if part else "recipe."
    return [(place + name, getattr(choices, name)) for name in names]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
