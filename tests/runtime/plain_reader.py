"""A reader of compiled files in pure Python: bytes → {section: (type, shape, values)}."""

from __future__ import annotations

import array
import math
import struct
import zlib
from typing import Any

# Element type: its letter in Python's array module, and its bytes. Type 7 is text.
ELEMENTS = {1: ("B", 1), 2: ("b", 1), 3: ("i", 4), 4: ("q", 8), 5: ("f", 4), 6: ("d", 8)}
TEXT = 7


def read(image: bytes) -> dict[str, tuple[int, tuple[int, ...], Any]]:
    magic, version, count, size, checksum = struct.unpack_from("<8sIIQI", image, 0)
    assert magic == b"\x89PENSTK\n", "not a compiled network"
    assert version == 1, f"file version {version}"
    assert size == len(image), f"cut off: {len(image)} of {size} bytes"
    assert zlib.crc32(image[32:], zlib.crc32(image[:24])) == checksum, "damaged"
    assert not any(image[28:64]), "reserved bytes of the header"
    sections = {}
    end = 64 + 128 * count
    for number in range(count):
        entry = image[64 + 128 * number : 64 + 128 * (number + 1)]
        name = entry[:64].rstrip(b"\0").decode("ascii")
        element, axes, *rest = struct.unpack_from("<II4QQQ", entry, 64)
        *sides, offset, length = rest
        shape = tuple(sides[:axes])
        assert name not in sections, f"{name} stands twice"
        assert axes <= 4, f"{name}: {axes} axes"
        assert offset % 64 == 0, f"{name}: not aligned"
        assert end <= offset <= offset + length <= size, f"{name}: outside the file"
        end = offset + length
        data = image[offset:end]
        if element == TEXT:
            *texts, last = data.decode("utf-8").split("\0")
            assert last == "", f"{name}: its last string does not end"
            assert shape == (len(texts),), f"{name}: {len(texts)} strings"
            values: Any = texts
        else:
            letter, width = ELEMENTS[element]
            assert length == width * math.prod(shape), f"{name}: {length} bytes for shape {shape}"
            values = array.array(letter, data)
        sections[name] = (element, shape, values)
    return sections
