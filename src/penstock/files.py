"""Writing a file whole or not at all, and the digest by which its tensors are known again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def write_atomically(path: Path, content: bytes) -> None:
    """Write through a temporary file beside `path`, so that a reader or a crash never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def digest(tensors: Mapping[str, Tensor], said: str = "") -> str:
    """SHA-256 of what is `said` and of every tensor's name, type, shape and bytes."""
    found = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
