"""penstock prune MODEL --method network-slimming --saving 1.19 --out runs/ns: a cheaper network.

Writes `model.safetensors` (the smaller network), `gated/model.safetensors` (with gates on it), `pruning.json`
(what went, layer by layer, what it cost and scored), a `curve.json` beside each network for the report's
plot, and each stage's training below `out`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import tyro
from torch import Tensor, nn

from penstock.cli.images import ReadOptions, first_images
from penstock.cli.models import COMPILED, Model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.prune_report import curves, report, show_methods, show_report, show_sensitivity
from penstock.cli.recipes import PruneRecipe, plain_recipe
from penstock.cli.sources import choose, remember
from penstock.cli.trainable import find_data, find_start, find_teacher
from penstock.datasets import preprocess_of
from penstock.errors import PruningError
from penstock.exporting import save
from penstock.files import write_atomically
from penstock.measuring.densities import try_compile
from penstock.pruning import (
    Budget,
    Method,
    Plan,
    Skipping,
    Stage,
    calibration,
    make_method,
    prepares,
    prune_in_stages,
    sensitivity,
)
from penstock.training import Recipe, evaluate
from penstock.zoo.pretrained import available

_COUNTED = 500  # images whose masks are counted
_NORM_IMAGES = 6400
_TRIED = 1000  # images that a sensitivity is measured on


@dataclass(frozen=True)
class Options:
    """Make a network smaller for good; run the same command again to go on after an interruption."""

    model: Model
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    out: Path
    """The folder for the networks, the report and the training."""
    method: str = "network-slimming"
    """Which method; --method help lists them."""
    settings: tuple[str, ...] = ()
    """Settings of the method, as name=value: --settings positions=20 seed=1."""
    images: int | None = None
    """How many training images the method looks at. Default: the method's own."""
    widths_of: Path | None = None
    """With from-scratch: the run (its folder) whose widths to train from scratch."""
    sensitivity: bool = False
    """Instead of pruning, show how much each layer alone can lose, by filter-pruning's criterion."""
    norm_images: int | None = None
    """Images on which the norms are measured anew after each cut. Default: 6,400; network-slimming: 0."""
    ratio: float | None = None
    """The budget as the share of channels to remove: 0.4 removes 40%."""
    saving: float | None = None
    """The budget as how many times fewer MACs: 1.19 leaves MACs / 1.19."""
    rounds: int = 1
    """The steps in which the budget is reached, each with its own training and fine-tuning."""
    sparsity: float = 1e-5
    """Network Slimming's weight of the Lasso on the norms' scales."""
    data: str = ""
    """cifar10, imagenette, sample (embedded), or a folder with train/CLASS/*.jpg and val/ or test/. Default:
    what MODEL was trained on, else cifar10."""
    size: int = 0
    """The side to which photographs are scaled. Default: that of MODEL's training, else 224."""
    holdout: int = 0
    """Training images held out to score every stage; the test part scores only the last network."""
    sparsity_epochs: int | None = None
    """Epochs before each cut, with the Lasso (network-slimming) or soft zeros (soft-filter-pruning, fpgm); 0
    cuts the network as it is. Default: --recipe.epochs for these three, 0 for the others."""
    sparsity_learning_rate: float | None = None
    """The peak in those epochs. Default: --recipe.learning-rate."""
    finetune_epochs: int | None = None
    """Epochs after each cut; 0 for none. Default: --recipe.epochs."""
    density: float | None = None
    """Put gates on the smaller network and train them at this density; without it there are none."""
    gate_epochs: int | None = None
    """Epochs with gates. Default: --recipe.epochs."""
    gate_learning_rate: float | None = None
    """The peak in those epochs. Default: --recipe.learning-rate."""
    teacher: str = ""
    """A network to distil from in every stage (MODEL syntax); needs --recipe.distill."""
    lessons: Path | None = None
    """A folder where the teacher's answers are kept: runs with the same teacher and seed share them."""
    json: bool = False
    """Print JSON: a line an epoch, and the report as the last line."""
    recipe: PruneRecipe = field(default_factory=PruneRecipe)
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


FURTHER = (
    "settings",
    "images",
    "widths_of",
    "sensitivity",
    "norm_images",
    "rounds",
    "sparsity",
    "sparsity_epochs",
    "sparsity_learning_rate",
    "gate_epochs",
    "gate_learning_rate",
    "teacher",
    "lessons",
    "holdout",
)
"""Options on a second page of help."""


def run(options: Options) -> int:
    if options.method == "help":
        show_methods()
        return 0
    method = choose_method(options)
    plan = make_plan(options)
    source = choose(options.model, options.data, options.size, options.holdout)
    options = replace(options, data=source.data, size=source.size)
    seed = options.recipe.seed
    train_data, test_data, network = find_start(options.model, source, seed, options.reading)
    teacher = find_teacher(options.teacher, network, None, options.reading)
    prepare = preprocess_of(network, train_data)
    if options.sensitivity:
        shown = calibration(train_data, options.images or _TRIED, prepare)
        table = sensitivity(network, shown.images[:1], shown)
        show_sensitivity(table, options.json)
        return 0

    last = f"round{plan.rounds}/{'cut' if plan.finetune is None else 'finetune'}"
    places = {last: options.out, "gated": options.out / "gated"}
    skipping: Skipping | None = None

    def note(stage: Stage) -> None:
        nonlocal skipping
        skipping = stage.skipping or skipping
        if stage.name in places:
            keep(stage.network, places[stage.name], skipping)
            remember(source, places[stage.name])
        score = "" if stage.score is None else f"top-1 {stage.score.top1:.2f}%"
        if stage.cut is not None:
            score = f"{stage.cut.ratio:.1%} of the channels, {stage.cut.saving:.2f}× fewer MACs, {score}"
        print(f"{stage.name}: {score}", file=sys.stderr, flush=True)

    outcome = prune_in_stages(
        network,
        method,
        train_data,
        test_data,
        plan,
        out=options.out,
        teacher=teacher,
        lessons=options.lessons,
        on_stage=note,
        watch=lambda name, recipe: TrainingDisplay(recipe.epochs, options.json, name),
    )
    images = first_images(test_data, _COUNTED)
    if outcome.skipping is not None and outcome.skipping.kind == "pixels":
        keep_compiled(outcome.network, prepare(images[:1]), options.out / COMPILED)
    found = report(options.model, options.method, options.density, network, outcome, prepare(images))
    if Path(options.model).exists() or options.model in available():  # trained: the curve's baseline
        found["baseline"] = asdict(evaluate(network, test_data)) | {"macs": found["macs_before"]}
    if options.holdout and options.data != "sample":  # the sample has no test part
        test_part = find_data(options.data, size=options.size)[1]
        found["test"] = asdict(evaluate(outcome.gated or outcome.network, test_part))
    write_atomically(options.out / "pruning.json", json.dumps(found, indent=2).encode())
    data = f"{options.data}/{'holdout' if options.holdout else 'test'}"
    for folder, curve in curves(data, found):
        write_atomically(options.out / folder / "curve.json", json.dumps(curve, indent=2).encode())
    if options.json:
        print(json.dumps(found))
    else:
        show_report(found)
    return 0


def keep(network: nn.Module, folder: Path, skipping: Skipping | None) -> None:
    """Write the network: a checkpoint where one can describe it, and all its tensors if it skips."""
    if skipping is None:
        save(network, folder / "model.safetensors")
        return
    if skipping.plain is not None:
        save(skipping.plain(network), folder / "model.safetensors")
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    write_atomically(folder / "weights.safetensors", safetensors.torch.save(tensors))


def keep_compiled(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write a network that skips pixels as a compiled file, since no checkpoint describes it; say why not."""
    engine, why = try_compile(network.eval(), example)
    if engine is None:
        print(f"not compiled: {why}", file=sys.stderr, flush=True)
    else:
        engine.save(path)


def choose_method(options: Options) -> Method:
    """The method that the options name, with their settings."""
    settings: dict[str, Any] = {}
    for item in options.settings:
        key, equals, value = item.partition("=")
        if not equals:
            raise PruningError(f"--settings {item!r}: expected name=value, such as seed=1")
        settings[key] = value
    if options.method == "network-slimming":
        settings.setdefault("sparsity", options.sparsity)
    if options.images is not None:
        settings["images"] = options.images
    if options.widths_of is not None:
        settings["widths"] = read_widths(options.widths_of)
    return make_method(options.method, settings)


def read_widths(folder: Path) -> dict[str, int]:
    """{layer: channels} of the network that an earlier `penstock prune` left in `folder`."""
    path = folder / "pruning.json"
    try:
        layers = json.loads(path.read_text(encoding="utf-8"))["cuts"][-1]["layers"]
        return {str(layer["layer"]): len(layer["kept"]) for layer in layers}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise PruningError(
            f"--widths-of {folder}: {path} is not the report of a static method ({error}); "
            "give the folder that penstock prune wrote"
        ) from error


def make_plan(options: Options) -> Plan:
    """The stages that the options ask for."""
    recipe = plain_recipe(options.recipe)
    dense = recipe.replace(density=1.0, density_schedule="fixed")

    def stage(recipe: Recipe, epochs: int | None, learning_rate: float | None = None) -> Recipe | None:
        if epochs is not None and epochs < 0:
            raise PruningError(f"epochs: expected 0 or more, got {epochs}")
        if epochs == 0:
            return None
        rate = recipe.learning_rate if learning_rate is None else learning_rate
        return replace(recipe, epochs=epochs or recipe.epochs, learning_rate=rate)

    before = options.sparsity_epochs
    if before is None and not prepares(choose_method(options)):
        before = 0
    norm_images = options.norm_images
    if norm_images is None:
        norm_images = 0 if options.method == "network-slimming" else _NORM_IMAGES
    gates: Recipe | None = None
    if options.density is not None:
        gates = replace(recipe, density=options.density)
        gates = stage(gates, options.gate_epochs, options.gate_learning_rate)
        if gates is None:
            raise PruningError("--density asks for gates, and --gate-epochs 0 would leave them untrained")
    return Plan(
        budget=Budget(options.ratio, options.saving),
        sparse=stage(dense, before, options.sparsity_learning_rate),
        finetune=stage(dense, options.finetune_epochs),
        gated=gates,
        rounds=options.rounds,
        norm_images=norm_images,
    )
