"""Open Inference Protocol: what is sent arrives, and whatever else is sent is refused with words."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.serving.protocol import BadRequest, Request, answer, parse

SHAPE = (3, 2, 2)
IMAGES = np.arange(24, dtype=np.float32).reshape(2, *SHAPE)


def request(**changes: object) -> dict[str, object]:
    tensor: dict[str, object] = {"name": "images", "datatype": "FP32", "shape": [2, 3, 2, 2]}
    return {"inputs": [{**tensor, "data": IMAGES.reshape(-1).tolist(), **changes}]}


def test_json_numbers_arrive_flat_or_nested() -> None:
    for data in (IMAGES.reshape(-1).tolist(), IMAGES.tolist()):
        found = parse(json.dumps(request(data=data)).encode(), None, SHAPE, 8)
        np.testing.assert_array_equal(found.images, IMAGES)


def test_bytes_behind_the_header_arrive() -> None:
    said = request(parameters={"binary_data_size": 96})
    del said["inputs"][0]["data"]  # type: ignore[index]
    header = json.dumps(said).encode()
    found = parse(header + IMAGES.tobytes(), str(len(header)), SHAPE, 8)
    np.testing.assert_array_equal(found.images, IMAGES)


def test_parameters_arrive() -> None:
    said = {**request(), "id": "7", "parameters": {"density": 0.5, "deadline_ms": 30}}
    found = parse(json.dumps(said).encode(), None, SHAPE, 8)
    assert (found.id, found.density, found.deadline) == ("7", 0.5, 30.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "JSON object"),
        (b'{"inputs": []}', "one tensor"),
        (json.dumps(request(name="x")).encode(), "named 'images'"),
        (json.dumps(request(datatype="INT64")).encode(), "FP32"),
        (json.dumps(request(shape=[2, 3, 2, 3])).encode(), "expected"),
        (json.dumps(request(shape=[9, 3, 2, 2])).encode(), "1 to 8"),
        (json.dumps(request(shape=[-1, 3, 2, 2])).encode(), "expected"),
        (json.dumps(request(shape="2x3")).encode(), "expected"),
        (json.dumps(request(data=[1, 2])).encode(), "needs 24"),
        (json.dumps(request(data=["a"] * 24)).encode(), "numbers"),
        (json.dumps(request(data=[[1], [2, 3]])).encode(), "numbers"),
        (json.dumps(request(datatype="UINT8", data=[300] * 24)).encode(), "0 to 255"),
        (json.dumps(request(parameters={"binary_data_size": 96})).encode(), "needs 96"),
        (json.dumps({**request(), "parameters": {"density": 2}}).encode(), "density"),
        (json.dumps({**request(), "parameters": []}).encode(), "JSON object"),
        (json.dumps({**request(), "outputs": [{"name": "x"}]}).encode(), "logits"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        parse(body, None, SHAPE, 8)


@pytest.mark.parametrize("header", ["-1", "1000000", "x", "²"])
def test_a_header_length_that_is_not_there_is_refused(header: str) -> None:
    with pytest.raises(BadRequest, match="Inference-Header"):
        parse(json.dumps(request()).encode(), header, SHAPE, 8)


@given(arrays.arrays(np.float32, (2, 5), elements=st.floats(-1e6, 1e6, width=32)), st.booleans())
def test_answers_hold_the_logits_bit_for_bit(logits: np.ndarray, binary: bool) -> None:
    content, headers = answer("net", Request(IMAGES, "7", binary, None, None), logits, {"density": 0.5})
    if binary:
        size = int(headers["Inference-Header-Content-Length"])
        said = json.loads(content[:size])
        found = np.frombuffer(content[size:], "<f4")
    else:
        said = json.loads(content)
        found = np.array(said["outputs"][0]["data"], np.float32)
    np.testing.assert_array_equal(found.reshape(logits.shape), logits)
    assert said["id"] == "7"
    assert said["parameters"] == {"density": 0.5}


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_nothing_else_happens(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body, None, SHAPE, 8)
