"""How training shows itself: a bar in a terminal, plain lines elsewhere, and a line an epoch in both."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import nn

from penstock.training import Step

_SECONDS_BETWEEN_LINES = 30.0


class TrainingDisplay:
    """A context whose `step` and `epoch` are the callbacks of `train`.

    The bar and the plain lines go to stderr; the epochs' lines to stdout, as JSON if asked.
    """

    def __init__(self, epochs: int, as_json: bool = False, title: str = "", quiet: bool = False) -> None:
        self.epochs = epochs
        self.quiet = quiet  # no line an epoch: stdout belongs to something else
        self.as_json = as_json
        self.title = f"{title} " if title else ""
        console = Console(markup=False, stderr=True, highlight=False)
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[said]}"))
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=None, said="")
        self.last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, step: Step) -> None:
        """After each optimiser step."""
        where = f"{self.title}epoch {step.epoch + 1}/{self.epochs}"
        said = step_words(step)
        if self.bar is not None:
            self.bar.update(
                self.task, description=where, completed=step.step + 1, total=step.steps, said=said
            )
        elif time.monotonic() - self.last_line >= _SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            print(f"{where} step {step.step + 1}/{step.steps} {said}", file=sys.stderr, flush=True)

    def epoch(self, metrics: dict[str, Any], network: nn.Module) -> None:
        """After each epoch."""
        if self.quiet:
            return
        line = json.dumps(metrics) if self.as_json else self.title + epoch_words(metrics, self.epochs)
        if self.bar is not None:
            self.bar.stop()  # a line on stdout must not land in the middle of the bar
            print(line, flush=True)
            self.bar.start()
        else:
            print(line, flush=True)


def step_words(step: Step) -> str:
    """accuracy, loss, density, images/s and time left."""
    return (
        f"top-1 {100 * step.accuracy:.1f}% loss {step.loss:.3f} d {step.density:.2f} "
        f"{step.images_per_second:.0f} images/s {duration(step.seconds_left)} left"
    )


def epoch_words(metrics: dict[str, Any], epochs: int) -> str:
    """One epoch in a line."""
    words = (
        f"epoch {metrics['epoch']}/{epochs}  loss {metrics['loss']:.3f}  train {metrics['train_top1']:.2f}%"
    )
    if "test_top1" in metrics:
        words += f"  test {metrics['test_top1']:.2f}% (top-5 {metrics['test_top5']:.2f}%)"
    words += f"  d {metrics['density']:.2f}  {metrics['images_per_second']:.0f} images/s"
    if metrics.get("skipped_images"):
        words += f"  {metrics['skipped_images']} unreadable images skipped"
    return words + f"  {duration(metrics['seconds'])}"


def duration(seconds: float) -> str:
    """
    >>> duration(3700), duration(61), duration(5)
    ('1:01:40', '1:01', '0:05')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
