"""Forms with files, as they come in pieces."""

from __future__ import annotations

import io
import re

import pytest

from headrace.errors import InvalidRequest
from headrace.server.multipart_form import FormReader, boundary_of


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_form_in_pieces(piece: int) -> None:
    form = (
        b'preamble\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        b'content-disposition: form-data; name="file"; filename="a\xc3\xa9.jsonl"\r\nContent-Type: text/plain\r\n\r\n'
        b"x\r\n--\r\n--bb\r\n\r\n--b--\r\nepilogue"
    )
    target = io.BytesIO()
    reader = FormReader(b"b", target, 100)
    for at in range(0, len(form), piece):
        reader.feed(form[at : at + piece])
    reader.finish()
    assert target.getvalue() == b"x\r\n--\r\n--bb\r\n"
    assert (reader.fields["purpose"], reader.filename) == ("batch", "aé.jsonl")


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (b"--b\r\n\r\nx\r\n--b--", "no name"),
        (b'--b\r\ndisposition: form-data; name="file"\r\n\r\nx', "in the middle"),
        (b'--b\r\ndisposition: form-data; name="other"\r\n\r\nx\r\n--b--', "`file` is required"),
        (b"--b\r\n" + b"x" * 9000, "headers are too long"),
        (b'--b\r\nx; name="a"\r\n\r\n' + b"x" * 70000 + b"\r\n--b--", "too long"),
        (b'--b\r\nx; name="a"\r\n\r\n1\r\n--b\r\nx; name="a"\r\n\r\n2\r\n--b--', "too many"),
        (b'--b\r\nx; name="file"\r\n\r\n1\r\n--b\r\nx; name="file"\r\n\r\n2\r\n--b--', "two files"),
    ],
)
def test_malformed_forms(form: bytes, why: str) -> None:
    reader = FormReader(b"b", io.BytesIO(), 100)

    def read() -> None:
        reader.feed(form)
        reader.finish()

    with pytest.raises(InvalidRequest, match=re.escape(why)):
        read()


def test_boundaries() -> None:
    assert boundary_of('multipart/form-data; charset=x; boundary="a b"') != b"a b"
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    with pytest.raises(InvalidRequest):
        boundary_of("application/json")
