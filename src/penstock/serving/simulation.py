"""A queue simulated event by event: arrivals, a controller and workers in, latencies and densities out.

The controller's tests run on it, and the table in `docs/serving.md` comes from it (`benchmarks/queues.py`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.serving.controller import Controller


@dataclass(frozen=True)
class Answer:
    """One request. arrived, answered: seconds; density: what it was computed at."""

    arrived: float
    answered: float
    density: float

    @property
    def latency(self) -> float:
        """Milliseconds, queueing included."""
        return 1000 * (self.answered - self.arrived)


def poisson(rate: Callable[[float], float], seconds: float, seed: int = 0) -> Iterator[float]:
    """Times of random arrivals. rate: time → arrivals a second, which must stay below 100,000."""
    rng = random.Random(seed)
    now, most = 0.0, max(rate(seconds * i / 1000) for i in range(1001))
    if most <= 0:
        return
    while True:
        now += rng.expovariate(most)
        if now >= seconds:
            return
        if rng.random() * most < rate(now):
            yield now


def simulate(
    controller: Controller,
    arrivals: Iterable[float],
    service: Callable[[float], float] | None = None,
    jitter: float = 0.0,
    seed: int = 0,
) -> list[Answer]:
    """Serve `arrivals` first come, first served, on the controller's workers.

    service: density → milliseconds, as they really are (default: what the controller believes). jitter: the
    share by which a service time varies at random.
    """
    real = controller.service if service is None else service
    rng = random.Random(seed)
    idle = controller.workers
    queue: deque[float] = deque()
    busy: list[tuple[float, float, float, float]] = []  # (end, arrived, milliseconds, density)
    answers = []
    coming = iter(arrivals)
    following = next(coming, None)
    while following is not None or busy:
        if busy and (following is None or busy[0][0] <= following):
            now, arrived, taken, density = heapq.heappop(busy)
            idle += 1
            answer = Answer(arrived, now, density)
            controller.finish(now, answer.latency, taken, density)
            answers.append(answer)
        else:
            assert following is not None
            now = following
            controller.arrive(now)
            queue.append(now)
            following = next(coming, None)
        while idle and queue:
            arrived = queue.popleft()
            oldest = 1000 * (now - (queue[0] if queue else arrived))
            density = controller.density(now, len(queue), oldest)
            taken = real(density) * (1 + jitter * (2 * rng.random() - 1))
            heapq.heappush(busy, (now + taken / 1000, arrived, taken, density))
            idle -= 1
    return answers


def percentile(answers: Iterable[Answer], share: float = 0.95) -> float:
    """Milliseconds within which that share of the answers came; 0 when there is none."""
    values = sorted(answer.latency for answer in answers)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def carried(cores: int, service: Callable[[float], float], target: float, floor: float) -> int:
    """Requests a second, arriving at random, whose p95 stays within the target; density from floor to 1.

    service: density → milliseconds of one request alone. Found by halving, to 2% of what the cores can do.
    """
    below, above = 0.0, 1000 * cores / service(floor)
    for _ in range(6):
        rate = (below + above) / 2
        seconds = max(1.5, min(12.0, 10_000 / rate))
        controller = Controller(target, floor, 1.0, service, cores)
        answers = simulate(controller, poisson(lambda _: rate, seconds), jitter=0.1)  # noqa: B023
        late = [answer for answer in answers if answer.arrived > seconds / 3]
        if percentile(late) <= target:
            below = rate
        else:
            above = rate
    return round(below)
