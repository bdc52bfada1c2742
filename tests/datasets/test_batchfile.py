"""The reader of official batches: it reads them, and nothing it reads can make it run anything."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets import official

from penstock.datasets.batchfile import read_batch
from penstock.errors import DataError


def a_batch(count: int = 7) -> tuple[bytes, np.ndarray, list[int]]:
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = [int(one) for one in rng.integers(0, 10, count)]
    return official.batch_file(pixels, labels), pixels, labels


@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_batch_gives_its_pixels_and_labels(count: int) -> None:
    content, pixels, labels = a_batch(count)
    found, said = read_batch(content, "data_batch_1")
    assert np.array_equal(found, pixels)
    assert said.tolist() == labels


def test_the_batches_of_these_tests_are_what_python_reads_too() -> None:
    content, pixels, labels = a_batch()
    known = pickle.loads(content, encoding="bytes")
    assert np.array_equal(known[b"data"], pixels)
    assert known[b"labels"] == labels


class Reducing:
    """The usual attack: unpickling it calls os.mkdir."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def attacks(path: str) -> dict[str, bytes]:
    """Files that make a directory when they are unpickled, by every instruction that can."""
    name = path.encode()
    text = b"X" + struct.pack("<I", len(name)) + name
    found = {f"__reduce__, protocol {p}": pickle.dumps(Reducing(path), p) for p in range(6)}
    found |= {
        f"hidden in a batch, protocol {p}": pickle.dumps({"labels": [1], "data": Reducing(path)}, p)
        for p in range(6)
    }
    found |= {
        "GLOBAL": b"cos\nmkdir\n(" + text + b"tR.",
        "GLOBAL with posix": b"\x80\x02cposix\nmkdir\n" + text + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + text + b"\x85R.",
        "INST": b"(" + text + b"ios\nmkdir\n.",
        "OBJ": b"(cos\nmkdir\n" + text + b"o.",
    }
    content, _, _ = a_batch(1)
    found["appended to a real batch"] = content[:-1] + b"0cos\nmkdir\n" + text + b"\x85R."
    found["before a real batch"] = b"cos\nmkdir\n" + text + b"\x85R0" + content
    return found


@pytest.mark.parametrize("attack", attacks("x"))
def test_a_malicious_file_makes_python_act_and_us_refuse(attack: str, tmp_path: Path) -> None:
    target = tmp_path / "acted"
    content = attacks(str(target))[attack]
    with pytest.raises(DataError, match="data_batch_3"):
        read_batch(content, "data_batch_3")
    assert not target.exists()
    pickle.loads(content, encoding="bytes")  # the attack is a real one
    assert target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x02\x83\x01\x00.",  # EXT2
        b"\x80\x02\x84\x01\x00\x00\x00.",  # EXT4
        b"Psecret\n.",  # PERSID
        b"U\x01aQ.",  # BINPERSID
        b"cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"cnumpy\nndarray\n)}\x92.",  # NEWOBJ_EX
        b"cbuiltins\neval\n.",
        b"c__builtin__\neval\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy.f2py.diagnose\nrun\n)R.",
        b"}cnumpy\ndtype\nU\x01b\x85Rb.",  # a state for a dict
        b"\x97.",  # NEXT_BUFFER
    ],
)
def test_instructions_that_reach_outside_are_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="nothing in it was run"):
        read_batch(content, "test_batch")


def test_a_cut_off_batch_is_an_error_at_every_length() -> None:
    content, _, _ = a_batch(1)
    for length in [*range(0, 200), *range(200, len(content), 97)]:
        with pytest.raises(DataError):
            read_batch(content[:length], "data_batch_1")


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
@settings(max_examples=200)
def test_any_wrong_byte_gives_a_batch_or_a_data_error_and_nothing_else(place: int, value: int) -> None:
    content = bytearray(a_batch(2)[0])
    content[place % len(content)] = value
    try:
        pixels, labels = read_batch(bytes(content), "data_batch_1")
    except DataError:
        return
    assert pixels.shape == (len(labels), 3072)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_random_bytes_give_a_data_error_and_nothing_else(content: bytes) -> None:
    with pytest.raises(DataError):
        read_batch(content, "data_batch_1")


INSTRUCTIONS = [bytes([one]) for one in b"(NKUTX}])t\x85\x86\x87aesuqrhjcRb.0\x80\x88\x89MJ"]


@given(st.lists(st.sampled_from(INSTRUCTIONS), max_size=40))
@settings(max_examples=300)
def test_random_instructions_give_a_data_error_and_nothing_else(steps: list[bytes]) -> None:
    with pytest.raises(DataError):
        read_batch(b"".join(steps) + b".", "data_batch_1")


def test_a_batch_of_endless_instructions_or_of_endless_hashing_is_refused() -> None:
    with pytest.raises(DataError, match="more than 250,000 instructions"):
        read_batch(b"N" * (64 << 20), "endless")
    nested = b")" + b"q\x00h\x00\x86" * 60  # a tuple of two of the ones before: its hash takes 2**60 steps
    with pytest.raises(DataError, match="a key that is not text"):
        read_batch(b"}" + nested + b"Ns.", "hashing")
