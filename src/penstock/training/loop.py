"""One training loop, read top to bottom: a network, data and a recipe in; the trained network out.

    train(network, train_data, test_data, Recipe(epochs=15), out="runs/x")

Run again with the same `out` it goes on from the last whole epoch; what it ends with is bit for bit what an
uninterrupted run would have ended with on the same machine. Under `accelerate launch` or `torchrun` every
process takes its part of each batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from penstock.datasets import ImageArrays, Preprocess
from penstock.datasets.augment import alternate_flip, cut_out, random_crop, resize
from penstock.errors import TrainingError
from penstock.files import write_atomically
from penstock.gating import SaliencyPredictor, gated_layers, saliency_penalty, set_density
from penstock.training import schedules
from penstock.training.evaluate import Score, evaluate
from penstock.training.recipe import Recipe
from penstock.training.state import RunState, load_state, save_state


@dataclass(frozen=True)
class Step:
    """What a progress display wants to know after each optimiser step."""

    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float
    density: float
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class TrainingResult:
    """The last score on the test data (None without any), the metrics of every epoch, and where they lie."""

    score: Score | None
    history: list[dict[str, Any]]
    out: Path | None


def train(
    network: nn.Module,
    train_data: ImageArrays,
    test_data: ImageArrays | None = None,
    recipe: Recipe | None = None,
    *,
    out: str | Path | None = None,
    teacher: nn.Module | None = None,
    extra_loss: Callable[[nn.Module], Tensor] | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_epoch: Callable[[dict[str, Any], nn.Module], None] | None = None,
) -> TrainingResult:
    """Train `network` in place; its weights at the end are the averaged ones if the recipe averages.

    `out`: a folder for the state and the metrics, from which a stopped run goes on. `extra_loss`: a term of the
    network's own values that is added to every loss (Network Slimming's Lasso on the scales, for instance).
    """
    recipe = recipe or Recipe()
    if recipe.distill > 0 and teacher is None:
        raise TrainingError(f"recipe.distill is {recipe.distill}, but no teacher was given")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    folder = None if out is None else Path(out)
    gated = any(True for _ in gated_layers(network))
    accelerator = Accelerator()
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    network.to(accelerator.device, memory_format=layout)  # type: ignore[call-overload]
    if teacher is not None:
        teacher.to(accelerator.device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
    prepare: Callable[[Tensor], Tensor] = getattr(network, "preprocess", None) or Preprocess()

    optimiser = torch.optim.SGD(
        parameter_groups(network, recipe.weight_decay),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
    )
    average = WeightAverage(network, recipe.average) if recipe.average else None
    state = RunState(recipe=asdict(recipe))
    if folder is not None and (folder / "state.safetensors").exists():
        state = resume(folder / "state.safetensors", network, optimiser, average, recipe)
    parallel, optimiser = accelerator.prepare(network, optimiser)
    forward = torch.compile(parallel) if recipe.compile else parallel

    steps = -(-len(train_data) // recipe.batch_size)
    score: Score | None = None
    for epoch in range(state.epoch, recipe.epochs):
        begin, seen, hits, total_loss = time.perf_counter(), 0, 0, 0.0
        torch.manual_seed(recipe.seed * 100_003 + epoch)  # dropout, the same on resuming
        draw = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        network.train()
        if epoch >= recipe.freeze_norms_at * recipe.epochs:
            freeze_norms(network)
        for step, batch in enumerate(epoch_batches(train_data, recipe, epoch, draw)):
            share = (epoch + step / steps) / recipe.epochs
            density = schedules.density(recipe, share, draw)
            if gated:
                set_density(network, density)
            for group in optimiser.param_groups:
                group["lr"] = schedules.learning_rate(recipe, share)
            optimiser.zero_grad(set_to_none=True)
            for images, labels in own_parts(batch, accelerator, recipe.accumulate):
                x = prepare(images.to(accelerator.device)).contiguous(memory_format=layout)
                labels = labels.to(accelerator.device)
                logits = forward(x)
                loss = task_loss(logits, labels, x, recipe, teacher)
                if gated and recipe.penalty:
                    loss = loss + recipe.penalty * saliency_penalty(network)
                if extra_loss is not None:
                    loss = loss + extra_loss(network)
                accelerator.backward(loss / recipe.accumulate)
                total_loss += float(loss.detach()) * len(labels)
                hits += int((logits.detach().argmax(1) == labels).sum())
                seen += len(labels)
            check_finite(total_loss, network, epoch, step)
            optimiser.step()
            if average is not None:
                average.update(network)
            if on_step is not None:
                elapsed = time.perf_counter() - begin
                left = elapsed / (step + 1) * (steps - step - 1 + steps * (recipe.epochs - epoch - 1))
                speed = seen * accelerator.num_processes / elapsed
                on_step(Step(epoch, step, steps, total_loss / seen, hits / seen, density, speed, left))

        seconds = time.perf_counter() - begin
        trained = network if average is None else average.network(network)
        if gated:
            set_density(trained, recipe.density)
        metrics: dict[str, Any] = {
            "epoch": epoch + 1,
            "loss": total_loss / seen,
            "train_top1": 100 * hits / seen,
            "density": density if recipe.density_schedule != "any" else recipe.density,
            "seconds": round(seconds, 2),
            "images_per_second": round(seen * accelerator.num_processes / seconds, 1),
        }
        if test_data is not None:
            score = evaluate(trained, test_data, preprocess=prepare)
            metrics |= {"test_top1": score.top1, "test_top5": score.top5, "test_loss": score.loss}
        state.epoch = epoch + 1
        state.history.append(metrics)
        if folder is not None and accelerator.is_main_process:
            state.tensors = collect(network, optimiser, average)
            save_state(state, folder / "state.safetensors")
            lines = "".join(json.dumps(line) + "\n" for line in state.history)
            write_atomically(folder / "metrics.jsonl", lines.encode())
        if on_epoch is not None and accelerator.is_main_process:
            on_epoch(metrics, trained)
    if average is not None:
        average.copy_to(network)
    network.eval()
    if gated:
        set_density(network, recipe.density)
    if score is None and test_data is not None:
        score = evaluate(network, test_data, preprocess=prepare)
    return TrainingResult(score, state.history, folder)


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: convolution and linear weights, which decay; gates, norms, shifts and biases, which do not."""
    gates = {id(p) for m in network.modules() if isinstance(m, SaliencyPredictor) for p in m.parameters()}
    decayed = [p for p in network.parameters() if p.dim() >= 2 and id(p) not in gates]
    chosen = {id(p) for p in decayed}
    kept = [p for p in network.parameters() if id(p) not in chosen]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def task_loss(logits: Tensor, labels: Tensor, x: Tensor, recipe: Recipe, teacher: nn.Module | None) -> Tensor:
    """Cross entropy with the labels, mixed with the divergence from the teacher if there is one."""
    loss = F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
    if teacher is None or recipe.distill == 0:
        return loss
    with torch.no_grad():
        wanted = F.log_softmax(teacher(x) / recipe.temperature, dim=1)
    given = F.log_softmax(logits / recipe.temperature, dim=1)
    divergence = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
    return (1 - recipe.distill) * loss + recipe.distill * recipe.temperature**2 * divergence


def epoch_batches(
    data: ImageArrays, recipe: Recipe, epoch: int, draw: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, augmented whole batches of one epoch; all chance comes from `draw`."""
    order = torch.randperm(len(data), generator=draw)
    size = schedules.image_size(recipe, epoch / recipe.epochs)
    for indices in order.split(recipe.batch_size):
        images = random_crop(data.images[indices], recipe.crop_padding, draw)
        if recipe.flip:
            images = alternate_flip(images, indices, epoch, recipe.seed)
        images = cut_out(images, recipe.cutout, draw)
        yield (images if size is None else resize(images, size)), data.labels[indices]


def own_parts(
    batch: tuple[Tensor, Tensor], accelerator: Accelerator, accumulate: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's part of a batch, split for accumulation."""
    images, labels = batch
    parts = accelerator.num_processes * accumulate
    if len(labels) < parts:
        raise TrainingError(
            f"a batch of {len(labels)} images cannot be split over {accelerator.num_processes} processes "
            f"× {accumulate} accumulations; use a larger batch or other data"
        )
    own = slice(accelerator.process_index * accumulate, (accelerator.process_index + 1) * accumulate)
    yield from zip(images.tensor_split(parts)[own], labels.tensor_split(parts)[own], strict=True)


def freeze_norms(network: nn.Module) -> None:
    """Norms use and keep their running statistics although the network trains."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def check_finite(total_loss: float, network: nn.Module, epoch: int, step: int) -> None:
    """Stop at the first loss that is not a number, naming the first layer whose values are not finite."""
    if torch.tensor(total_loss).isfinite():
        return
    broken = next((name for name, p in network.named_parameters() if not p.isfinite().all()), None)
    if broken is None:
        broken = next(
            (name for name, layer in gated_layers(network)
             if layer.saliency is not None and not layer.saliency.isfinite().all()),
            None,
        )
    where = f"first non-finite values in {broken!r}" if broken else "all weights are still finite"
    raise TrainingError(
        f"the loss became {total_loss} in epoch {epoch + 1}, step {step + 1}; {where}. "
        "Try a lower learning rate, a longer warm-up, or init='preserve' for the gates."
    )


class WeightAverage:
    """An exponential moving average of all floating-point parameters and buffers."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.values = {name: tensor.detach().clone() for name, tensor in _floating(network)}

    def update(self, network: nn.Module) -> None:
        # A short history at first, so that the average does not drag the random start along.
        self.updates += 1
        weight = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        names, live = zip(*_floating(network), strict=True)
        torch._foreach_lerp_([self.values[name] for name in names], list(live), weight)

    def copy_to(self, network: nn.Module) -> None:
        with torch.no_grad():
            for name, tensor in _floating(network):
                tensor.copy_(self.values[name])

    def network(self, like: nn.Module) -> nn.Module:
        """A copy of `like` that carries the averaged values."""
        from copy import deepcopy

        twin = deepcopy(like)
        self.copy_to(twin)
        return twin


def _floating(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t.data) for n, t in network.state_dict(keep_vars=True).items() if t.is_floating_point()]


def collect(network: nn.Module, optimiser: Any, average: WeightAverage | None) -> dict[str, Tensor]:
    """Every tensor a resumed run needs, by name."""
    tensors = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = momentum
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.values.items()}
        tensors["average_updates"] = torch.tensor(average.updates)
    return tensors


def resume(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer, average: WeightAverage | None, recipe: Recipe
) -> RunState:
    """Put the state at `path` back into the network, the optimiser and the average."""
    state = load_state(path)
    changed = [name for name in recipe.differences(state.recipe) if name != "threads"]
    if changed:
        said = ", ".join(f"{n} was {state.recipe[n]!r} and is now {getattr(recipe, n)!r}" for n in changed)
        raise TrainingError(f"{path}: the run was started with another recipe ({said}); use another folder")
    take = {key: {} for key in ("model", "momentum", "average")}  # type: dict[str, dict[str, Tensor]]
    for name, tensor in state.tensors.items():
        kind, _, rest = name.partition(".")
        take.setdefault(kind, {})[rest] = tensor
    network.load_state_dict(take["model"])
    for name, parameter in network.named_parameters():
        if name in take["momentum"]:
            buffer = take["momentum"][name].to(parameter.device)
            # The layout of a buffer decides the order of sums: keep it as an uninterrupted run has it.
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
    if average is not None:
        for name, value in average.values.items():
            value.copy_(take["average"][name])
        average.updates = int(state.tensors["average_updates"])
    return state
