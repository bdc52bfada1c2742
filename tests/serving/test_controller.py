"""The controller on simulated queues: it settles, holds its target, gives density back, does not swing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serving.controller import Controller
from penstock.serving.simulation import Answer, carried, percentile, poisson, simulate


def service(density: float) -> float:
    """10 ms at density 1, 1.4 at 0.3: like ResNet-18."""
    return 10 * (0.06 + 0.94 * density * density)


def between(answers: list[Answer], begin: float, end: float) -> list[Answer]:
    return [answer for answer in answers if begin <= answer.arrived < end]


def swings(answers: list[Answer], least: float = 0.1) -> int:
    """How often the density changed direction after moving by at least `least`."""
    count, extreme, direction = 0, answers[0].density, 0
    for answer in answers:
        moved = answer.density - extreme
        if direction * moved > 0 or (direction == 0 and abs(moved) >= least):
            direction, extreme = (1 if moved > 0 else -1), answer.density
        elif abs(moved) >= least:
            count, direction, extreme = count + 1, -direction, answer.density
    return count


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("target", [20.0, 50.0])
def test_a_step_to_two_and_a_half_times_the_load_is_held_and_forgotten(workers: int, target: float) -> None:
    light, heavy = 8 * workers, 250 * workers
    rate: Callable[[float], float] = lambda t: heavy if 10 <= t < 30 else light  # noqa: E731
    controller = Controller(target, 0.3, 1.0, service, workers)
    answers = simulate(controller, poisson(rate, 60), jitter=0.1)
    assert percentile(between(answers, 12, 30)) <= target
    assert percentile(between(answers, 10, 12)) <= 1.5 * target
    assert min(a.density for a in between(answers, 12, 30)) < 0.8
    assert between(answers, 50, 60)[-1].density == pytest.approx(1.0, abs=0.02)
    assert swings(between(answers, 12, 30)) <= 4
    # The same load at a fixed density of 1 has no end.
    fixed = simulate(Controller(target, 1.0, 1.0, service, workers), poisson(rate, 30), jitter=0.1)
    assert percentile(between(fixed, 12, 30)) > 100 * target


def test_a_ramp_is_followed_without_swings() -> None:
    controller = Controller(20.0, 0.3, 1.0, service, 2)
    answers = simulate(controller, poisson(lambda t: 40 + 12 * t, 40), jitter=0.1)
    assert percentile(answers) <= 20.0
    assert swings(answers, 0.15) <= 4
    assert between(answers, 38, 40)[-1].density < between(answers, 0, 2)[-1].density - 0.2


def test_bursts_are_absorbed_and_density_comes_back_between_them() -> None:
    burst: Callable[[float], float] = lambda t: 500.0 if t % 20 < 0.5 else 30.0  # noqa: E731
    controller = Controller(30.0, 0.3, 1.0, service, 1)
    answers = simulate(controller, poisson(burst, 60), jitter=0.1)
    assert percentile(answers) <= 1.5 * 30.0
    assert between(answers, 18, 20)[-1].density > 0.9
    assert between(answers, 38, 40)[-1].density > 0.9


def test_a_machine_that_is_slower_than_believed_is_found_out() -> None:
    controller = Controller(25.0, 0.2, 1.0, service, 1)
    answers = simulate(controller, poisson(lambda _: 100.0, 40), lambda d: 1.8 * service(d), jitter=0.1)
    assert percentile(between(answers, 10, 40)) <= 1.2 * 25.0


def test_a_light_load_keeps_the_ceiling() -> None:
    controller = Controller(50.0, 0.3, 1.0, service, 2)
    answers = simulate(controller, poisson(lambda _: 20.0, 30))
    assert min(answer.density for answer in answers) == 1.0


def test_a_lower_floor_carries_more_than_density_1_can_and_less_than_it_can_itself() -> None:
    fixed, floored = (carried(1, service, 20.0, floor) for floor in (1.0, 0.5))
    assert 0 < fixed < 1000 / service(1.0) < floored < 1000 / service(0.5)


def test_what_is_long_past_is_forgotten_while_nobody_asks() -> None:
    controller = Controller(20.0, 0.3, 1.0, service, 1)
    for i in range(400):  # a rush that even the floor does not hold
        controller.arrive(i / 400)
        density = controller.density(i / 400, 100, 200.0)
        controller.finish(i / 400, 200.0, service(density), density)
    assert controller.density(1.0, 0) == pytest.approx(0.3, abs=0.01)
    assert controller.latency(1.0) == 200.0
    assert controller.latency(10.0) == 0.0
    assert controller.density(30.0, 0) == 1.0


@given(
    st.floats(1.0, 200.0),
    st.floats(0.05, 1.0),
    st.integers(1, 16),
    st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(0, 500), st.floats(0, 1e4)), min_size=1, max_size=60),
)
def test_the_density_stays_between_floor_and_ceiling_whatever_happens(
    target: float, floor: float, workers: int, events: list[tuple[float, int, float]]
) -> None:
    controller = Controller(target, floor, 1.0, service, workers)
    now = 0.0
    for passed, waiting, latency in events:
        now += passed
        controller.arrive(now)
        density = controller.density(now, waiting, latency / 2)
        assert floor <= density <= 1.0
        controller.finish(now, latency, latency / 3, density)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="floor"):
        Controller(20.0, 0.8, 0.5, service)
    with pytest.raises(ValueError, match="target"):
        Controller(0.0, 0.3, 1.0, service)
