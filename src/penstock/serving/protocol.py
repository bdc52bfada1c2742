"""The Open Inference Protocol, version 2: a request's bytes in, one array out; and an answer back to bytes.

Tensors travel as JSON numbers, or as raw little-endian bytes behind the JSON header (the binary extension,
which `tritonclient` uses by default). Every number in a request is checked against the bytes that are there.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER = "Inference-Header-Content-Length"
INPUT, OUTPUT = "images", "logits"
_KINDS: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}


class BadRequest(Exception):
    """A request that does not fit; the text goes to the client, with status 400."""


@dataclass(frozen=True)
class Request:
    """images: (batch, channel, height, width), float32 as the network takes it or uint8 pixels."""

    images: npt.NDArray[Any]
    id: str | None
    binary_output: bool
    density: float | None
    deadline: float | None


def parse(body: bytes, header: str | None, shape: tuple[int, int, int], most: int) -> Request:
    """header: the value of `Inference-Header-Content-Length`, if sent. shape: of one image. most: images."""
    size = len(body)
    if header is not None:
        if not is_length(header) or int(header) > size:
            raise BadRequest(
                f"{HEADER}: expected a length up to the body's {size} bytes, got {header[:40]!r}"
            )
        size = int(header)
    try:
        said = json.loads(body[:size])
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise BadRequest(f"expected a JSON object, got {type(said).__name__}")
    inputs = said.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest(f"inputs: expected one tensor, named {INPUT!r}")
    images = _tensor(inputs[0], body[size:], shape, most)
    parameters = _object(said, "parameters")
    binary = parameters.get("binary_data_output", False) is True
    for wanted in _outputs(said):
        binary = binary or _object(wanted, "parameters").get("binary_data", False) is True
    identity = said.get("id")
    if identity is not None and not isinstance(identity, str):
        raise BadRequest("id: expected a string")
    return Request(
        images,
        identity,
        binary,
        number(parameters.get("density"), "density", 0.0, 1.0),
        number(parameters.get("deadline_ms"), "deadline_ms", 0.0, 3.6e6),
    )


def is_length(text: str) -> bool:
    """Whether a header's text is a number of bytes.

    >>> is_length("12288"), is_length("-1"), is_length("²"), is_length("9" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) < 20


def number(value: object, name: str, low: float, high: float) -> float | None:
    """A number in ]low, high], from JSON or from a query string; None stays None."""
    if value is None:
        return None
    try:
        found = (
            float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        )
    except (ValueError, OverflowError):
        found = math.nan
    if not low < found <= high:
        raise BadRequest(
            f"{name}: expected a number above {low:g} and up to {high:g}, got {str(value)[:40]!r}"
        )
    return found


def answer(
    model: str, request: Request, logits: npt.NDArray[np.float32], parameters: dict[str, Any]
) -> tuple[bytes, dict[str, str]]:
    """The response's body and headers."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": list(logits.shape)}
    said: dict[str, Any] = {
        "model_name": model,
        "model_version": "1",
        "parameters": parameters,
        "outputs": [output],
    }
    if request.id is not None:
        said["id"] = request.id
    if not request.binary_output:
        output["data"] = logits.reshape(-1).tolist()
        return json.dumps(said).encode(), {"Content-Type": "application/json"}
    raw = np.ascontiguousarray(logits, "<f4").tobytes()
    output["parameters"] = {"binary_data_size": len(raw)}
    header = json.dumps(said).encode()
    return header + raw, {"Content-Type": "application/octet-stream", HEADER: str(len(header))}


def _tensor(said: dict[str, Any], raw: bytes, shape: tuple[int, int, int], most: int) -> npt.NDArray[Any]:
    name, kind, sides = said.get("name"), said.get("datatype"), said.get("shape")
    if name != INPUT:
        raise BadRequest(f"inputs: expected a tensor named {INPUT!r}, got {str(name)[:40]!r}")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadRequest(
            f"{INPUT}: datatype {str(kind)[:40]!r}; expected FP32, or UINT8 for pixels from 0 to 255"
        )
    whole = isinstance(sides, list) and all(type(side) is int for side in sides)
    if not isinstance(sides, list) or not whole or len(sides) != 4:
        raise BadRequest(f"{INPUT}: shape {str(sides)[:80]}; expected four whole numbers")
    if tuple(sides[1:]) != shape or not 1 <= sides[0] <= most:
        expected = "x".join(map(str, shape))
        raise BadRequest(f"{INPUT}: shape {str(sides)[:80]}; expected [1 to {most}, …] of {expected}")
    values = math.prod(sides)
    dtype = _KINDS[kind]
    binary = _object(said, "parameters").get("binary_data_size")
    if binary is None:
        if raw:
            raise BadRequest(f"{INPUT}: bytes follow the header, but binary_data_size is missing")
        return _numbers(said.get("data"), values, dtype).reshape(sides)
    if type(binary) is not int or binary != values * dtype.itemsize or binary != len(raw):
        raise BadRequest(
            f"{INPUT}: binary_data_size {str(binary)[:40]}, {len(raw)} bytes sent; "
            f"this shape needs {values * dtype.itemsize}"
        )
    return np.frombuffer(raw, dtype).reshape(sides)


def _numbers(data: object, values: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A JSON list, flat or nested, as a flat array of `values` numbers."""
    if not isinstance(data, list):
        raise BadRequest(f"{INPUT}: data: expected a list of {values} numbers")
    try:
        found = np.array(data, np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise BadRequest(f"{INPUT}: data: expected a list of {values} numbers, all of them numbers") from None
    if found.size != values:
        raise BadRequest(f"{INPUT}: data: {found.size} numbers; the shape needs {values}")
    if dtype.kind == "u" and not ((found >= 0) & (found <= 255) & (found == np.floor(found))).all():
        raise BadRequest(f"{INPUT}: data: UINT8 takes whole numbers from 0 to 255")
    with np.errstate(over="ignore"):
        return found.astype(dtype)


def _object(said: dict[str, Any], name: str) -> dict[str, Any]:
    found = said.get(name, {})
    if not isinstance(found, dict):
        raise BadRequest(f"{name}: expected a JSON object")
    return found


def _outputs(said: dict[str, Any]) -> list[dict[str, Any]]:
    found = said.get("outputs", [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadRequest("outputs: expected a list of tensors")
    for one in found:
        if one.get("name") != OUTPUT:
            raise BadRequest(f"outputs: there is {OUTPUT!r} only, got {str(one.get('name'))[:40]!r}")
    return found
