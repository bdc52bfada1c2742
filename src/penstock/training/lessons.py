"""A teacher's answers, kept for the next network that learns from it: batches of images in, logits out.

Distilling several networks (one a density, say) with the same seed shows each of them the same augmented
batches, and the teacher, a quarter of a step's time, answers the same. Answers are found by what was asked:
`folder/TEACHER/FILE.safetensors` holds logits under the digest of the images they belong to, and TEACHER is
the digest of the teacher's own values. So an answer is never one to another question, whatever recipe a run
has. An epoch takes 4 bytes for each image and class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from penstock.errors import TrainingError
from penstock.files import digest, write_atomically


class Lessons:
    """What is known of a teacher's answers, in memory; `keep` writes down what was new."""

    def __init__(self, folder: Path, teacher: nn.Module) -> None:
        # Its values, and how it takes images.
        self.folder = folder / digest(teacher.state_dict(), repr(getattr(teacher, "preprocess", None)))
        self.known: dict[str, Tensor] = {}
        self.fresh: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                self.known |= safetensors.torch.load_file(path)
            except (OSError, safetensors.SafetensorError) as error:
                raise TrainingError(
                    f"{path}: cannot be read as a teacher's answers ({error}); "
                    "delete it, and the teacher will be asked again"
                ) from error

    def answer(self, images: Tensor, ask: Callable[[], Tensor]) -> Tensor:
        """The logits for `images`, or what `ask` says if nobody has asked yet."""
        question = digest({"images": images})
        if question in self.known:
            return self.known[question].to(images.device)
        logits = ask()
        self.known[question] = self.fresh[question] = logits.detach().cpu().contiguous()
        return logits

    def keep(self) -> None:
        """Write the new answers to a file of their own: runs beside this one disturb nothing."""
        if self.fresh:
            name = digest({}, "".join(sorted(self.fresh)))
            write_atomically(self.folder / f"{name}.safetensors", safetensors.torch.save(self.fresh))
            self.fresh = {}


def teach(
    teacher: nn.Module,
    images: Tensor,
    x: Tensor,
    prepare: Callable[[Tensor], Tensor],
    lessons: Lessons | None = None,
) -> Tensor:
    """The teacher's logits for a batch; it sees the images through its own preprocessing if it has one."""
    own = getattr(teacher, "preprocess", None) or prepare

    def ask() -> Tensor:
        with torch.no_grad():
            logits: Tensor = teacher(x if own == prepare else own(images))
            return logits

    return ask() if lessons is None else lessons.answer(images, ask)
