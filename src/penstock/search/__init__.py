"""Budgets: milliseconds, MACs or an accuracy drop in, densities or thresholds of the gated layers out."""

from penstock.search.budget import Budget, fit_budget
from penstock.search.thresholds import Thresholds, fit_thresholds

__all__ = ["Budget", "Thresholds", "fit_budget", "fit_thresholds"]
