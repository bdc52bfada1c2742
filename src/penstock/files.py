"""Files written whole or not at all, where data are kept, digests of tensors, JSON read with suspicion."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock_runtime.file import cannot_write, write_atomically

__all__ = ["cannot_write", "canonical", "data_folder", "digest", "read_plain", "write_atomically"]


def data_folder() -> Path:
    """Where data sets and large checkpoints are kept: PENSTOCK_DATA, else the user's cache folder."""
    override = os.environ.get("PENSTOCK_DATA")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def digest(tensors: Mapping[str, Tensor], said: str = "") -> str:
    """SHA-256 of what is `said` and of every tensor's name, type, shape and bytes."""
    found = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def canonical(value: Any) -> str:
    """Plain data as JSON, always the same text for the same data."""
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)


def read_plain(text: str) -> Any:
    """The data that `canonical` wrote. Whatever else a file may say is a ValueError.

    >>> read_plain('{"epoch": 3}')
    {'epoch': 3}
    """
    try:
        value = json.loads(text, object_pairs_hook=_named_once)
        canonical(value).encode()  # refuses NaN, numbers beyond a double's range and halves of characters
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """No writer names a value twice; readers would disagree on which of the two counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found
