"""What a training run is: one frozen dataclass, and the paper's own settings as a preset."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from penstock.errors import TrainingError
from penstock.gating import check_density, check_levels


@dataclass(frozen=True)
class Recipe:
    """Every choice of a training run. A share is a fraction of the whole run, from 0 to 1."""

    epochs: int = 15
    batch_size: int = 128
    """Images in one optimiser step, over all processes."""
    accumulate: int = 1
    """Split each process's part of a batch into this many forwards; gradients add up."""
    learning_rate: float = 0.1
    """Its peak, reached at the end of the warm-up."""
    schedule: Literal["cosine", "linear", "step"] = "cosine"
    warmup: float = 0.1
    """Share of the run over which the learning rate rises from a tenth of its peak."""
    step_epochs: int = 100
    """With schedule="step": divide the learning rate by ten every so many epochs."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    """On convolution and linear weights only: not on gates, norms, shifts and biases."""
    label_smoothing: float = 0.1

    density: float = 1.0
    """The density the run ends at (with "any": the highest it draws)."""
    density_schedule: Literal["fixed", "anneal", "paper", "any"] = "fixed"
    """anneal: falls from 1 between two shares of the run; paper: 1, then ten points lower at each step;
    any: drawn for each image, its lower end falling from 1 to `any_low` between the two shares."""
    anneal_from: float = 0.15
    anneal_to: float = 0.55
    any_low: float = 0.2
    """With "any": the lowest density drawn."""
    any_full: float = 0.0
    """With "any": the share of the images that get the highest density, which few of the others come near."""
    any_levels: str = ""
    """With "any": densities at which the layers get norms, β and ρ of their own, as "0.3,0.5,1.0". All get as
    many images, or as many as their weights say: "0.3:2,0.5:2,1.0:1"."""
    any_near: float = 0.5
    """The share of a level's images that do not get its very density but any that is nearest to it."""
    penalty: float = 1e-8
    """λ, the weight of the Lasso on the saliencies."""

    distill: float = 0.0
    """Weight of the divergence from the teacher; the labels' loss has weight 1 - distill."""
    temperature: float = 2.0
    average: float = 0.0
    """Decay, a step, of the averaged weights that are evaluated and saved; 0 turns averaging off."""
    freeze_norms_at: float = 1.0
    """From this share of the run on, norms keep their statistics: training sees what inference will."""

    crop_padding: int = 4
    flip: bool = True
    cutout: int = 0
    colour: float = 0.0
    """Strength of random brightness, saturation and hue changes (the paper's; 0.1 is slight)."""
    image_sizes: str = ""
    """Smaller images early in the run, as "share:size,…"; "0:20,0.4:24,0.7:32" starts at 20×20."""

    seed: int = 0
    threads: int = 0
    """Torch threads; 0 leaves torch's own choice."""
    channels_last: bool = True
    compile: bool = False
    winograd: bool = True
    """On a CPU, 3×3 convolutions by Winograd's F(4×4, 3×3), and gated norms in native code: the same to about
    1e-5, in half the time."""

    def __post_init__(self) -> None:
        check_density(self.density, "recipe.density")
        check_density(self.any_low, "recipe.any_low")
        shares = (
            "warmup",
            "anneal_from",
            "anneal_to",
            "any_full",
            "any_near",
            "freeze_norms_at",
            "distill",
            "average",
            "label_smoothing",
        )
        for name in shares:
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise TrainingError(f"recipe.{name}: expected a number from 0 to 1, got {value!r}")
        for name in ("epochs", "batch_size", "accumulate", "step_epochs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TrainingError(f"recipe.{name}: expected a whole number of at least 1, got {value!r}")
        for name in ("learning_rate", "temperature"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise TrainingError(f"recipe.{name}: expected a positive number, got {value!r}")
        self.sizes()
        if self.any_levels and self.density_schedule != "any":
            raise TrainingError(
                f'recipe.any_levels goes with density_schedule="any", got "{self.density_schedule}"'
            )
        self.levels()

    def sizes(self) -> tuple[tuple[float, int], ...]:
        """`image_sizes` as ((share, size), …) in order; empty means the data's own size throughout."""
        pairs: list[tuple[float, int]] = []
        for item in filter(None, self.image_sizes.split(",")):
            try:
                share, size = item.split(":")
                pairs.append((float(share), int(size)))
            except ValueError:
                raise TrainingError(
                    f'recipe.image_sizes: expected "share:size,…" such as "0:20,0.6:32", got {item!r}'
                ) from None
        if pairs and (pairs != sorted(pairs) or pairs[0][0] != 0.0 or any(size < 1 for _, size in pairs)):
            raise TrainingError(
                f"recipe.image_sizes: shares must start at 0 and rise, got {self.image_sizes!r}"
            )
        return tuple(pairs)

    def levels(self) -> tuple[float, ...]:
        """The densities of `any_levels`, rising; empty without any."""
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
            levels = check_levels([float(level) for level, _ in pairs], "recipe.any_levels")
        except ValueError as error:
            raise TrainingError(
                'recipe.any_levels: expected rising densities such as "0.3,0.5,1.0" or, with weights, '
                f'"0.3:2,0.5:2,1.0:1", got {self.any_levels!r}'
            ) from error
        return list(zip(levels, weights, strict=True))

    def differences(self, other: dict[str, object]) -> list[str]:
        """Fields whose value differs from the one recorded in `other`."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return [name for name, value in mine.items() if name in other and other[name] != value]


def paper_recipe(epochs: int = 300, density: float = 1.0) -> Recipe:
    """The paper's appendix: rate 0.01, ten times lower every 100 epochs, batch 256, flips, slight colour."""
    return Recipe(
        epochs=epochs,
        batch_size=256,
        learning_rate=0.01,
        schedule="step",
        step_epochs=100,
        warmup=0.0,
        label_smoothing=0.0,
        density=density,
        crop_padding=0,
        colour=0.1,
    )
