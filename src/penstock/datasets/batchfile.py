"""CIFAR-10's official batch files, read without unpickling: bytes in, pixels and labels out, nothing run.

The files are Python 2 pickles of a dict with a NumPy array. A pickle is a program for a stack machine, and
Python's own reader runs whatever that program names. This reader knows the thirty instructions that build
plain values, takes the names a NumPy array needs as inert marks, and refuses everything else: no name is ever
looked up, no object called. A crafted file is a DataError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import DataError

PIXELS = 3072
_LARGEST = 64 << 20  # an official batch has 31 MB
_DEEPEST = 8
_MOST_INSTRUCTIONS = 250_000  # an official batch has about 40,000: a label takes one, a file's name two


@dataclass(frozen=True)
class _Name:
    """A name from the file, as text: never imported."""

    path: str


class _Made:
    """What the file wants made by calling `maker`: kept as a record, never called."""

    def __init__(self, maker: _Name, arguments: tuple[Any, ...]) -> None:
        self.maker = maker
        self.arguments = arguments
        self.state: Any = None


_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_DTYPE = "numpy dtype"
_NAMES = (*_RECONSTRUCT, "numpy ndarray", _DTYPE)
_MARK = object()


def read_batch(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """One batch file → pixels uint8 (count, 3072), labels uint8 (count,). `name` is for errors."""
    try:
        batch = _Reader(content).read()
        pixels = _array(batch["data"])
        labels = batch["labels"]
        if not isinstance(labels, list) or not all(type(one) is int and 0 <= one < 10 for one in labels):
            raise _Refused("its labels are not a list of numbers from 0 to 9")
        if pixels.shape[1:] != (PIXELS,) or len(pixels) != len(labels):
            raise _Refused(f"it has {len(labels)} labels and data of shape {pixels.shape}")
    except (_Refused, LookupError, TypeError, ValueError, struct.error) as error:
        raise DataError(
            f"{name}: not an official CIFAR-10 batch ({error or type(error).__name__}); "
            "nothing in it was run. Get the archive again: penstock data cifar10"
        ) from error
    return pixels, np.asarray(labels, dtype=np.uint8)


class _Refused(ValueError):
    """An instruction or a value that an official batch does not have."""


def read_weights(content: bytes, name: str) -> dict[str, np.ndarray]:
    """A pickled dict of dicts of float32 arrays → {"outer/inner/…": array}. `name` is for errors."""
    try:
        return dict(_flat(_Reader(content).read(), ""))
    except (_Refused, LookupError, TypeError, ValueError, struct.error) as error:
        raise DataError(
            f"{name}: not a dict of float32 arrays ({error or type(error).__name__}); nothing in it was run"
        ) from error


def _flat(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if not isinstance(value, dict):
        yield path, _array(value, "f4")
        return
    if path.count("/") > _DEEPEST:
        raise _Refused(f"more than {_DEEPEST} dicts inside each other")
    for key, inner in value.items():
        yield from _flat(inner, f"{path}/{key}" if path else str(key))


def _array(made: Any, code: str = "u1") -> np.ndarray:
    """The array that a record stands for, if it is a plain one of that kind in C order."""
    if not isinstance(made, _Made) or made.maker.path not in _RECONSTRUCT:
        raise _Refused("its data are not a NumPy array")
    _, shape, kind, fortran, content = made.state
    known = isinstance(kind, _Made) and kind.maker.path == _DTYPE
    if not known or kind.arguments[0] not in (code.encode(), code):
        raise _Refused(f"its data are not of the kind {code}")
    if isinstance(kind.state, tuple) and kind.state[1:2] in ((">",), (b">",)):
        raise _Refused("its data have their bytes in the wrong order")
    if fortran is not False or not isinstance(content, bytes) or not isinstance(shape, tuple):
        raise _Refused("its data are not in C order")
    return np.frombuffer(content, dtype=f"<{code}").reshape(shape)


class _Reader:
    """The stack machine, with only the instructions that make plain values."""

    def __init__(self, content: bytes) -> None:
        if len(content) > _LARGEST:
            raise _Refused(f"it has {len(content):,} bytes")
        self.content = content
        self.place = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> dict[str, Any]:
        """Run to the end; the dict that is left, its keys as text."""
        for _ in range(_MOST_INSTRUCTIONS):
            code = self._take(1)
            if code == b".":
                break
            step = _STEPS.get(code)
            if step is None:
                raise _Refused(f"instruction {code!r} at byte {self.place - 1}")
            step(self)
        else:
            raise _Refused(f"more than {_MOST_INSTRUCTIONS:,} instructions")
        result = self.stack.pop()
        if self.stack or not isinstance(result, dict):
            raise _Refused("it does not hold one dict")
        return {
            key.decode("ascii") if isinstance(key, bytes) else key: value for key, value in result.items()
        }

    def _take(self, count: int) -> bytes:
        piece = self.content[self.place : self.place + count]
        if count < 0 or len(piece) < count:
            raise _Refused("it ends too early")
        self.place += count
        return piece

    def _number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def _line(self) -> str:
        end = self.content.find(b"\n", self.place, self.place + 200)
        if end < 0:
            raise _Refused("a name without an end")
        line = self.content[self.place : end].decode("ascii")
        self.place = end + 1
        return line

    def _pop_to_mark(self) -> list[Any]:
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth] is _MARK:
                found = self.stack[depth + 1 :]
                del self.stack[depth:]
                return found
        raise _Refused("a mark is missing")

    def _tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise _Refused("a tuple with too few values")
        values = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.stack.append(values)

    def _name(self) -> None:
        path = f"{self._line()} {self._line()}"
        if path not in _NAMES:
            raise _Refused(f"it names {path!r}")
        self.stack.append(_Name(path))

    def _record(self) -> None:
        arguments, maker = self.stack.pop(), self.stack.pop()
        if not isinstance(maker, _Name) or not isinstance(arguments, tuple):
            raise _Refused("a call of something that is not NumPy's")
        self.stack.append(_Made(maker, arguments))

    def _state(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _Made):
            raise _Refused("a state for something that is not NumPy's")
        made.state = state

    def _put_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise _Refused("items for something that is not a dict")
        if not all(isinstance(key, bytes | str) for key in items[::2]):
            raise _Refused("a key that is not text")  # hashing nested tuples can take forever
        target.update(zip(items[::2], items[1::2], strict=True))

    def _put_values(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _Refused("values for something that is not a list")
        target.extend(values)


def _push(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(make(reader))


_STEPS: dict[bytes, Callable[[_Reader], Any]] = {
    b"\x80": lambda r: r._take(1),  # the protocol's number
    b"(": _push(lambda r: _MARK),
    b"N": _push(lambda r: None),
    b"\x88": _push(lambda r: True),
    b"\x89": _push(lambda r: False),
    b"K": _push(lambda r: r._number("<B")),
    b"M": _push(lambda r: r._number("<H")),
    b"J": _push(lambda r: r._number("<i")),
    b"U": _push(lambda r: r._take(r._number("<B"))),
    b"T": _push(lambda r: r._take(r._number("<i"))),
    b"C": _push(lambda r: r._take(r._number("<B"))),
    b"B": _push(lambda r: r._take(r._number("<I"))),
    b"X": _push(lambda r: r._take(r._number("<I")).decode()),
    b"}": _push(lambda r: {}),
    b"]": _push(lambda r: []),
    b")": _push(lambda r: ()),
    b"t": _push(lambda r: tuple(r._pop_to_mark())),
    b"\x85": lambda r: r._tuple(1),
    b"\x86": lambda r: r._tuple(2),
    b"\x87": lambda r: r._tuple(3),
    b"a": lambda r: r._put_values([r.stack.pop()]),
    b"e": lambda r: r._put_values(r._pop_to_mark()),
    b"s": lambda r: r._put_items([r.stack.pop(-2), r.stack.pop()]),
    b"u": lambda r: r._put_items(r._pop_to_mark()),
    b"q": lambda r: r.memo.__setitem__(r._number("<B"), r.stack[-1]),
    b"r": lambda r: r.memo.__setitem__(r._number("<I"), r.stack[-1]),
    b"h": _push(lambda r: r.memo[r._number("<B")]),
    b"j": _push(lambda r: r.memo[r._number("<I")]),
    b"c": _Reader._name,
    b"R": _Reader._record,
    b"b": _Reader._state,
}
