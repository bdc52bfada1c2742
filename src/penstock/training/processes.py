"""The processes of a run, through accelerate: one alone, or several under `accelerate launch` or `torchrun`.

Every process holds the whole network; gradients are averaged over them, sums are added up, scores and files
come from the main process only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Any, ParamSpec

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from penstock.errors import TrainingError, import_extra
from penstock.training.evaluate import Score
from penstock.training.state import Part

P = ParamSpec("P")


class Processes:
    """What the loop asks of accelerate."""

    def __init__(self, folder: Path | None, tensorboard: bool) -> None:
        self.logging = tensorboard
        if tensorboard:
            if folder is None:
                raise TrainingError("tensorboard: logging needs a folder; give `out`")
            import_extra("tensorboard", "tensorboard")
        self.accelerator = Accelerator(
            # Without being told, accelerate takes each process of torchrun on a CPU as alone.
            cpu=not torch.accelerator.is_available(),
            log_with="tensorboard" if tensorboard else None,
            project_dir=None if folder is None else str(folder),
        )
        if tensorboard:
            self.accelerator.init_trackers("tensorboard")
        self.device: torch.device = self.accelerator.device
        self.index: int = self.accelerator.process_index
        self.count: int = self.accelerator.num_processes
        self.main: bool = self.accelerator.is_main_process

    def prepare(self, network: nn.Module, optimiser: Any, compile: bool) -> tuple[nn.Module, Any]:
        """The network as it is called in training, and the optimiser."""
        parallel, optimiser = self.accelerator.prepare(network, optimiser)
        if compile:
            # Shapes stay fixed: a compiler that guesses them from what it saw so far would, after resuming,
            # guess otherwise, and the weights would differ in their last bits.
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            parallel = torch.compile(parallel, dynamic=False)
        return parallel, optimiser

    def backward(self, loss: Tensor, forward: nn.Module, last: bool) -> None:
        """Gradients of `loss`; they are averaged over the processes at the last part of a batch only."""
        with nullcontext() if last or self.count == 1 else self.accelerator.no_sync(forward):
            self.accelerator.backward(loss)

    def all_agree(self, mine: bool) -> bool:
        """Whether `mine` is true in every process."""
        if self.count == 1:
            return mine
        votes = torch.tensor([float(mine)], device=self.device)
        return bool(self.accelerator.reduce(votes, "sum").item() == self.count)

    def main_says(self, mine: bool) -> bool:
        """What the main process says, in every process: clocks differ."""
        if self.count == 1:
            return mine
        return bool(broadcast(torch.tensor([float(mine)], device=self.device)).item())

    def summed(self, part: Part) -> Part:
        """The sums over all processes."""
        if self.count == 1:
            return part
        sums = torch.tensor(
            [part.loss, part.hits, part.seen, part.skipped], dtype=torch.float64, device=self.device
        )
        loss, *counts = self.accelerator.reduce(sums, "sum").tolist()
        hits, seen, skipped = map(int, counts)
        return Part(part.steps, loss, hits, seen, skipped, part.seconds)

    def once(self, measure: Callable[P, Score], *args: P.args, **kwargs: P.kwargs) -> Score:
        """The score that `measure` gives in the main process, in all."""
        if self.count == 1:
            return measure(*args, **kwargs)
        empty = Score(0.0, 0.0, 0.0, 0, 0.0)
        found = astuple(measure(*args, **kwargs) if self.main else empty)
        values = broadcast(torch.tensor(found, dtype=torch.float64, device=self.device)).tolist()
        return Score(*(type(kind)(value) for kind, value in zip(astuple(empty), values, strict=True)))

    def agree_on(self, epoch: int, folder: Path) -> None:
        """Refuse to start when processes found different states."""
        if self.count == 1:
            return
        wanted = int(broadcast(torch.tensor([epoch], device=self.device)).item())
        if not self.all_agree(epoch == wanted):
            raise TrainingError(
                f"{folder}: process {self.index} found {epoch} epochs done and the main process {wanted}; "
                "all processes must see the same folder (a shared file system)"
            )

    def hand_out(self, network: nn.Module) -> None:
        """The main process's weights and statistics to all."""
        if self.count > 1:
            for tensor in network.state_dict().values():
                tensor.copy_(broadcast(tensor.clone()))

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """To the trackers, if there are any."""
        if self.logging:
            self.accelerator.log(metrics, step=step)

    def wait(self) -> None:
        """Until all processes are here."""
        self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Close the trackers; the processes themselves may have more to do."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
