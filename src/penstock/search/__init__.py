"""Budgets: milliseconds, MACs or an accuracy drop in, a density for every gated layer out."""

from penstock.search.budget import Budget, fit_budget

__all__ = ["Budget", "fit_budget"]
