"""Getting files: over HTTP, going on after an interruption, and through the npm client."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from penstock.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in all (0 if unknown)."""

_PIECE = 1 << 20


class Unreachable(DataError):
    """A source that did not answer; another one may."""


def use_up(archive: Path, take: Callable[[Path], Path]) -> Path:
    """What `take` makes of a fetched archive, deleted afterwards: it is taken whole, or of no use."""
    try:
        return take(archive)
    finally:
        archive.unlink()


def download(url: str, path: Path, md5: str, progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Fetch `url` to `path` and check its MD5. What an interrupted download left is gone on with.

    A partial file that turns out wrong in the end is fetched once more from the start.
    """
    if path.exists() and file_md5(path) == md5:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    resumed = _fetch(url, partial, progress, timeout)
    if file_md5(partial) != md5 and resumed:
        partial.unlink()
        _fetch(url, partial, progress, timeout)
    found = file_md5(partial)
    if found != md5:
        partial.unlink()
        raise DataError(
            f"{url}: {path.name} has MD5 {found}, expected {md5}; it was deleted, run again to retry"
        )
    partial.replace(path)
    return path


def _fetch(url: str, partial: Path, progress: Progress | None, timeout: float) -> bool:
    """Append to `partial` what is missing of `url`; True if it already held something that was kept."""
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url}: expected an http or https address")
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            kept = start if response.status == 206 and _starts_at(response, start) else 0
            length = int(response.headers.get("Content-Length") or 0)
            with open(partial, "ab" if kept else "wb") as stream:
                while piece := response.read(_PIECE):
                    stream.write(piece)
                    if progress is not None:
                        progress(stream.tell(), kept + length if length else 0)
                size = stream.tell()
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # the partial file is as long as the whole: its MD5 decides
            return True
        raise Unreachable(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{url}: {error}; run the same command again to go on") from error
    if length and size < kept + length:
        raise Unreachable(
            f"{url}: cut off at {size:,} of {kept + length:,} bytes; run the same command again to go on"
        )
    return kept > 0


def _starts_at(response: HTTPResponse, start: int) -> bool:
    return (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


def npm_pack(package: str, folder: Path) -> Path:
    """`npm pack PACKAGE`: the package's archive, in `folder`, from whatever registry the user's npm has."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unreachable("npm: the npm client is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    # npm writes under the final name as it goes; in a folder of its own a cut-off file is never mistaken.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as work:
        done = subprocess.run(
            [npm, "pack", "--silent", "--ignore-scripts", package], cwd=work, capture_output=True, text=True
        )
        made = sorted(Path(work).glob("*.tgz"))
        if done.returncode != 0 or len(made) != 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Unreachable(f"npm pack {package}: {said[-1] if said else f'exit code {done.returncode}'}")
        return made[0].rename(folder / made[0].name)


def file_md5(path: Path) -> str:
    """Of a whole file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()
