"""The compiled file says what the engine knows, is read by others, and is refused when anything is wrong."""

from __future__ import annotations

import copy
import pickle
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import plain_reader
from tests.runtime.conftest import changed

import penstock_runtime as pr
from penstock_runtime.errors import CompileError, FileError, InputError

Images = npt.NDArray[np.float32]


def resealed(image: bytes | bytearray) -> bytes:
    """The bytes with the size and the checksum that a careful forger would write."""
    image = bytearray(image)
    struct.pack_into("<Q", image, 16, len(image))
    struct.pack_into("<I", image, 24, zlib.crc32(image[32:], zlib.crc32(image[:24])))
    return bytes(image)


def test_a_loaded_file_gives_the_same_bits_and_the_same_words(
    engine: pr.Engine, images: Images, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "net.penstock"
    engine.save(path)
    for threads in (1, 2):
        loaded = pr.load(path, threads=threads)
        for density in (None, 0.3, 1.0, {"0": 0.9}):
            np.testing.assert_array_equal(loaded(images, density=density), engine(images, density=density))
        assert loaded.info == engine.info
        assert loaded.densities == engine.densities == {"0": 0.5, "3": 0.5}
        assert (loaded.layers, loaded.gated) == (engine.layers, engine.gated)
        assert (loaded.input_shape, loaded.output_shape) == ((3, 16, 12), (3,))
        np.testing.assert_array_equal(loaded.macs(images), engine.macs(images))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["net.penstock"]


def test_what_a_file_says_can_be_changed_when_it_is_saved(engine: pr.Engine, tmp_path: Path) -> None:
    info = replace(engine.info, name="other", classes=(), measured=(), licence="", preprocess=None)
    engine.save(tmp_path / "a", info)
    found = pr.load(tmp_path / "a").info
    assert found == replace(info, preprocess=engine.preprocess)
    with pytest.raises(FileError, match="2 names for 3 results"):
        engine.save(tmp_path / "b", replace(engine.info, classes=("a", "b")))
    assert not (tmp_path / "b").exists()


def test_preprocessing_that_is_code_is_not_saved(engine: pr.Engine, images: Images, tmp_path: Path) -> None:
    own = pr.Engine(engine.to_bytes())
    own.preprocess = np.abs
    with pytest.raises(FileError, match="holds no code"):
        own.save(tmp_path / "a")
    assert copy.copy(own).preprocess is np.abs


def test_pickles_and_copies_carry_the_files_bytes(engine: pr.Engine, images: Images) -> None:
    two = pr.Engine(engine.to_bytes(), threads=2)
    for other in (pickle.loads(pickle.dumps(two)), copy.copy(two), copy.deepcopy(two)):
        assert other.threads == 2
        assert other.to_bytes() == two.to_bytes() == engine.to_bytes()
        np.testing.assert_array_equal(other(images), engine(images))


def test_a_reader_in_pure_python_finds_the_same_sections(engine: pr.Engine) -> None:
    found = plain_reader.read(engine.to_bytes())
    find = engine._native.array
    assert list(found) == engine._native.section_names
    for name, (element, shape, values) in found.items():
        if element == plain_reader.TEXT:
            assert values == find(name)
        else:
            np.testing.assert_array_equal(np.frombuffer(values, find(name).dtype).reshape(shape), find(name))
    assert found["classes"][2] == ["cat", "dog", "große Möwe"]
    assert list(found["measured/top1"][2]) == [71.25, 75.0]


def test_sections_are_read_only_views_that_outlive_the_engine(engine: pr.Engine) -> None:
    own = pr.Engine(engine.to_bytes())
    weights = own._native.array("program/weights")
    kept = weights.copy()
    assert not weights.flags.writeable
    assert weights.ctypes.data % 64 == 0
    del own
    np.testing.assert_array_equal(weights, kept)
    assert engine._native.array("no/such") is None


@given(st.binary(max_size=300), st.binary(max_size=100))
@settings(max_examples=100)
def test_the_checksum_is_the_one_of_zlib(first: bytes, second: bytes) -> None:
    crc32 = pr.engine.native().crc32
    assert crc32(first, 0) == zlib.crc32(first)
    assert crc32(second, crc32(first, 0)) == zlib.crc32(first + second)


def test_a_large_files_checksum_sees_every_piece(engine: pr.Engine, images: Images) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 9_000_000, np.uint8)
    image = changed(engine, later__noise=noise)
    np.testing.assert_array_equal(pr.Engine(image)(images), engine(images))
    for place in (len(image) // 8, len(image) // 2, len(image) * 7 // 8):
        bad = image.copy()
        bad[place] ^= 1
        with pytest.raises(FileError, match="checksum"):
            pr.Engine(bad.tobytes())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda image: b"", "too few"),
        (lambda image: image[:63], "too few"),
        (lambda image: image[:-1], "cut off"),
        (lambda image: image + b"\0", "too many"),
        (lambda image: b"PK\3\4" + image[4:], "not a compiled network"),
        (lambda image: image.replace(b"\n", b"\r\n", 1), "not a compiled network"),
        (lambda image: resealed(image[:8] + b"\2" + image[9:]), "newer penstock-runtime"),
        (lambda image: image[:-9] + bytes([image[-9] ^ 1]) + image[-8:], "checksum"),
        (lambda image: image[:70] + b"x" + image[71:], "checksum"),
        (lambda image: resealed(image[:30] + b"x" + image[31:]), "reserved"),
        (lambda image: resealed(image[:12] + b"\xff\xff\xff\x7f" + image[16:]), "sections"),
        (lambda image: resealed(image[:64] + b" " + image[65:]), "strange letters"),
        (lambda image: resealed(image[:64] + image[192:320] + image[192:]), "twice|place"),
        (lambda image: resealed(image[:128] + b"\x63" + image[129:]), "element type"),
        (lambda image: resealed(image[:132] + b"\x09" + image[133:]), "axes"),
        (lambda image: resealed(image[:143] + b"\x7f" + image[144:]), "shape"),
        (lambda image: resealed(image[:168] + b"\x01" + image[169:]), "place"),
        (lambda image: resealed(image[:175] + b"\x7f" + image[176:]), "place"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(
    engine: pr.Engine, damage: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    bad = damage(engine.to_bytes())
    with pytest.raises(FileError, match=words):
        pr.Engine(bad)
    path = tmp_path / "bad.penstock"
    path.write_bytes(bad)
    with pytest.raises(FileError, match=f"bad.penstock.*({words})"):
        pr.load(path)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"program__weights": None}, "no section program/weights"),
        ({"program__format": np.array(99)}, "format 99.*newer"),
        ({"program__format": np.array(1)}, "format 1.*compile the network again"),
        ({"gates__densities": np.array([0.5, 1.5])}, "gates/densities"),
        ({"gates__densities": np.array([0.5])}, "expected 2 numbers"),
        ({"gates__levels": np.array([np.nan, 1.0])}, "gates/levels"),
        ({"classes": ["one"]}, "1 names for 3"),
        ({"preprocess__mean": np.array([0.5])}, "preprocess/mean"),
        ({"preprocess__std": np.array([0.5, 0.0, 0.5])}, "preprocess/std"),
        ({"preprocess__resize": np.array([0.0])}, "preprocess/resize"),
        ({"measured__top1": np.array([1.0])}, "measured/top1"),
        ({"measured__milliseconds": np.array([1.0, -1.0])}, "measured/milliseconds"),
        ({"result__shape": np.array([2])}, "result/shape"),
        ({"result__shape": np.array([-3, -1])}, "result/shape"),
        ({"names__kinds": ["a"]}, "names/kinds"),
    ],
)
def test_a_file_whose_sections_do_not_fit_is_refused(
    engine: pr.Engine, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(FileError, match=words):
        pr.Engine(changed(engine, **sections))


def test_a_network_larger_than_the_machines_memory_is_refused(huge: Path) -> None:
    # In a process that is given no more than 3 GiB, so that machines with more memory refuse it too.
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import penstock_runtime as pr
try:
    pr.load({str(huge)!r})
except pr.errors.FileError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "huge.penstock" in done.stdout
    assert "memory" in done.stdout


def test_unknown_sections_are_passed_over(engine: pr.Engine, images: Images) -> None:
    more = changed(engine, later__thing=np.zeros((2, 3), np.int8), later__words=["äöü"])
    np.testing.assert_array_equal(pr.Engine(more)(images), engine(images))


@pytest.mark.parametrize("threads", [0, True, 1.5, "2", 1025])
def test_a_thread_count_that_is_none_is_refused(engine: pr.Engine, threads: Any) -> None:
    with pytest.raises(CompileError, match="threads"):
        pr.Engine(engine.to_bytes(), threads=threads)


def test_paths_that_hold_no_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent\.penstock.*No such file"):
        pr.load(tmp_path / "absent.penstock")
    with pytest.raises(FileError, match="not a regular file"):
        pr.load(tmp_path)


def test_another_machines_instruction_set_is_refused(
    engine: pr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISA", "neon" if "neon" not in pr.available_isas() else "avx512")
    with pytest.raises(CompileError, match="this machine has"):
        pr.Engine(engine.to_bytes())


def test_a_wrong_image_shape_names_what_was_expected(engine: pr.Engine, images: Images) -> None:
    with pytest.raises(InputError, match=r"\(batch, 3, 16, 12\)"):
        engine(images[:, :, :8])


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "files").glob("*.penstock")), ids=lambda p: p.stem
)
def test_files_of_every_version_are_still_read(path: Path) -> None:
    engine = pr.load(path)
    with np.load(path.with_suffix(".npz")) as kept:
        images = kept["images"]
        for name in set(kept.files) - {"images"}:
            found = engine(images, density=float(name))
            # Written on one instruction set and read on any: the last bits may differ.
            np.testing.assert_allclose(found, kept[name], rtol=1e-4, atol=1e-5 * np.abs(kept[name]).max())
    assert engine.info.classes == ("north", "east", "south", "west")
    assert engine.info.levels == (0.25, 0.5, 1.0)
    assert engine.info.preprocess == pr.Preprocess((0.5,) * 3, (0.25,) * 3, 14.0)
    assert engine.info.measured == (pr.Measurement(0.5, 70.0, 0.01), pr.Measurement(1.0, 71.5, 0.02))


def test_there_is_a_kept_file_of_this_format(engine: pr.Engine) -> None:
    made = int(engine._native.array("program/format"))
    assert (Path(__file__).parent / "files" / f"block-float32-v1-format{made}.penstock").exists()


def test_every_section_is_documented_with_its_type_and_its_axes() -> None:
    rows = {}
    page = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text(encoding="utf-8")
    for line in page.split("## Sections")[1].split("## ")[0].splitlines():
        cells = line.split(" | ")
        if len(cells) == 3:
            rows.update(dict.fromkeys(re.findall(r"`([a-z0-9/]+)`", cells[0]), cells[1]))
    types = {1: "uint8", 2: "int8", 3: "int32", 4: "int64", 5: "float32", 6: "float64", 7: "text"}
    for path in (Path(__file__).parent / "files").glob("*.penstock"):
        for name, (element, shape, _) in plain_reader.read(path.read_bytes()).items():
            assert name in rows, f"{name} of {path.name} is not in docs/file-format.md"
            kind, axes = re.match(r"(\w+) \((.*?)\)", rows[name]).groups()  # type: ignore[union-attr]
            assert kind == types[element], name
            assert len([axis for axis in axes.split(",") if axis.strip()]) == len(shape), name


def test_every_list_of_the_program_is_documented_as_the_native_module_has_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text(encoding="utf-8")
    part = page.split("## The program, format ")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+` ?)+) \|$", part, re.MULTILINE))
    found = {name: tuple(re.findall(r"`(\w+)`", names)) for name, names in rows.items()}
    module = pr.engine.native()
    assert found == module.SCHEMA
    assert int(part.split("\n")[0]) == module.FORMAT
    assert f"a row of {module.OP_FIELDS} numbers" in part
    assert f"{len(found['TensorField'])} numbers" in part
