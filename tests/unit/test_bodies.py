"""What becomes of the bytes of a body, however they are packed and however they come."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from typing import TYPE_CHECKING, Final

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import BodyTooLarge, ProtocolError
from streamcrawl.web.bodies import CODINGS_MAX, MEMBERS_MAX, STEP_BYTES, Decoder, codings_of
from tests.site.faults import brotli_of_zeros, gzip_of_gzip_of_zeros, raw_deflate, zstd_of_zeros

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

URL: Final = "http://example.org/"
PACKERS: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd.compress),
    "gzip members": ("gzip", lambda body: gzip.compress(body[:7]) + gzip.compress(body[7:])),
    "zstd frames": ("zstd", lambda body: zstd.compress(body[:7]) + zstd.compress(body[7:])),
    "zstd skippable frame": ("zstd", lambda body: b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd.compress(body)),
    "br in gzip": ("br, gzip", lambda body: gzip.compress(brotli.compress(body))),
}
SIZES: Final = (0, 1, 1000, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES)


def decoded(header: str, data: bytes, size_max: int = 10_000_000, *, step: int | None = None) -> bytes:
    decoder = Decoder(codings_of(header), size_max, URL)
    step = step or max(1, len(data))
    body = b"".join(piece for at in range(0, len(data), step) for piece in decoder.pieces(data[at : at + step]))
    decoder.check_end()
    return body


def content(size: int) -> bytes:
    """Return bytes that compress a little."""
    return b"".join(b"%d " % (n * n % 9973) for n in range(size // 4 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("packer", PACKERS)
def test_a_body_is_whole_however_its_bytes_come(packer: str, size: int) -> None:
    header, packed = PACKERS[packer]
    for body in (content(size), bytes(size)):
        data = packed(body)
        assert decoded(header, data) == body
        assert decoded(header, data, step=997) == body
        if len(data) < 5000:
            assert decoded(header, data, step=1) == body


@pytest.mark.parametrize("packer", PACKERS)
def test_the_cap_is_exact_in_every_coding(packer: str) -> None:
    header, packed = PACKERS[packer]
    for size in (1, STEP_BYTES, STEP_BYTES + 1):
        data = packed(content(size))
        assert len(decoded(header, data, size)) == size
        with pytest.raises(BodyTooLarge):
            decoded(header, data, size - 1)


@pytest.mark.parametrize("packer", PACKERS)
def test_a_stream_that_is_cut_anywhere_is_no_body(packer: str) -> None:
    header, packed = PACKERS[packer]
    body = content(300)
    data = packed(body)
    # What is cut off between two members, or frames, is whole.
    whole_at = {
        "gzip members": len(gzip.compress(body[:7])),
        "zstd frames": len(zstd.compress(body[:7])),
        "zstd skippable frame": 11,
    }.get(packer)
    for end in range(1, len(data)):
        if end != whole_at:
            with pytest.raises(ProtocolError, match=r"ends in its middle|is no whole"):
                decoded(header, data[:end])


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ("gzip, gzip", gzip_of_gzip_of_zeros),
        ("br", brotli_of_zeros),
        ("zstd", zstd_of_zeros),
    ],
)
def test_a_bomb_goes_off_at_its_cap(header: str, data: Callable[[], bytes]) -> None:
    decoder = Decoder(codings_of(header), 1_000_000, URL)
    pieces: list[bytes] = []
    with pytest.raises(BodyTooLarge):
        pieces.extend(decoder.pieces(data()))
    assert 1_000_000 - 2 * STEP_BYTES <= sum(map(len, pieces)) <= 1_000_000
    assert max(map(len, pieces)) <= 2 * STEP_BYTES


def test_what_follows_the_last_member_is_left_out_where_that_is_usual() -> None:
    packed = gzip.compress(b"body")
    for rest in (b"\0", bytes(512), b"\r\n", b"\x1e"):
        assert decoded("gzip", packed + rest) == b"body"
        assert decoded("gzip", packed + rest, step=len(packed)) == b"body"
    assert decoded("deflate", zlib.compress(b"body") + b"\0") == b"body"
    with pytest.raises(ProtocolError):
        decoded("br", brotli.compress(b"body") + b"\0", step=len(brotli.compress(b"body")))
    with pytest.raises(ProtocolError):
        decoded("zstd", zstd.compress(b"body") + b"\0\0\0\0\0")


def test_members_are_counted() -> None:
    for header, empty in (("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b""))):
        assert decoded(header, empty * MEMBERS_MAX) == b""
        with pytest.raises(ProtocolError, match=f"more than {MEMBERS_MAX}"):
            decoded(header, empty * (MEMBERS_MAX + 1))


def test_codings_are_counted() -> None:
    body = b"body"
    for _ in range(CODINGS_MAX):
        body = gzip.compress(body)
    assert decoded(",".join(["gzip"] * CODINGS_MAX), body) == b"body"
    with pytest.raises(ProtocolError, match="the limit is"):
        decoded(",".join(["gzip"] * (CODINGS_MAX + 1)), gzip.compress(body))


@pytest.mark.parametrize(
    ("header", "codings"),
    [
        ("", ()),
        ("identity", ()),
        ("gzip", ("gzip",)),
        (" GZip ", ("gzip",)),
        ("deflate, gzip", ("gzip", "deflate")),
        ("identity,br , ,gzip", ("gzip", "br")),
        ("x-own", ()),
        ("x-own, gzip", ("gzip",)),
        ("gzip, x-own", ()),
        ("utf-8", ()),
    ],
)
def test_the_last_coding_is_undone_first_and_an_unknown_one_ends_it(header: str, codings: tuple[str, ...]) -> None:
    assert codings_of(header) == codings


@given(
    st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, br", "zstd, deflate"]),
    st.sampled_from(
        [b"", b"\x1f\x8b\x08\0", b"\x78\x9c", b"\x28\xb5\x2f\xfd", gzip.compress(b"x"), zstd.compress(b"x")]
    ),
    st.binary(max_size=300),
    st.integers(1, 300),
)
def test_no_bytes_end_in_anything_but_a_body_or_a_named_error(
    header: str, start: bytes, rest: bytes, step: int
) -> None:
    with contextlib.suppress(ProtocolError, BodyTooLarge):
        assert len(decoded(header, start + rest, 5000, step=step)) <= 5000
