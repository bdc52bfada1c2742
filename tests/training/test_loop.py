"""What the loop does besides going on: averages, distils, decays, stops, records, skips."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.training import tiny
from torch import nn

from penstock.datasets import UnreadableImage, image_folder
from penstock.errors import TrainingError
from penstock.gating import gated_layers
from penstock.training import Gates, Loss, Optimiser, Recipe, evaluate, paper_recipe, schedules, train
from penstock.training.average import WeightAverage
from penstock.training.epoch import Step
from penstock.training.losses import parameter_groups, task_loss
from penstock.training.parts import Portions, divide
from penstock.training.record import to_toml
from penstock.training.setup import epoch_length, steps_of


def test_training_learns_and_reports_every_epoch() -> None:
    steps = []
    made, result = tiny.run(tiny.RECIPE.replace(epochs=6), on_step=steps.append)
    assert result.score is not None
    assert result.score.top1 > 60
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert len(steps) == 6 * 4
    assert all(step.images_per_second > 0 for step in steps)
    assert not made.training
    assert made.preprocess == tiny.data().preprocess


def test_an_epoch_of_some_images_draws_others_each_time() -> None:
    steps: list[Step] = []
    _, result = tiny.run(tiny.RECIPE.replace(epochs=2, batch_size=4, epoch_images=10), on_step=steps.append)
    assert [step.steps for step in steps] == [3] * 6
    assert len(result.history) == 2
    few = Recipe(batch_size=4, epoch_images=10)
    assert (epoch_length(tiny.data(), few), steps_of(tiny.data(), few)) == (10, 3)
    assert epoch_length(tiny.data(), few.replace(epoch_images=10**6)) == len(tiny.data())
    with pytest.raises(TrainingError, match="epoch_images: expected 0"):
        Recipe(epoch_images=-1)


def test_weight_decay_is_for_convolutions_and_linear_layers_only() -> None:
    made = tiny.network()
    names = {id(p): name for name, p in made.named_parameters()}
    decayed, kept = parameter_groups(made, 0.1)
    assert {names[id(p)] for p in decayed["params"]} == {
        "first.conv.weight",
        "second.conv.weight",
        "head.weight",
    }
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


def test_the_average_follows_its_formula() -> None:
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer, 0.5)
    expected = layer.weight.item()
    for step, value in enumerate((1.0, 4.0, -2.0), start=1):
        nn.init.constant_(layer.weight, value)
        average.update(layer)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert float(average.values["weight"]) == pytest.approx(expected)
    assert average.network(layer).weight.item() == pytest.approx(expected)
    assert layer.weight.item() == -2.0


def test_distillation_from_oneself_adds_nothing() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    choices = Loss(distill=0.3, label_smoothing=0.0)
    plain = nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(task_loss(logits, labels, choices, logits), 0.7 * plain)
    assert task_loss(logits, labels, choices, torch.randn(5, 3)) > 0.7 * plain


@pytest.mark.parametrize(("layer", "value"), [("first.conv", float("nan")), ("second.conv", float("inf"))])
def test_a_loss_that_is_no_number_stops_and_names_the_layer(layer: str, value: float) -> None:
    made = tiny.network()
    with torch.no_grad():
        made.get_submodule(layer).weight[0, 0, 0, 0] = value
    with pytest.raises(TrainingError, match=rf"epoch 1, step 1.*{layer}"):
        train(made, tiny.data(), None, tiny.RECIPE)


def test_frozen_norms_keep_their_statistics() -> None:
    made = tiny.network()
    train(made, tiny.data(), None, tiny.RECIPE.replace(freeze_norms_at=0.0))
    assert not made.first.norm.running_mean.any()
    assert all(layer.density == 1.0 for _, layer in gated_layers(made))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recipe": tiny.RECIPE.replace(distill=0.5)}, "no teacher"),
        ({"teacher": tiny.network()}, "distill is 0"),
        ({"recipe": tiny.RECIPE.replace(batch_size=1, accumulate=2)}, "cannot be divided into 2 parts"),
    ],
)
def test_runs_that_cannot_work_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        tiny.run(**{"recipe": tiny.RECIPE} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("levels", ["0.5", "0.5,0.3", "low,high", "0.5,1.5", "0.3:0,1", "0.3:x,1"])
def test_levels_that_cannot_be_are_refused(levels: str) -> None:
    with pytest.raises(ValueError, match=r"recipe\.gates\.any_levels"):
        Gates(density_schedule="any", any_levels=levels)
    with pytest.raises(TrainingError, match="goes with"):
        Gates(any_levels="0.3,1.0")


def test_a_density_without_gates_is_refused() -> None:
    with pytest.raises(TrainingError, match="has no gates"):
        train(tiny.network(gated=False), tiny.data(), None, tiny.RECIPE.replace(density=0.5))


def test_a_damaged_image_is_counted_in_the_metrics(tmp_path: Path) -> None:
    for label, colour in enumerate(("red", "green", "blue")):
        (tmp_path / colour).mkdir()
        for index in range(4):
            Image.new("RGB", (9, 9), colour).save(tmp_path / colour / f"{label}{index}.png")
    (tmp_path / "red" / "00.png").write_bytes(b"damaged")
    data = image_folder(tmp_path, 8, workers=0)
    with pytest.warns(UnreadableImage, match="00.png"):
        result = train(tiny.network(), data, data, tiny.RECIPE.replace(epochs=2, batch_size=6))
    assert [line["skipped_images"] for line in result.history] == [1, 1]
    assert result.score is not None
    assert (result.score.images, result.score.skipped) == (11, 1)


def test_the_record_tells_how_the_run_came_about(tmp_path: Path) -> None:
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path)
    record = tomllib.loads((tmp_path / "run.toml").read_text())
    assert record["recipe"]["learning_rate"] == 0.05
    assert record["data"]["train_images"] == 50
    assert record["network"]["gated_layers"] == ["first", "second"]
    assert {"command", "started", "seed", "versions", "machine"} <= record.keys()


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(
            st.text(), st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False),
            st.lists(st.integers(-9, 9)),
            st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3),
            st.lists(st.dictionaries(st.text(max_size=5), st.integers(0, 9)), min_size=1, max_size=3),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_a_record_reads_back_as_it_was(record: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(record)) == record


def test_tensorboard_logs_below_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tiny.run(tiny.RECIPE.replace(epochs=1), tmp_path, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events*"))


@given(st.integers(1, 300), st.integers(1, 4), st.integers(1, 4))
def test_parts_cover_a_batch_once(count: int, processes: int, accumulate: int) -> None:
    if count < processes * accumulate:
        with pytest.raises(TrainingError, match="cannot be divided"):
            divide(count, processes * accumulate)
        return
    images = torch.arange(count)
    seen = []
    for index in range(processes):
        shares = Portions(index, processes, accumulate)
        own = images[shares.own(count)]
        parts = [own[part] for part in shares.forwards(count)]
        assert all(len(part) for part in parts)
        seen += parts
    assert torch.equal(torch.cat(seen), images)
    assert all(
        torch.equal(a, b) for a, b in zip(seen, images.tensor_split(processes * accumulate), strict=True)
    )


@given(st.floats(0.01, 1.0), st.sampled_from(["fixed", "anneal", "paper", "any"]), st.floats(0, 0.999))
def test_densities_stay_between_the_target_and_one(target: float, schedule: str, share: float) -> None:
    gates = Gates(density_schedule=schedule, any_low=min(0.2, target))  # type: ignore[arg-type]
    recipe = Recipe(density=target, gates=gates)
    found = schedules.image_densities(recipe, share, 40, torch.Generator().manual_seed(0))
    low = recipe.gates.any_low if schedule == "any" else target
    high = target if schedule == "any" else 1.0
    assert low - 1e-6 <= found.min() <= found.max() <= high + 1e-6
    if schedule == "any" and target > 0.5 and share > recipe.gates.anneal_to:
        assert found.max() - found.min() > 0.2


@given(st.floats(0, 1), st.integers(1, 64))
def test_a_share_of_the_images_gets_the_highest_density(full: float, images: int) -> None:
    gates = Gates(density_schedule="any", any_low=0.2, any_full=full, anneal_from=0, anneal_to=0)
    recipe = Recipe(density=0.9, gates=gates)
    found = schedules.image_densities(recipe, 0.5, images, torch.Generator().manual_seed(0))
    assert (found == 0.9).sum() >= round(full * images)
    assert images - (found == 0.9).sum() >= (images - round(full * images)) * 0.9  # no one else


@given(st.integers(1, 200), st.integers(0, 99))
def test_every_level_gets_as_many_images_half_of_them_at_its_own_density(images: int, seed: int) -> None:
    gates = Gates(density_schedule="any", any_low=0.25, any_levels="0.3,0.5,1", anneal_from=0, anneal_to=0)
    found = schedules.image_densities(Recipe(gates=gates), 0.5, images, torch.Generator().manual_seed(seed))
    assert 0.25 <= found.min() <= found.max() <= 1
    nearest = torch.bucketize(found, torch.tensor([0.4, 0.75]))
    counts = torch.bincount(nearest, minlength=3)
    assert counts.max() - counts.min() <= 1
    for level in (0.3, 0.5, 1.0):
        exact = int((found - level).abs().lt(1e-6).sum())
        assert images < 60 or 0.2 * images / 3 < exact < 0.8 * images / 3


def test_weights_say_how_often_a_level_is_drawn() -> None:
    gates = Gates(
        density_schedule="any", any_levels="0.3:3,0.5:1,1:4", any_near=0.0, anneal_from=0, anneal_to=0
    )
    found = schedules.image_densities(Recipe(gates=gates), 0.5, 80, torch.Generator().manual_seed(3))
    assert [int((found - level).abs().lt(1e-6).sum()) for level in (0.3, 0.5, 1.0)] == [30, 10, 40]
    assert not torch.equal(found, found.sort().values)  # every process gets of every level


def test_a_network_trained_with_levels_learns_them_and_goes_on(tmp_path: Path) -> None:
    made = tiny.network()
    recipe = tiny.RICH.replace(any_levels="0.3,0.5,0.75")
    train(made, tiny.data(), None, recipe, out=tmp_path)
    assert made.first.levels == (0.3, 0.5, 0.75)
    assert not torch.equal(made.first.norm.running_mean[0], made.first.norm.running_mean[2])
    assert not torch.equal(made.second.shift[0], made.second.shift[1])
    again = tiny.network(seed=1)  # resumed: what it ends with is the same
    train(again, tiny.data(), None, recipe, out=tmp_path)
    assert tiny.same_bits(tiny.weights(made), tiny.weights(again))


@given(st.sampled_from(["cosine", "linear", "step"]), st.floats(0, 1), st.floats(0, 0.9))
def test_learning_rates_stay_between_zero_and_their_peak(schedule: str, share: float, warmup: float) -> None:
    recipe = Recipe(optimiser=Optimiser(schedule=schedule, warmup=warmup, step_epochs=5))  # type: ignore[arg-type]
    assert -1e-12 <= schedules.learning_rate(recipe, share) <= recipe.learning_rate * (1 + 1e-12)


def test_the_papers_recipe_is_the_papers() -> None:
    recipe = paper_recipe()
    rates = [schedules.learning_rate(recipe, epoch / 300) for epoch in (0, 99, 101, 199, 201, 299)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    assert (recipe.batch_size, recipe.loss.penalty, recipe.augmentation.flip) == (256, 1e-8, True)
    levels = {
        schedules.density(recipe.replace(density=0.5, density_schedule="paper"), k / 60) for k in range(60)
    }
    assert sorted(levels) == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_scoring_leaves_every_mode_as_it_was() -> None:
    made = tiny.network().train()
    made.first.norm.eval()
    score = evaluate(made, tiny.data(), batch_size=7)
    assert score.images == 50
    assert made.training
    assert not made.first.norm.training
