"""What Prometheus reads: counters as requests end, gauges as they are when asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from penstock.serving.service import Served

_BUCKETS = (0.5, 1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 5000)


class Metrics:
    """One registry a server: two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        into = self.registry
        self.requests = Counter("penstock_requests", "Answers by status", ["model", "status"], registry=into)
        self.latency = Histogram(
            "penstock_latency_milliseconds", "Arrival to answer", ["model"], buckets=_BUCKETS, registry=into
        )
        self.density_used = Histogram(
            "penstock_density_used",
            "Densities that requests were computed at",
            ["model"],
            buckets=tuple(i / 10 for i in range(1, 11)),
            registry=into,
        )
        self.density = Gauge("penstock_density", "Density of the next request", ["model"], registry=into)
        self.waiting = Gauge("penstock_waiting_images", "Images in the queue", ["model"], registry=into)
        self.target = Gauge(
            "penstock_target_milliseconds", "The latency that is held", ["model"], registry=into
        )
        self.percentile = Gauge(
            "penstock_latency_quantile_milliseconds",
            "Of the last second",
            ["model", "quantile"],
            registry=into,
        )
        self.accuracy = Gauge(
            "penstock_accuracy_percent", "Top-1 at the density of now", ["model"], registry=into
        )
        self.given_away = Gauge(
            "penstock_accuracy_given_away_points", "Top-1 below that at the ceiling", ["model"], registry=into
        )
        self.reloads = Gauge("penstock_reloads", "Times the file was loaded again", ["model"], registry=into)

    @cache  # noqa: B019  # one registry a server, and both live as long as it does
    def _children(self, model: str) -> tuple[Histogram, Histogram]:
        return self.latency.labels(model), self.density_used.labels(model)

    @cache  # noqa: B019
    def _answers(self, model: str, status: int) -> Counter:
        return self.requests.labels(model, str(status))

    def note(self, model: str, density: float, latency: float) -> None:
        """A request was computed."""
        milliseconds, densities = self._children(model)
        milliseconds.observe(latency)
        densities.observe(density)

    def count(self, model: str, status: int) -> None:
        """A request was answered."""
        self._answers(model, status).inc()

    def text(self, served: Mapping[str, Served]) -> bytes:
        """Everything, in Prometheus' text format."""
        for name, one in served.items():
            state = one.scheduler.state()
            self.density.labels(name).set(state.density)
            self.waiting.labels(name).set(state.waiting)
            self.target.labels(name).set(one.settings.target)
            self.reloads.labels(name).set(one.reloads)
            for share, milliseconds in state.quantiles.items():
                self.percentile.labels(name, f"{share:g}").set(milliseconds)
            now, given = one.accuracy(state.density)
            if now is not None and given is not None:
                self.accuracy.labels(name).set(now)
                self.given_away.labels(name).set(given)
        return generate_latest(self.registry)
