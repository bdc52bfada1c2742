"""The C interface, built with gcc as C11: its own checks, and the example against the Python engine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock_runtime as pr

ROOT = Path(__file__).parent.parent.parent
FILES = ROOT / "tests" / "runtime" / "files"
KEPT = sorted(FILES.glob("block-float32-*.penstock"))[-1]
# Of this machine: `make arm` and `make sanitize` leave others, without the Python module.
BUILT = [path for path in ROOT.glob("build/*/libpenstock.a") if any(path.parent.glob("_native*"))]
LIBRARIES = sorted(BUILT, key=lambda path: path.stat().st_mtime)

pytestmark = pytest.mark.skipif(
    not LIBRARIES or shutil.which("gcc") is None,
    reason="needs gcc and build/*/libpenstock.a, which `make` or tools/build_native.py leaves",
)


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one header that users get, so that an example cannot lean on others."""
    folder = tmp_path_factory.mktemp("include")
    (folder / "api").mkdir()
    for place in (folder, folder / "api"):
        shutil.copy(ROOT / "kernels" / "api" / "penstock.h", place)
    return folder


def build(source: str, header: Path, out: Path) -> Path:
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    libraries = [str(LIBRARIES[-1]), "-lstdc++", "-lm", "-lpthread"]
    command = ["gcc", *strict, f"-I{header}", str(ROOT / source), *libraries, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_c_interface_holds(header: Path, tmp_path: Path) -> None:
    program = build("kernels/tests/api_test.c", header, tmp_path / "api_test")
    for file in (KEPT, sorted(FILES.glob("block-int8-*.penstock"))[-1]):
        done = subprocess.run([program, file], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_example_classifies_as_the_python_engine_does(header: Path, tmp_path: Path) -> None:
    program = build("examples/c/classify.c", header, tmp_path / "classify")
    engine = pr.load(KEPT)
    _, height, width = engine.input_shape
    pixels = np.random.default_rng(2).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = tmp_path / "image.ppm"
    Image.fromarray(pixels).save(image)
    for density in (0.25, 1.0):
        done = subprocess.run(
            [program, KEPT, image, str(density)], capture_output=True, text=True, check=True
        )
        index, name, score = done.stdout.split()
        wanted = engine(engine.preprocess(pixels.transpose(2, 0, 1)[None]), density=density)[0]
        assert int(index) == wanted.argmax()
        assert name == engine.info.classes[int(index)]
        assert np.float32(score) == wanted.max()
    assert subprocess.run([program, KEPT, KEPT], capture_output=True).returncode == 1
    assert subprocess.run([program, image, image], capture_output=True).returncode == 1


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C library as it is installed."""
    folder = tmp_path_factory.mktemp("prefix")
    build = LIBRARIES[-1].parent
    words = [cmake(), "--install", build, "--component", "library", "--prefix", folder]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def cmake() -> str:
    beside = Path(sys.executable).parent / "cmake"
    return str(beside) if beside.exists() else shutil.which("cmake") or pytest.skip("needs cmake")


def grey_image(folder: Path) -> Path:
    _, height, width = pr.load(KEPT).input_shape
    path = folder / "grey.ppm"
    Image.fromarray(np.full((height, width, 3), 127, np.uint8)).save(path)
    return path


@pytest.mark.parametrize("static", [False, True])
def test_the_installed_library_is_found_by_cmake(prefix: Path, static: bool, tmp_path: Path) -> None:
    options = [f"-Dpenstock_ROOT={prefix}", f"-DSTATIC={'ON' if static else 'OFF'}", "-DCMAKE_C_COMPILER=gcc"]
    for words in (["-S", ROOT / "examples/c", "-B", tmp_path, *options], ["--build", tmp_path]):
        done = subprocess.run([cmake(), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / "classify", KEPT, grey_image(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split()[1] in pr.load(KEPT).info.classes, done.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_the_installed_library_is_found_by_pkg_config(prefix: Path, tmp_path: Path) -> None:
    (folder,) = prefix.glob("lib*/**/pkgconfig")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder), "LD_LIBRARY_PATH": str(folder.parent)}
    words = ["pkg-config", "--cflags", "--libs", "penstock"]
    flags = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()
    program = tmp_path / "classify"
    source = ROOT / "examples/c/classify.c"
    subprocess.run(["gcc", "-std=c11", "-Werror", source, *flags, "-o", program], check=True)
    done = subprocess.run(
        [program, KEPT, grey_image(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split()[1] in pr.load(KEPT).info.classes, done.stderr


def test_the_shared_library_shows_nothing_but_its_interface(prefix: Path) -> None:
    library = next(prefix.glob("lib*/**/libpenstock.so"))
    words = ["nm", "-D", "--defined-only", "--format=posix", library]
    names = [line.split()[0] for line in subprocess.check_output(words, text=True).splitlines()]
    assert "penstock_run" in names
    assert [name for name in names if not name.startswith("penstock_")] == []


def test_bad_machines_and_files_are_told_in_c(header: Path, huge: Path, tmp_path: Path) -> None:
    program = build("examples/c/classify.c", header, tmp_path / "classify")
    image = grey_image(tmp_path)
    environment = {**os.environ, "PENSTOCK_ISA": "neon" if "neon" not in pr.available_isas() else "avx2"}
    done = subprocess.run([program, KEPT, image], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"PENSTOCK_ISA is {environment['PENSTOCK_ISA']}, but this machine has baseline" in done.stderr
    limit = (3 << 30, 3 << 30)
    done = subprocess.run(
        [program, huge, image],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert done.returncode == 1
    assert "huge.penstock" in done.stderr
    assert "memory" in done.stderr
