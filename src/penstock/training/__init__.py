"""Recipes, schedules, one readable loop, resume."""

from penstock.training.evaluate import Score, evaluate
from penstock.training.loop import Step, TrainingResult, train
from penstock.training.recipe import Recipe, paper_recipe

__all__ = ["Recipe", "Score", "Step", "TrainingResult", "evaluate", "paper_recipe", "train"]
