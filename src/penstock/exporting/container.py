"""The checkpoint file: tensors and a plain description in, one safetensors file out, and back, checked.

The file's metadata (safetensors keeps text only) has one entry, "penstock", JSON:

    format    the format's version: 1, or 2 where tensors of float32 are held in float16
    network   the description
    sha256    of the description and of every tensor's name, type, shape and bytes

One entry, keys in order: the same network gives the same bytes. Nothing in the file is ever executed or
unpickled; reading gives tensors and plain data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from penstock.errors import CheckpointError, PenstockError
from penstock.files import canonical, digest, read_plain, write_atomically

VERSION = 2
_KEY = "penstock"


def write_container(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write one file, whole or not at all."""
    plain = _apart(tensors)
    version = VERSION if description.get("half") else 1
    content = {"format": version, "network": description, "sha256": digest(plain, canonical(description))}
    write_atomically(path, safetensors.torch.save(plain, {_KEY: canonical(content)}))


@contextmanager
def no_foreign_errors(path: Path) -> Iterator[None]:
    """What a crafted file provokes in torch or Python leaves as a CheckpointError that names the file."""
    try:
        yield
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200].encode(errors="replace").decode()
        raise CheckpointError(
            f"{path}: it describes a network that cannot be made ({type(error).__name__}: {reason}); "
            "save the network again"
        ) from error


def read_description(path: Path) -> dict[str, Any]:
    """The description alone; the tensors are not read, so the checksum is not checked."""
    return _read(path, with_tensors=False)[0]


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a file that `write_container` wrote."""
    return _read(path, with_tensors=True)


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; check the path")
    tensors: dict[str, Tensor] = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            content = _content(path, file.metadata() or {})
            if with_tensors:
                tensors = {name: _aligned(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({error}); it is cut off, damaged, or of another format. "
            "Copy or download it again"
        ) from error
    description = content.get("network")
    if not isinstance(description, dict):
        raise CheckpointError(f"{path}: it does not describe its network; save the network again")
    if with_tensors and content.get("sha256") != digest(tensors, canonical(description)):
        raise CheckpointError(
            f"{path}: its content does not match its checksum, so it was altered or damaged after it was "
            "saved. Copy or download it again, or save the network again"
        )
    return description, tensors


def _content(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if "penstock-run" in metadata:
        raise CheckpointError(
            f"{path}: this is the state of a training run, not a network; "
            "load the network's own file, or go on training with the same --out"
        )
    if _KEY not in metadata:
        raise CheckpointError(
            f"{path}: a safetensors file, but not one that penstock.save wrote. For plain weights use "
            "safetensors.torch.load_file(path) and model.load_state_dict(...)"
        )
    try:
        content = read_plain(metadata[_KEY])
        version = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: its description is not readable ({error!r}); save the network again"
        ) from error
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise CheckpointError(
            f"{path}: its format version is {version!r}, expected a number; save the network again"
        )
    if version > VERSION:
        raise CheckpointError(
            f"{path}: written by a newer Penstock (format {version}; this one reads up to {VERSION}); "
            "run: pip install --upgrade penstock"
        )
    return content


def _aligned(tensor: Tensor) -> Tensor:
    """Copied if need be: the file packs tensors closely, and some kernels then round otherwise."""
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, each in memory of its own: safetensors refuses tensors that share theirs."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        if flat.untyped_storage().data_ptr() in seen:
            flat = flat.clone()
        seen.add(flat.untyped_storage().data_ptr())
        plain[name] = flat
    return plain
