"""Small files that claim very many pixels, or break Pillow: an InputError, before any pixel is decoded."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image

from penstock_runtime.errors import InputError
from penstock_runtime.images import MOST_PIXELS, read_image


def saved(format_: str, **options: object) -> bytearray:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).convert("P" if format_ == "GIF" else "RGB").save(
        stream, format_, **options
    )
    return bytearray(stream.getvalue())


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    content = saved("GIF")
    content[6:10] = struct.pack("<HH", *screen)
    begin = content.index(b",") + 5
    content[begin : begin + 4] = struct.pack("<HH", *frame)
    return bytes(content)


def webp(side: int) -> bytes:
    """One frame of 8x8 pixels on a canvas of side x side: 94 bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)

    def three(*numbers: int) -> bytes:
        return b"".join(struct.pack("<I", number)[:3] for number in numbers)

    parts = chunk(b"VP8X", b"\2\0\0\0" + three(side - 1, side - 1)) + chunk(b"ANIM", bytes(6))
    parts += chunk(b"ANMF", three(0, 0, 7, 7, 100) + b"\0" + bytes(saved("WEBP", lossless=True)[12:]))
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


def tiff(side: int, tile: tuple[int, int]) -> bytes:
    """Of one bit a pixel, fax compression 4; what it says of its tiles need not be true."""
    wide, high = tile
    numbers = {256: side, 257: side, 258: 1, 259: 4, 262: 1, 277: 1, 322: wide, 323: high, 324: 134, 325: 64}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in numbers.items())
    return b"II*\0" + struct.pack("<IH", 8, len(numbers)) + entries + bytes(4 + 64)


BOMBS = {
    "GIF, screen": gif((65535, 65535), (8, 8)),
    "GIF, frame": gif((8, 8), (9000, 9000)),
    "WebP, canvas": webp(7900),
    "TIFF": tiff(60_000, (16, 16)),
    "TIFF, tile": tiff(16, (60_000, 60_000)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_with_very_many_pixels_is_refused_whatever_its_format(kind: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read as an image \(.* pixels"):
        read_image(BOMBS[kind], (3, 16, 16))


def test_another_frame_is_never_read() -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, MOST_PIXELS // 8 + 8))
    stream = io.BytesIO()
    first.save(stream, "TIFF", save_all=True, append_images=[second], compression="tiff_deflate")
    assert read_image(stream.getvalue(), (3, 8, 8))[0, :, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", [OverflowError, struct.error, KeyError, EOFError])
def test_whatever_pillow_stumbles_over_is_an_input_error(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(picture: object) -> None:
        # What a TIFF with tiles of 2³² pixels makes it say.
        raise kind("signed integer is greater than maximum")

    monkeypatch.setattr("penstock_runtime.images.check_pixels", stumble)
    with pytest.raises(InputError, match=f"cannot be read as an image.*{kind.__name__}"):
        read_image(bytes(saved("PNG")), (3, 16, 16))


def test_a_large_webp_photograph_is_read() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (2000, 1500), "red").save(stream, "WEBP")
    assert read_image(stream.getvalue(), (3, 8, 8)).shape == (1, 3, 8, 8)
