"""penstock compile writes a file; engine.classify and penstock-run read pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import penstock_runtime as pr
from penstock import datasets, zoo
from penstock.cli.main import main
from penstock.datasets.folder import centre_cut
from penstock.engine import compile as compile_engine
from penstock_runtime.command import main as run_command
from penstock_runtime.errors import InputError
from penstock_runtime.images import read_image

NAME = "m_cifarnet-cifar10-any"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "net.penstock"
    words = ["compile", NAME, "--out", str(path), "--data", "sample", "--images", "20", "--seconds", "0.05"]
    licence = path.with_name("LICENCE")
    licence.write_text("Do as you like.")
    assert main([*words, "--densities", "0.5,1", "--licence", str(licence), "--json"]) == 0
    return path


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of the embedded sample as a PNG file."""
    path = tmp_path_factory.mktemp("pictures") / "one.png"
    Image.fromarray(datasets.sample().images[0].permute(1, 2, 0).numpy()).save(path)
    return path


def test_compile_writes_everything_it_knows(file: Path) -> None:
    info = pr.load(file).info
    assert info.name == NAME
    assert info.classes == datasets.sample().classes
    assert [one.density for one in info.measured] == [0.5, 1.0]
    assert all(one.top1 is not None and one.top1 >= 50 for one in info.measured)
    assert all(one.milliseconds is not None and one.milliseconds > 0 for one in info.measured)
    assert "20 images" in info.conditions
    assert info.licence == "Do as you like."
    assert info.levels == next(iter(zoo.pretrained(NAME).modules())).get_submodule("conv1").levels
    assert dict(info.versions)["torch"] == torch.__version__


def test_the_compiled_file_equals_the_compiled_network_bit_for_bit(file: Path) -> None:
    network = zoo.pretrained(NAME)
    images = network.preprocess(datasets.sample().images[:3])
    engine = compile_engine(network, images)
    loaded = pr.load(file)
    for density in (None, 0.3, 1.0):
        wanted = engine(images, density=density).numpy()
        np.testing.assert_array_equal(loaded(images.numpy(), density=density), wanted)
    np.testing.assert_array_equal(loaded.preprocess(datasets.sample().images[:3].numpy()), images.numpy())


def test_classify_reads_a_path_or_bytes(file: Path, picture: Path) -> None:
    engine = pr.load(file)
    one, two = engine.classify(picture, top=2), engine.classify(picture.read_bytes(), density=1.0)
    assert len(one.guesses) == 2
    assert len(two.guesses) == 5
    assert one.guesses[0].name == datasets.sample().classes[int(datasets.sample().labels[0])]
    assert one.milliseconds > 0
    logits = engine(engine.preprocess(datasets.sample().images[:1].numpy()))[0].astype(np.float64)
    chance = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert one.guesses[0].probability == pytest.approx(chance.max())


def test_penstock_run_prints_classes_and_milliseconds(
    file: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([str(file), str(picture), "--top", "1", "--density", "0.5"]) == 0
    said = capsys.readouterr().out
    assert datasets.sample().classes[int(datasets.sample().labels[0])] in said
    assert " ms)" in said
    assert run_command([str(file), str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"][str(picture)]["guesses"]
    assert run_command([str(file)]) == 0
    assert "density 0.5  top-1" in capsys.readouterr().out


def test_bad_files_and_pictures_end_the_command_with_a_plain_error(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG not really")
    for words in (
        [str(tmp_path / "absent")],
        [str(broken)],
        [str(file), str(broken)],
        [str(file), "absent.png"],
    ):
        assert run_command(words) == 2
        assert words[-1] in capsys.readouterr().err
    assert run_command([str(file), str(broken), "--density", "2"]) == 2


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (640, 480)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photographs_are_cut_as_in_testing(size: tuple[int, int], kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(noise).resize(size).save(held, kind)
    ours = read_image(held.getvalue(), (3, 64, 64), 64 * 8 / 7)
    with Image.open(io.BytesIO(held.getvalue())) as opened:
        theirs = np.asarray(centre_cut(opened, 64))
    np.testing.assert_allclose(ours[0].transpose(1, 2, 0).astype(int), theirs.astype(int), atol=1)


def test_an_image_of_the_networks_own_size_is_taken_as_it_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    np.testing.assert_array_equal(read_image(held.getvalue(), (3, 20, 30))[0].transpose(1, 2, 0), pixels)
    assert read_image(held.getvalue(), (1, 20, 30)).shape == (1, 1, 20, 30)
    with pytest.raises(InputError, match="4 channels"):
        read_image(held.getvalue(), (4, 20, 30))


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    held = io.BytesIO()
    Image.new("1", (8_000, 8_001)).save(held, "PNG")
    with pytest.raises(InputError, match=r"8000x8001 .* at most 64000000"):
        read_image(held.getvalue(), (3, 64, 64))
