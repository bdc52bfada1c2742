"""Writing files whole or not at all, and compiled networks: named arrays in, bytes out.

docs/file-format.md has the compiled file byte by byte; C++ reads it (kernels/api/file.cpp).
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock_runtime.errors import WriteError

Content = npt.NDArray[Any] | Sequence[str]
Image = npt.NDArray[np.uint8]  # a file's bytes

_MAGIC = b"\x89PENSTK\n"
_VERSION = 1
_ALIGN = 64
_MOST_AXES = 4
_TEXT = 7
_ELEMENTS = {"|u1": 1, "|i1": 2, "<i4": 3, "<i8": 4, "<f4": 5, "<f8": 6}
_HEADER = struct.Struct("<8sIIQI36x")
_ENTRY = struct.Struct("<64sII4QQQ8x")


def pack(sections: Mapping[str, Content]) -> Image:
    """The bytes of a file with these sections, in this order; text is a sequence of strings."""
    place = _HEADER.size + _ENTRY.size * len(sections)
    entries, parts = [], []
    for name, content in sections.items():
        element, shape, data = _encoded(name, content)
        place += -place % _ALIGN
        sides = [*shape, *[0] * (_MOST_AXES - len(shape))]
        entries.append(_ENTRY.pack(name.encode("ascii"), element, len(shape), *sides, place, data.nbytes))
        parts.append((place, data))
        place += data.nbytes
    # Begins on a cache line, as in a mapped file, so that the engine need not copy it.
    memory = np.zeros(place + _ALIGN, np.uint8)
    image = memory[-memory.ctypes.data % _ALIGN :][:place]
    table = b"".join(entries)
    image[_HEADER.size : _HEADER.size + len(table)] = np.frombuffer(table, np.uint8)
    for offset, data in parts:
        image[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
    image[: _HEADER.size] = np.frombuffer(_HEADER.pack(_MAGIC, _VERSION, len(sections), place, 0), np.uint8)
    checksum = zlib.crc32(image[32:].data, zlib.crc32(image[:24].data))
    image[24:28] = np.frombuffer(struct.pack("<I", checksum), np.uint8)
    return image


def _encoded(name: str, content: Content) -> tuple[int, tuple[int, ...], npt.NDArray[Any]]:
    if isinstance(content, np.ndarray):
        kind = content.dtype.newbyteorder("<")
        return _ELEMENTS[kind.str], content.shape, np.ascontiguousarray(content, kind)
    strange = [text for text in content if "\0" in text]
    if strange:
        raise ValueError(f"{name}: {strange[0]!r} holds a NUL character, which ends a string in the file")
    data = b"".join(text.encode() + b"\0" for text in content)
    return _TEXT, (len(content),), np.frombuffer(data, np.uint8)


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write through a temporary file beside `path`, so that a reader or a crash never sees half of it.

    content: the bytes, or what writes them to the open file. Where that cannot be (a full disk, a read-only
    folder, a file in the place of a folder) the old file stays as it was and a WriteError says why.
    """
    if path.is_dir():
        raise cannot_write(path, IsADirectoryError(errno.EISDIR, "it is a folder, and a file was expected"))
    if path.exists() and not path.is_file():  # /dev/null would become an ordinary file
        raise cannot_write(path, OSError(errno.EINVAL, "it is a device, and an ordinary file was expected"))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as stream:
                if isinstance(content, bytes):
                    stream.write(content)
                else:
                    content(stream)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> WriteError:
    """The error for a file or folder that the system does not let us write."""
    reason = error.strerror or str(error)
    blocked = next((one for one in path.parents if one.is_file()), None)
    if blocked is not None:
        reason = f"{blocked} is a file, and a folder was expected there"
    return WriteError(
        error.errno,
        f"{path}: cannot be written ({reason}); what stood there before is untouched. "
        "Free some space or choose another place",
    )
