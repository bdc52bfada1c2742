"""penstock prune MODEL --method network-slimming --saving 1.19 --out runs/ns: a smaller network for good.

Writes `model.safetensors` (the smaller network), `gated/model.safetensors` (with gates on it), `pruning.json`
(what went, layer by layer, what it cost and scored), a `curve.json` beside each network for the report's
plot, and each stage's training below `out`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from penstock.accounting import account
from penstock.cli.models import find_model
from penstock.cli.progress import TrainingDisplay
from penstock.cli.trainable import find_data
from penstock.errors import PruningError
from penstock.exporting import save
from penstock.files import write_atomically
from penstock.pruning import Budget, NetworkSlimming, Outcome, Plan, Pruned, Stage, prune_in_stages
from penstock.reporting.measuring import try_compile
from penstock.reporting.timing import interleave, one_by_one
from penstock.training import Recipe, evaluate
from penstock.zoo.pretrained import available

_COUNTED = 500  # images whose masks are counted
_TIMED = 16  # images that are timed, one a call
_SECONDS = 3.0
_LABELS = {"network-slimming": "NS"}  # what the report's figures call a method


@dataclass(frozen=True)
class Options:
    """Make a network smaller for good; run the same command again to go on after an interruption."""

    model: Annotated[str, tyro.conf.Positional]
    """A zoo name, module:callable, a checkpoint, or a run's folder."""
    out: Path
    """The folder for the networks, the report and the training."""
    method: Literal["network-slimming"] = "network-slimming"
    ratio: float | None = None
    """The budget as the share of channels to remove: 0.4 removes 40%."""
    saving: float | None = None
    """The budget as how many times fewer MACs: 1.19 leaves MACs / 1.19."""
    rounds: int = 1
    """Reach the budget in so many steps, each with its own training and fine-tuning."""
    sparsity: float = 1e-5
    """Weight of the Lasso on the norms' scales."""
    data: str = "cifar10"
    """cifar10, or sample, the embedded images."""
    holdout: int = 0
    """Hold out so many training images and score on them instead of the test set."""
    sparsity_epochs: int | None = None
    """Epochs with the Lasso before each cut; 0 cuts the network as it is. Default: --recipe.epochs."""
    sparsity_learning_rate: float | None = None
    """The peak in those epochs. Default: --recipe.learning-rate."""
    finetune_epochs: int | None = None
    """Epochs after each cut, without the Lasso; 0 for none. Default: --recipe.epochs."""
    density: float | None = None
    """Put gates on the smaller network and train them at this density; without it there are none."""
    gate_epochs: int | None = None
    """Epochs with gates. Default: --recipe.epochs."""
    gate_learning_rate: float | None = None
    """The peak in those epochs. Default: --recipe.learning-rate."""
    teacher: str = ""
    """A network to distil from in every stage (MODEL syntax); needs --recipe.distill."""
    recipe: Recipe = field(default_factory=Recipe)
    """How every stage trains; the density and its schedule are those of the gates."""
    json: bool = False
    """Print JSON: a line an epoch, and the report as the last line."""


def run(options: Options) -> int:
    plan = make_plan(options)
    train_data, test_data = find_data(options.data, options.holdout)
    torch.manual_seed(options.recipe.seed)
    network = find_model(options.model, len(train_data.classes))
    teacher = find_model(options.teacher) if options.teacher else None

    smaller = f"round{plan.rounds}/{'cut' if plan.finetune is None else 'finetune'}"
    places = {smaller: options.out, "gated": options.out / "gated"}

    def note(stage: Stage) -> None:
        if stage.name in places:
            save(stage.network, places[stage.name] / "model.safetensors")
        score = "" if stage.score is None else f"top-1 {stage.score.top1:.2f}%"
        if stage.cut is not None:
            score = f"{stage.cut.ratio:.1%} of the channels, {stage.cut.saving:.2f}× fewer MACs, {score}"
        print(f"{stage.name}: {score}", file=sys.stderr, flush=True)

    outcome = prune_in_stages(
        network,
        NetworkSlimming(options.sparsity),
        train_data,
        test_data,
        plan,
        out=options.out,
        teacher=teacher,
        on_stage=note,
        watch=lambda name, recipe: TrainingDisplay(recipe.epochs, options.json, name),
    )
    prepare = getattr(network, "preprocess", None) or train_data.preprocess
    images = next(iter(test_data.test_batches(_COUNTED))).images
    found = report(options, network, outcome, prepare(images))
    if Path(options.model).exists() or options.model in available():  # trained: the curve's baseline
        found["baseline"] = asdict(evaluate(network, test_data)) | {"macs": found["macs_before"]}
    write_atomically(options.out / "pruning.json", json.dumps(found, indent=2).encode())
    for folder, curve in curves(options, found):
        write_atomically(options.out / folder / "curve.json", json.dumps(curve, indent=2).encode())
    if options.json:
        print(json.dumps(found))
    else:
        show_report(found)
    return 0


def make_plan(options: Options) -> Plan:
    """The stages that the options ask for."""
    dense = replace(options.recipe, density=1.0, density_schedule="fixed")

    def stage(recipe: Recipe, epochs: int | None, learning_rate: float | None = None) -> Recipe | None:
        if epochs is not None and epochs < 0:
            raise PruningError(f"epochs: expected 0 or more, got {epochs}")
        if epochs == 0:
            return None
        rate = recipe.learning_rate if learning_rate is None else learning_rate
        return replace(recipe, epochs=epochs or recipe.epochs, learning_rate=rate)

    gates: Recipe | None = None
    if options.density is not None:
        gates = replace(options.recipe, density=options.density)
        gates = stage(gates, options.gate_epochs, options.gate_learning_rate)
        if gates is None:
            raise PruningError("--density asks for gates, and --gate-epochs 0 would leave them untrained")
    return Plan(
        budget=Budget(options.ratio, options.saving),
        sparse=stage(dense, options.sparsity_epochs, options.sparsity_learning_rate),
        finetune=stage(dense, options.finetune_epochs),
        gated=gates,
        rounds=options.rounds,
    )


def report(options: Options, original: nn.Module, outcome: Outcome, images: Tensor) -> dict[str, Any]:
    """What `pruning.json` holds; savings are against the original network."""
    found: dict[str, Any] = {
        "model": options.model,
        "method": options.method,
        "macs_before": account(original, images[:1], "paper").macs,
        "macs": account(outcome.network, images[:1], "paper").macs,
        "stages": [{"stage": stage.name} | asdict(stage.score) for stage in outcome.stages if stage.score],
        "cuts": [describe(cut) for cut in outcome.cuts],
    }
    found["saving"] = found["macs_before"] / found["macs"]
    found["milliseconds"] = milliseconds(
        {"original": original, "smaller": outcome.network, "gated": outcome.gated}, images
    )
    found["ratio"] = 1 - outcome.cuts[-1].channels_after / outcome.cuts[0].channels_before
    if outcome.gated is not None:
        found["density"] = options.density
        found["gated_macs"] = account(outcome.gated, images[:1], "paper").macs
        found["gated_macs_executed"] = account(outcome.gated, images, "executed").macs
        found["gated_saving"] = found["macs_before"] / found["gated_macs"]
    return found


def milliseconds(networks: dict[str, nn.Module | None], images: Tensor) -> dict[str, float]:
    """{network: the least milliseconds an image takes in the engine on one thread}, where it can run it."""
    engines = {
        name: try_compile(net.eval(), images[:1])[0] for name, net in networks.items() if net is not None
    }
    timed = {
        name: one_by_one(run, images[:_TIMED].split(1)) for name, run in engines.items() if run is not None
    }
    times = interleave(timed, seconds=_SECONDS) if timed else {}
    return {name: time.least for name, time in times.items()}


def describe(cut: Pruned) -> dict[str, Any]:
    """One cut as plain data."""
    return {
        "ratio": cut.ratio,
        "saving": cut.saving,
        "threshold": cut.threshold,
        "channels_before": cut.channels_before,
        "channels_after": cut.channels_after,
        "weights_before": cut.weights_before,
        "weights_after": cut.weights_after,
        "left_alone": cut.left_alone,
        "layers": [asdict(layer) for layer in cut.layers],
    }


def curves(options: Options, found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(folder below `out`, what its curve.json holds), for the smaller network and for the one with gates."""
    scores = {stage["stage"]: stage for stage in found["stages"]}
    plain = [stage for name, stage in scores.items() if name != "gated"]
    data = f"{options.data}/{'holdout' if options.holdout else 'test'}"
    common = {"version": 1, "network": options.model, "data": data, "baseline": found.get("baseline")}
    label, made = _LABELS[options.method], []
    if plain:
        point = {"ratio": found["ratio"], "macs_paper": found["macs"], "macs_executed": found["macs"]}
        made.append(("", common | {"method": label, "points": [point | _accuracy(plain[-1])]}))
    if "gated" in scores:
        point = {"ratio": found["ratio"], "density": found["density"], "macs_paper": found["gated_macs"]}
        point |= {"macs_executed": found["gated_macs_executed"]} | _accuracy(scores["gated"])
        made.append(("gated", common | {"method": f"{label}+FBS", "points": [point]}))
    return made


def _accuracy(stage: dict[str, Any]) -> dict[str, Any]:
    return {"top1": stage["top1"], "top5": stage["top5"], "checkpoint": "model.safetensors"}


def show_report(found: dict[str, Any]) -> None:
    """The last cut layer by layer, and the figures in one line each."""
    table = Table(title=f"{found['model']}, {found['method']}")
    for heading in ("layer", "channels", "kept", "MACs", "left"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in found["cuts"][-1]["layers"]:
        counts = (layer["channels_before"], len(layer["kept"]), layer["macs_before"], layer["macs_after"])
        table.add_row(layer["layer"], *(f"{count:,}" for count in counts))
    console = Console()
    console.print(table)
    scores = {stage["stage"]: stage["top1"] for stage in found["stages"]}
    plain = [score for name, score in scores.items() if name != "gated"]
    times = {name: f", {time:.3f} ms" for name, time in found["milliseconds"].items()}
    console.print(f"original: {found['macs_before']:,.0f} MACs{times.get('original', '')}")
    said = times.get("smaller", "") + (f", top-1 {plain[-1]:.2f}%" if plain else "")
    console.print(f"smaller: {found['macs']:,.0f} MACs, {found['saving']:.2f}× fewer{said}")
    if "gated_macs" in found:
        said = times.get("gated", "") + (f", top-1 {scores['gated']:.2f}%" if "gated" in scores else "")
        console.print(
            f"gates at density {found['density']:g}: {found['gated_macs']:,.0f} MACs as the paper counts "
            f"({found['gated_macs_executed']:,.0f} executed), {found['gated_saving']:.2f}× fewer{said}"
        )
