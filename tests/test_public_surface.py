"""The names that users call are a contract: what DESIGN promises is here, and nothing else leaks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import pytest

import penstock as ps
from penstock.cli import main as command_line

SURFACE = {
    "Account",
    "Budget",
    "Engine",
    "Explanation",
    "GatedConv2d",
    "PenstockError",
    "Recipe",
    "Score",
    "Thresholds",
    "__version__",
    "account",
    "add_gates",
    "compile",
    "datasets",
    "errors",
    "evaluate",
    "explain",
    "export_onnx",
    "fit_budget",
    "fit_thresholds",
    "load",
    "remove_unused",
    "saliency_penalty",
    "save",
    "set_density",
    "train",
    "zoo",
}

EMPTY = inspect.Parameter.empty
# What DESIGN's example calls, with its parameter names and defaults, in order.
SIGNATURES: dict[str, dict[str, Any]] = {
    "add_gates": {
        "model": EMPTY,
        "example": EMPTY,
        "density": 1.0,
        "init": "preserve",
        "summary": "l1",
        "keep_dense": (),
    },
    "set_density": {"network": EMPTY, "density": EMPTY},
    "saliency_penalty": {"network": EMPTY},
    "account": {"network": EMPTY, "images": EMPTY, "convention": "executed"},
    "remove_unused": {"gated": EMPTY, "images": EMPTY},
    "save": {"network": EMPTY, "path": EMPTY},
    "load": {"path": EMPTY, "model": None},
    "compile": {"network": EMPTY, "example": EMPTY, "threads": 1},
    "export_onnx": {"network": EMPTY, "path": EMPTY, "example": EMPTY},
    "evaluate": {"network": EMPTY, "data": EMPTY},
    "fit_budget": {"gated": EMPTY, "data": EMPTY},
    "fit_thresholds": {"gated": EMPTY, "data": EMPTY},
}
COMMANDS = [
    "demo",
    "inspect",
    "train",
    "sweep",
    "prune",
    "search",
    "evaluate",
    "compile",
    "bench",
    "export",
    "report",
    "doctor",
]


def test_the_list_of_public_names_is_exactly_this() -> None:
    assert set(ps.__all__) == SURFACE
    assert len(ps.__all__) == len(SURFACE)
    assert set(dir(ps)) == SURFACE


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ps, name) is not None


@pytest.mark.parametrize("name", sorted(SURFACE - {"__version__", "datasets", "errors", "zoo"}))
def test_every_public_name_says_what_it_does(name: str) -> None:
    assert (inspect.getdoc(getattr(ps, name)) or "").strip()


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="prune_everything"):
        _ = ps.prune_everything


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_promised(name: str) -> None:
    parameters = list(inspect.signature(getattr(ps, name)).parameters.values())
    promised = SIGNATURES[name]
    for parameter, (_, default) in zip(parameters, promised.items(), strict=False):
        assert parameter.default == default, parameter
        assert parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    assert len(parameters) >= len(promised)
    for extra in parameters[len(promised) :]:  # nothing more is asked of the caller
        assert extra.default is not EMPTY or extra.kind is inspect.Parameter.VAR_KEYWORD, extra
    # Those that DESIGN writes with their names can be given by name.
    named = {"density", "init", "summary", "keep_dense", "convention", "threads"} & set(promised)
    assert named <= {parameter.name for parameter in parameters}


def test_the_account_has_the_promised_numbers() -> None:
    for name in ("macs", "saving", "weight_bytes", "activation_bytes", "peak_bytes"):
        assert isinstance(getattr(ps.Account, name), property)
    assert "layers" in {field.name for field in dataclasses.fields(ps.Account)}


def test_scores_have_the_promised_numbers() -> None:
    assert {"top1", "top5", "seconds"} <= {field.name for field in dataclasses.fields(ps.Score)}


def test_the_zoo_and_the_data_sets_have_the_promised_makers() -> None:
    for name in ("m_cifarnet", "resnet18", "resnet34", "resnet50", "vgg16_bn", "pretrained"):
        assert callable(getattr(ps.zoo, name))
    assert callable(ps.datasets.cifar10)


def test_every_error_is_a_penstock_error() -> None:
    for name, value in vars(ps.errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, ps.PenstockError), name
            assert inspect.getdoc(value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_promised_command_exists_and_takes_json(command: str) -> None:
    assert command in command_line._COMMANDS
    module = importlib.import_module(f"penstock.cli.{command}")
    assert callable(module.run)
    assert "json" in {field.name for field in dataclasses.fields(module.Options)}
    assert inspect.getdoc(module.Options)
