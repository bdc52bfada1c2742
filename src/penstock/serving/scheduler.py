"""The queue and the workers: jobs in, results out, each at the density that the controller allows.

Jobs wait in one bounded queue, first come, first served. Every worker is a thread that runs one job at a
time; the engine releases the GIL, so workers really run side by side. A job is refused at the door when even
the floor density could not answer it in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from penstock.serving.controller import Controller

T = TypeVar("T")
_SHARES = (0.5, 0.95, 0.99)


class Overloaded(Exception):
    """The queue is full. seconds: when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the server is busier than its lowest density can carry; try again in {seconds:.0f} s"
        )
        self.seconds = seconds


class TooLate(Exception):
    """A job's own deadline passed before a worker was free."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """A result, the density it was computed at, and milliseconds: of the work, and from arrival to answer."""

    value: T
    density: float
    milliseconds: float
    latency: float


@dataclass(frozen=True)
class State:
    """A scheduler at one moment. waiting: images; rate: requests a second; quantiles: {share: ms}."""

    density: float
    waiting: int
    rate: float
    quantiles: dict[float, float]
    answered: int
    refused: int


@dataclass(frozen=True)
class _Job:
    run: Callable[[float], Any]
    arrived: float
    pinned: float | None
    deadline: float | None  # seconds of the clock
    weight: int
    finish: Callable[[Done[Any] | BaseException], None]


class Scheduler:
    """Workers for one model. patience: milliseconds that a job may have to wait at the floor density."""

    def __init__(self, controller: Controller, patience: float) -> None:
        self.controller = controller
        self.patience = patience
        self._jobs: deque[_Job] = deque()
        self._waiting = 0  # images, not jobs: a job of eight images takes eight times as long
        self._lock = threading.Lock()  # of the jobs and the controller
        self._wake: SimpleQueue[bool] = SimpleQueue()  # True for every job, False for every worker at the end
        self._open = True
        self._answered = 0
        self._refused = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-worker-{i}", daemon=True)
            for i in range(controller.workers)
        ]
        for thread in self._threads:
            thread.start()

    def state(self) -> State:
        """How things are now; its density is what the next request would be computed at."""
        with self._lock:
            now = time.monotonic()
            quantiles = {share: self.controller.latency(now, share) for share in _SHARES}
            return State(
                self._next_density(),
                self._waiting,
                self.controller.rate(now),
                quantiles,
                self._answered,
                self._refused,
            )

    async def run(
        self,
        work: Callable[[float], T],
        *,
        density: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
    ) -> Done[T]:
        """Do `work`, which is given its density, on a worker. deadline: milliseconds. weight: its images."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Done[T] | BaseException] = loop.create_future()

        def settle(found: Done[T] | BaseException) -> None:
            if not answer.cancelled():
                answer.set_result(found)

        def finish(found: Done[T] | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, found)

        self.submit(work, finish, density=density, deadline=deadline, weight=weight)
        found = await answer
        if isinstance(found, BaseException):
            raise found
        return found

    def submit(
        self,
        work: Callable[[float], T],
        finish: Callable[[Done[T] | BaseException], None],
        *,
        density: float | None = None,
        deadline: float | None = None,
        weight: int = 1,
    ) -> None:
        """As `run`, for callers without an event loop: a worker calls `finish`."""
        now = time.monotonic()
        until = None if deadline is None else now + deadline / 1000
        job = _Job(work, now, density, until, weight, finish)
        with self._lock:
            if not self._open:
                raise Overloaded(1.0)
            self.controller.arrive(now)
            cheapest = self.controller.service(self.controller.floor)
            wait = (self._waiting + weight - 1) * cheapest / self.controller.workers
            if self._waiting and wait > self.patience:
                self._refused += 1
                raise Overloaded(max(1.0, wait / 1000))
            self._jobs.append(job)
            self._waiting += weight
        self._wake.put(True)

    def close(self) -> None:
        """Take nothing more, answer what was accepted, and end the workers."""
        with self._lock:
            self._open = False
        for _ in self._threads:
            self._wake.put(False)  # behind the jobs
        for thread in self._threads:
            thread.join()

    def _next_density(self) -> float:
        now = time.monotonic()
        oldest = 1000 * (now - self._jobs[0].arrived) if self._jobs else 0.0
        return self.controller.density(now, self._waiting, oldest)

    def _work(self) -> None:
        while self._wake.get():
            with self._lock:
                job = self._jobs.popleft()
                self._waiting -= job.weight
                density = self._next_density()
            self._run(job, density)

    def _run(self, job: _Job, density: float) -> None:
        begin = time.monotonic()
        try:
            if job.deadline is not None:
                density = self._in_time(density, 1000 * (job.deadline - begin))
            density = density if job.pinned is None else job.pinned
            value = job.run(density)
        except BaseException as error:
            job.finish(error)
            return
        end = time.monotonic()
        served, latency = 1000 * (end - begin), 1000 * (end - job.arrived)
        job.finish(Done(value, density, served, latency))
        with self._lock:
            self._answered += 1
            if job.pinned is None:  # what a caller chose says nothing about what the controller should do
                self.controller.finish(end, latency, served / job.weight, density)

    def _in_time(self, density: float, left: float) -> float:
        """The highest density up to `density` that is done in `left` milliseconds."""
        floor = self.controller.floor
        if left < self.controller.service(floor):
            raise TooLate(f"the deadline passes before even density {floor:g} is computed")
        while density > floor and self.controller.service(density) > left:
            density = max(floor, density - 0.05)
        return density
