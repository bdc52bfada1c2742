"""How good a network is at given densities: its loss for choosing, its accuracy for reporting.

Choosing needs a smooth number: among a few thousand images an accuracy of 90% has a standard error of half a
point, more than most choices are worth. So densities are chosen by the divergence of the network's answers
from its own answers at density 1, KL(full ‖ now), and accuracy is reported on images that no choice saw.
Every result is kept in a file of JSON lines, so that a search that was stopped goes on by the same command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine import Engine
from penstock.errors import TrainingError
from penstock.files import cannot_write, write_atomically

_BATCH = 250


@dataclass(frozen=True)
class Quality:
    """loss: KL divergence from the answers at the highest densities, in nats; top1 in percent."""

    loss: float
    top1: float


@dataclass
class Judge:
    """Scores an engine at densities on some images, and remembers."""

    engine: Engine
    images: Tensor  # uint8 (image, channel, height, width)
    labels: Tensor
    prepare: Any
    known: dict[str, Quality] = field(default_factory=dict)
    log: Path | None = None
    asked: int = 0
    tell: Callable[[int], None] | None = None
    """Called with the number of questions so far, after each of them."""
    _full: Tensor | None = None

    def __call__(self, densities: Mapping[str, float]) -> Quality:
        self.asked += 1
        key = _key(densities)
        if key not in self.known:
            self.known[key] = self._score(densities)
            if self.log is not None:
                self._append(key, self.known[key])
        if self.tell is not None:
            self.tell(self.asked)
        return self.known[key]

    def _logits(self, densities: Mapping[str, float]) -> Tensor:
        parts = [
            self.engine(self.prepare(part), density=dict(densities)) for part in self.images.split(_BATCH)
        ]
        return torch.cat(parts)

    def _score(self, densities: Mapping[str, float]) -> Quality:
        if self._full is None:
            self._full = F.log_softmax(self._logits(dict.fromkeys(self.engine.gated, 1.0)), dim=1)
        logits = self._logits(densities)
        loss = F.kl_div(F.log_softmax(logits, dim=1), self._full, log_target=True, reduction="batchmean")
        top1 = 100 * float((logits.argmax(dim=1) == self.labels).float().mean())
        return Quality(float(loss), top1)

    def _append(self, key: str, quality: Quality) -> None:
        assert self.log is not None
        line = json.dumps({"densities": json.loads(key), "loss": quality.loss, "top1": quality.top1})
        try:
            with open(self.log, "a", encoding="utf-8") as stream:
                stream.write(line + "\n")
                stream.flush()
        except OSError as error:
            raise cannot_write(self.log, error) from error


def _key(densities: Mapping[str, float]) -> str:
    return json.dumps({name: round(float(value), 6) for name, value in sorted(densities.items())})


def read_log(path: Path, stamp: str) -> dict[str, Quality]:
    """What an earlier search found; its first line must be the `stamp` of the same network and images.

    A last line that was cut off by an interruption is left out.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps({"stamp": stamp}) + "\n").encode())
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    try:
        first = json.loads(lines[0])
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.get("stamp") != stamp:
        raise TrainingError(
            f"{path}: this search belongs to another network, data set or setting; "
            "give another folder, or delete the file to start afresh"
        )
    found = {}
    for line in lines[1:]:
        try:
            row = json.loads(line)
            found[_key(row["densities"])] = Quality(float(row["loss"]), float(row["top1"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
