"""The controller: arrivals and latencies in, the density for the next request out.

It keeps a percentile of the latency, queueing included, at a target by moving the density between a floor and
a ceiling. Two parts decide:

- *Ahead.* From the arrival rate λ and the service time s(d) of c workers follow the utilisation ρ = λ·s / c
  and, by the heavy-traffic formula for steady service, the tail of the waiting time:

      latency(d) ≈ s + ln(ρ / (1 - p)) · s / (2·c·(1 - ρ))        for ρ < 1, else without bound

  and, for the requests that wait already, latency(d) ≥ s · (1 + waiting / c). The highest density whose
  latency stays within the limit is wanted.
- *Behind.* Where the latencies that occurred exceed the target all the same (burstier arrivals, a slower
  machine), the limit is lowered step by step, and recovers slowly.

Down at once, up slowly: a short window tells at once that more arrives, only a long one that less does, and
density rises by a fixed slope after there has been room for it for some time. So it does not swing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_SHORT, _LONG = 0.5, 3.0  # seconds over which arrivals are counted
_BUCKET = 0.1  # seconds of one count
_MARGIN = 0.95  # the latency aimed at, as a share of the target
_ROOM = 0.02  # the density rises when it could be at least this much higher …
_PATIENCE = 0.5  # … for this many seconds
_RISE = 8.0  # seconds from floor to ceiling
_WINDOW = 1.0  # seconds of latencies that the percentile is taken of
_EASE = 0.85  # a step down multiplies the limit by this …
_LEAST_EASE = 0.3  # … but never to less than this share of it
_RECOVER = 0.05  # the share of the limit that comes back in a second
_BETWEEN = 0.2  # seconds between two steps down
_BRIEF = 0.004  # seconds for which a density is kept while the queue does not grow
_REFRESH = 0.05  # seconds for which a percentile is kept: sorting for every request would cost too much


@dataclass
class Controller:
    """target: milliseconds. service: density → milliseconds of one request alone. workers: side by side."""

    target: float
    floor: float
    ceiling: float
    service: Callable[[float], float]
    workers: int = 1
    percentile: float = 0.95
    _density: float = field(init=False)
    _ease: float = 1.0
    _drift: float = 1.0  # service times that occurred over those expected
    _counts: deque[tuple[int, int]] = field(default_factory=deque)  # (bucket, arrivals)
    _latencies: deque[tuple[float, float]] = field(default_factory=deque)  # (when, milliseconds)
    _last: float | None = None
    _eased: float = -math.inf
    _roomy_since: float | None = None
    _waited: int = 0
    _seen: tuple[float, float] = (-math.inf, 0.0)  # (when, the percentile then)

    def __post_init__(self) -> None:
        if not 0.0 < self.floor <= self.ceiling <= 1.0:
            raise ValueError(
                f"densities: expected 0 < floor <= ceiling <= 1, got {self.floor}..{self.ceiling}"
            )
        if not self.target > 0:
            raise ValueError(f"target: expected milliseconds above 0, got {self.target}")
        self._density = self.ceiling

    def arrive(self, now: float) -> None:
        """A request came. now: seconds, of a clock that never goes back."""
        bucket = math.floor(now / _BUCKET)
        if self._counts and self._counts[-1][0] == bucket:
            self._counts[-1] = (bucket, self._counts[-1][1] + 1)
        else:
            self._counts.append((bucket, 1))
        while self._counts and self._counts[0][0] < bucket - _LONG / _BUCKET:
            self._counts.popleft()

    def finish(self, now: float, latency: float, served: float, density: float) -> None:
        """A request was answered. latency: with its waiting; served: without; both in milliseconds."""
        self._latencies.append((now, latency))
        while self._latencies[0][0] < now - _WINDOW:
            self._latencies.popleft()
        expected = self.service(density)
        if expected > 0:
            self._drift += 0.05 * (min(max(served / expected, 0.2), 5.0) - self._drift)

    def rate(self, now: float) -> float:
        """Arrivals a second: the long window's, or the short one's where chance does not explain it."""
        bucket = math.floor(now / _BUCKET)
        short = sum(count for at, count in self._counts if at > bucket - _SHORT / _BUCKET)
        long = sum(count for at, count in self._counts if at > bucket - _LONG / _BUCKET)
        return max((short - math.sqrt(short)) / _SHORT, long / _LONG)

    def latency(self, now: float, share: float | None = None) -> float:
        """The percentile (or another share) of the last second's latencies, in milliseconds; 0 if none."""
        values = sorted(value for at, value in self._latencies if at >= now - _WINDOW)
        if not values:
            return 0.0
        place = math.ceil((self.percentile if share is None else share) * len(values)) - 1
        return values[max(0, place)]

    def expected(self, density: float, rate: float, waiting: int) -> float:
        """Milliseconds within which, by the model, the percentile of requests is answered at a density."""
        s = self.service(density) * self._drift
        busy = rate * s / 1000 / self.workers
        if busy >= 1:
            return math.inf
        tail = (
            max(0.0, math.log(max(busy, 1e-9) / (1 - self.percentile))) * s / (2 * self.workers * (1 - busy))
        )
        return max(s + tail, s * (1 + waiting / self.workers))

    def density(self, now: float, waiting: int, oldest: float = 0.0) -> float:
        """The density for the next request. waiting: images in the queue; oldest: age of the first, in ms."""
        passed = 0.0 if self._last is None else max(0.0, now - self._last)
        if self._last is not None and passed < _BRIEF and waiting <= self._waited:
            return self._density
        self._last, self._waited = now, waiting
        if now - self._seen[0] > _REFRESH:
            self._seen = (now, self.latency(now))
        seen = max(self._seen[1], oldest)
        if seen > self.target and now - self._eased > _BETWEEN:
            self._ease = max(_LEAST_EASE, self._ease * _EASE)
            self._eased = now
        elif seen <= self.target:
            self._ease = min(1.0, self._ease + _RECOVER * passed)
        slope = (self.ceiling - self.floor) / _RISE
        if passed > _LONG:  # no request came in all that time, so there was room for a higher density
            self._density = min(self.ceiling, self._density + slope * (passed - _LONG))
        wanted = self._wanted(self.rate(now), waiting)
        if wanted < self._density:
            self._density, self._roomy_since = wanted, None
        elif wanted < self._density + _ROOM and wanted < self.ceiling:
            self._roomy_since = None
        elif self._roomy_since is None:
            self._roomy_since = now
        elif now - self._roomy_since > _PATIENCE:
            self._density = min(wanted, self._density + slope * passed)
        return self._density

    def _wanted(self, rate: float, waiting: int) -> float:
        """The highest density whose expected latency stays within the limit; the floor if none does."""
        limit = self.target * _MARGIN * self._ease
        if self.expected(self.ceiling, rate, waiting) <= limit:
            return self.ceiling
        low, high = self.floor, self.ceiling
        while high - low > 0.005:
            middle = (low + high) / 2
            if self.expected(middle, rate, waiting) <= limit:
                low = middle
            else:
                high = middle
        return low
