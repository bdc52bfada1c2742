"""Recipes, schedules, one readable loop, resume."""

from penstock.training.choices import Augmentation, Gates, Loss, Optimiser, Speed
from penstock.training.epoch import Step
from penstock.training.evaluate import Score, evaluate
from penstock.training.loop import TrainingResult, train
from penstock.training.recipe import Recipe, finetune_recipe, paper_recipe

__all__ = [
    "Augmentation",
    "Gates",
    "Loss",
    "Optimiser",
    "Recipe",
    "Score",
    "Speed",
    "Step",
    "TrainingResult",
    "evaluate",
    "finetune_recipe",
    "paper_recipe",
    "train",
]
