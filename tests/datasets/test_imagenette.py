"""Imagenette: archives and folders taken in, and what is wrong with one said."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.datasets.test_photographs import smooth

from penstock import datasets
from penstock.cli.images import find_test_data, in_memory
from penstock.cli.main import main
from penstock.datasets import image_folder
from penstock.datasets.imagenette_parts import CLASSES, COUNTS
from penstock.datasets.imagenette_sources import fetch_imagenette, take_imagenette
from penstock.errors import DataError

_TURNED = 6  # EXIF: the camera was held so that the picture must be turned clockwise


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two photographs a class for training, one for validation, in a data folder of the test's own."""
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(COUNTS, "train", (2,) * 10)
    monkeypatch.setitem(COUNTS, "val", (1,) * 10)


def jpeg(picture: Image.Image, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=95, exif=exif)
    return stream.getvalue()


def files() -> dict[str, bytes]:
    """A small Imagenette; among the photographs a grey one, one in CMYK and one that lies on its side."""
    made = {}
    for number, name in enumerate(CLASSES):
        for part, each in (("train", 2), ("val", 1)):
            for index in range(each):
                made[f"imagenette2/{part}/{name}/{index}.JPEG"] = jpeg(smooth(40, 48, turn=number + index))
    first, second, third = list(CLASSES)[:3]
    made[f"imagenette2/train/{first}/0.JPEG"] = jpeg(smooth(40, 48).convert("L"))
    made[f"imagenette2/train/{second}/0.JPEG"] = jpeg(smooth(40, 48).convert("CMYK"))
    upright = smooth(60, 40)
    made[f"imagenette2/train/{third}/0.JPEG"] = jpeg(upright.transpose(Image.Transpose.ROTATE_90), _TURNED)
    return made


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tgz(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_folder(path: Path, members: dict[str, bytes]) -> Path:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("write", [write_zip, write_tgz, write_folder])
def test_archives_and_folders_give_the_same_photographs(tmp_path: Path, write: object) -> None:
    take_imagenette(write(tmp_path / "source", files()))  # type: ignore[operator]
    train, val = datasets.imagenette("train", size=16), datasets.imagenette("val", size=16)
    assert (len(train), len(val)) == (20, 10)
    assert train.classes[:2] == ("tench", "English springer")
    assert val.labels.tolist() == list(range(10))
    assert next(iter(train.test_batches(20))).images.shape == (20, 3, 16, 16)


def test_grey_cmyk_and_turned_photographs_look_as_they_should(tmp_path: Path) -> None:
    take_imagenette(write_zip(tmp_path / "a.zip", files()))
    train = datasets.imagenette("train", size=28)
    grey, cmyk, turned = (np.asarray(train.picture(place), dtype=float) for place in (0, 2, 4))
    assert np.ptp(grey, axis=2).max() == 0
    plain = np.asarray(smooth(40, 48).resize((38, 32), Image.Resampling.BILINEAR), dtype=float)
    assert np.abs(cmyk - plain).mean() < 6
    upright = np.asarray(smooth(60, 40).resize((32, 48), Image.Resampling.BILINEAR), dtype=float)
    assert turned.shape == upright.shape
    assert np.abs(turned - upright).mean() < 6


def test_an_image_folder_turns_photographs_upright_too(tmp_path: Path) -> None:
    lying, standing = tmp_path / "lying" / "a", tmp_path / "standing" / "a"
    for folder in (lying, standing):
        folder.mkdir(parents=True)
    (lying / "0.jpg").write_bytes(jpeg(smooth(60, 40).transpose(Image.Transpose.ROTATE_90), _TURNED))
    (standing / "0.jpg").write_bytes(jpeg(smooth(60, 40)))
    one, other = (
        next(iter(image_folder(folder.parent, 28, 0).test_batches(1))).images.float()
        for folder in (lying, standing)
    )
    assert (one - other).abs().mean() < 3


def test_a_half_copied_archive_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    for whole in (write_zip(tmp_path / "a.zip", files()), write_tgz(tmp_path / "a.tgz", files())):
        half = tmp_path / f"half-{whole.name}"
        half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        with pytest.raises(DataError, match=r"half-a\..*not a whole archive"):
            take_imagenette(half)
    with pytest.raises(DataError, match="a zip file whose end is missing"):
        take_imagenette(tmp_path / "half-a.zip")
    with pytest.raises(DataError, match="run: penstock data imagenette"):
        datasets.imagenette("train")
    assert not list((tmp_path / "data").glob(".imagenette-*"))


def test_missing_photographs_are_counted_class_by_class(tmp_path: Path) -> None:
    members = files()
    del members["imagenette2/val/n03028079/0.JPEG"]
    with pytest.raises(DataError, match=r"val/n03028079 \(church\) has 0 photographs, expected 1"):
        take_imagenette(write_folder(tmp_path / "half", members))


def test_another_class_is_named(tmp_path: Path) -> None:
    members = files() | {"imagenette2/train/n99999999/0.JPEG": jpeg(smooth(40, 40))}
    with pytest.raises(DataError, match="n99999999 is no class of Imagenette"):
        take_imagenette(write_tgz(tmp_path / "a.tgz", members))


def test_a_photograph_lost_later_is_noticed(tmp_path: Path) -> None:
    folder = take_imagenette(write_zip(tmp_path / "a.zip", files()))
    (folder / "train" / "n03888257" / "1.JPEG").unlink()
    with pytest.raises(DataError, match=r"n03888257 \(parachute\) has 1 photographs, expected 2"):
        datasets.imagenette("train")


def test_names_in_an_archive_lead_nowhere_else(tmp_path: Path) -> None:
    members = files() | {"../../train/../evil.JPEG": b"x", "/train/../0.JPEG": b"x"}
    with pytest.raises(DataError, match="is no file's place"):
        take_imagenette(write_zip(tmp_path / "a.zip", members))
    assert not list(tmp_path.rglob("evil.JPEG"))


def test_parts_and_sizes_are_checked() -> None:
    with pytest.raises(DataError, match="'train' and 'val', not 'test'"):
        datasets.imagenette("test")
    with pytest.raises(DataError, match="at least 1 pixel, got 0"):
        datasets.imagenette("val", size=0)


def test_an_unreachable_home_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"penstock data imagenette --from FILE"):
        fetch_imagenette(url="http://127.0.0.1:9/imagenette2-320.tgz", timeout=2)


def test_the_command_takes_an_archive_and_finds_it_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tgz(tmp_path / "a.tgz", files())
    assert main(["data", "imagenette", "--from", str(source), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["already"] is False
    assert main(["data", "imagenette"]) == 0
    assert "is there already" in capsys.readouterr().out


def test_commands_find_validation_and_held_out_photographs(tmp_path: Path) -> None:
    take_imagenette(write_zip(tmp_path / "a.zip", files()))
    assert len(find_test_data("imagenette", size=16)) == 10
    held = in_memory(find_test_data("imagenette", holdout=4, size=16))
    assert held.images.shape == (4, 3, 16, 16)
    limited = find_test_data("imagenette", limit=5, size=16)
    assert len(limited.labels.unique()) == len(limited) == 5


def test_a_folder_like_imagenets_is_scored_on_its_validation_part(tmp_path: Path) -> None:
    write_folder(tmp_path, files())
    data = find_test_data(str(tmp_path / "imagenette2"), size=16)
    assert len(data) == 10
    assert data.classes == tuple(CLASSES)
    batch = next(iter(data.test_batches(10)))
    assert torch.equal(batch.labels, torch.arange(10))
