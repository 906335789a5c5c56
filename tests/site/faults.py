"""Answers of the misbehaving site that are a fixed string of bytes, one fault each; server.py says which there are.

`raw_fault` makes the bytes for one host. Nothing here waits, drips or goes on forever: that is server.py's part.
"""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import brotli  # type: ignore[import-untyped]

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

MEBIBYTE: Final = 1024 * 1024
HTML: Final = b"Content-Type: text/html; charset=utf-8\r\n"
CYRILLIC: Final = "<!DOCTYPE html>%s<title>Поезд из Перми</title><p>приходит рано утром, автобус ждёт на площади"


class Raw(NamedTuple):
    """What goes on the wire, and what becomes of the connection then."""

    data: bytes
    ends: Literal["keeps", "closes"] = "keeps"
    status: int = 200
    """For the log."""


def answer(body: bytes, headers: bytes = HTML, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)


def coded(coding: bytes, body: bytes) -> Raw:
    return Raw(answer(body, HTML + b"Content-Encoding: %b\r\n" % coding))


def head(*lines: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"", b""))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def chunked(body: bytes, end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    return head(b"Transfer-Encoding: chunked") + b"%x%b\r\n%b\r\n%b" % (len(body), extension, body, end)


# -- bombs


@lru_cache(maxsize=4)
def gzip_of_zeros(mebibytes: int) -> bytes:
    """Return a valid gzip file of so many MiB of zeros, about a thousandth of their size.

    Made of one compressed block again and again: a full flush lets blocks follow each other, and compressing 1 GiB
    would take seconds.
    """
    size = mebibytes * MEBIBYTE
    zeros = bytes(MEBIBYTE)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = compressor.compress(zeros) + compressor.flush(zlib.Z_FULL_FLUSH)
    trailer = struct.pack("<II", crc32_of_zeros(size), size % 2**32)
    return b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + block * mebibytes + compressor.flush() + trailer


def crc32_of_zeros(count: int) -> int:
    """Return zlib.crc32(bytes(count)) in milliseconds: over 1 GiB it takes longer than a client waits for an answer.

    One zero bit is a linear map of the checksum's 32 bits; squared, it is the map of two bits, of four, and so on.
    """

    def applied(rows: list[int], value: int) -> int:
        result = 0
        for bit, row in enumerate(rows):
            result ^= row if value >> bit & 1 else 0
        return result

    rows, checksum = [0xEDB88320, *(1 << bit for bit in range(31))], 0xFFFFFFFF
    bits = 8 * count
    while bits:
        if bits & 1:
            checksum = applied(rows, checksum)
        rows, bits = [applied(rows, row) for row in rows], bits >> 1
    return checksum ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def deflate_of_zeros() -> bytes:
    """Return a raw deflate stream of 1 GiB of zeros."""
    return gzip_of_zeros(1024)[10:-8]


@lru_cache(maxsize=1)
def brotli_of_zeros() -> bytes:
    """Return a brotli stream of 512 MiB of zeros."""
    packer = brotli.Compressor(quality=1)
    zeros = bytes(MEBIBYTE)
    return b"".join([packer.process(zeros) for _ in range(512)]) + bytes(packer.finish())


@lru_cache(maxsize=1)
def zstd_of_zeros() -> bytes:
    """Return zstd frames of 1 GiB of zeros together."""
    return zstd.compress(bytes(16 * MEBIBYTE)) * 64


@lru_cache(maxsize=1)
def gzip_of_gzip_of_zeros() -> bytes:
    """Return 10 GiB of zeros, packed twice."""
    return gzip.compress(gzip_of_zeros(10 * 1024), 6)


def wide_zstd(body: bytes) -> bytes:
    """Return a frame that demands a window of 128 MiB of whoever unpacks it."""
    parameters: dict[int, int] = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    packer = zstd.ZstdCompressor(options=parameters)
    return packer.compress(body) + packer.flush()


# -- the faults


_FAULTS: Final[dict[str, Callable[[bytes], Raw]]] = {
    # Content codings that are right.
    "gzip": lambda page: coded(b"gzip", gzip.compress(page)),
    "x_gzip": lambda page: coded(b"X-GZip", gzip.compress(page)),
    "deflate": lambda page: coded(b"deflate", zlib.compress(page)),
    "deflate_raw": lambda page: coded(b"deflate", raw_deflate(page)),
    "br": lambda page: coded(b"br", brotli.compress(page)),
    "zstd": lambda page: coded(b"zstd", zstd.compress(page)),
    "zstd_frames": lambda page: coded(b"zstd", zstd.compress(page[:99]) + zstd.compress(page[99:])),
    "gzip_twice": lambda page: coded(b"gzip, gzip", gzip.compress(gzip.compress(page))),
    "br_gzip": lambda page: coded(b"br, identity, gzip", gzip.compress(brotli.compress(page))),
    "gzip_members": lambda page: coded(b"gzip", gzip.compress(page[:99]) + gzip.compress(page[99:])),
    "gzip_padded": lambda page: coded(b"gzip", gzip.compress(page) + bytes(512)),
    "gzip_empty": lambda _: coded(b"gzip", b""),
    "gzip_chunked": lambda page: Raw(
        chunked(gzip.compress(page)).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n" + HTML, 1)
    ),
    "coding_unknown": lambda page: coded(b"x-own", page),
    # Content codings that are wrong.
    "bad_encoding": lambda page: coded(b"gzip", page),
    "bad_deflate": lambda page: coded(b"deflate", b"\xff" + page),
    "bad_br": lambda page: coded(b"br", b"\xff" + page),
    "bad_zstd": lambda page: coded(b"zstd", page),
    "gzip_cut": lambda page: coded(b"gzip", gzip.compress(page)[:-20]),
    "deflate_cut": lambda page: coded(b"deflate", zlib.compress(page)[:-20]),
    "br_cut": lambda page: coded(b"br", brotli.compress(page)[:-20]),
    "zstd_cut": lambda page: coded(b"zstd", zstd.compress(page)[:-20]),
    "gzip_checksum": lambda page: coded(b"gzip", gzip.compress(page)[:-8] + bytes(8)),
    "gzip_many_members": lambda _: coded(b"gzip", gzip.compress(b"") * 5000),
    "zstd_many_frames": lambda _: coded(b"zstd", zstd.compress(b"") * 5000),
    "codings_many": lambda page: coded(b"gzip, gzip, gzip, gzip", page),
    "zstd_window": lambda page: coded(b"zstd", wide_zstd(page)),
    # Bombs.
    "bomb": lambda _: coded(b"gzip", gzip_of_zeros(1024)),
    "bomb_deflate": lambda _: coded(b"deflate", deflate_of_zeros()),
    "bomb_br": lambda _: coded(b"br", brotli_of_zeros()),
    "bomb_zstd": lambda _: coded(b"zstd", zstd_of_zeros()),
    "bomb_twice": lambda _: coded(b"gzip, gzip", gzip_of_gzip_of_zeros()),
    # The length of the body.
    "no_length": lambda page: Raw(head(HTML[:-2]) + page, "closes"),
    "length_less": lambda page: Raw(answer(page).replace(b"Content-Length: ", b"Content-Length: 10\r\nX-Right: ", 1)),
    "length_more": lambda page: Raw(head(b"Content-Length: %d" % (len(page) + 10)) + page, "closes"),
    "length_twice": lambda page: Raw(answer(page, HTML + b"Content-Length: %d\r\n" % len(page))),
    "length_two": lambda page: Raw(answer(page, HTML + b"Content-Length: 7\r\n"), "closes"),
    "length_negative": lambda page: Raw(head(b"Content-Length: -1") + page, "closes"),
    "length_word": lambda page: Raw(head(b"Content-Length: many") + page, "closes"),
    "length_vast": lambda page: Raw(head(b"Content-Length: 99999999999999999999999") + page, "closes"),
    "length_beyond": lambda page: Raw(head(b"Content-Length: 99999999999") + page, "closes"),
    "length_and_chunks": lambda page: Raw(chunked(page).replace(b"\r\n", b"\r\nContent-Length: 10\r\n", 1), "closes"),
    # Chunks.
    "chunked": lambda page: Raw(
        head(HTML[:-2], b"Transfer-Encoding: chunked")
        + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (page[:1000], page[1000:]) if piece)
        + b"0\r\n\r\n"
    ),
    "chunk_trailers": lambda page: Raw(chunked(page, b"0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n")),
    "chunk_extension": lambda page: Raw(chunked(page, extension=b';name="value"')),
    "chunk_extension_long": lambda page: Raw(chunked(page, extension=b";x=" + b"y" * 100_000)),
    "chunk_no_end": lambda page: Raw(chunked(page, b""), "closes"),
    "bad_chunk": lambda _: Raw(head(b"Transfer-Encoding: chunked") + b"5\r\nhello\r\nno size\r\n"),
    "chunk_negative": lambda page: Raw(head(b"Transfer-Encoding: chunked") + b"-5\r\n" + page, "closes"),
    "chunk_vast": lambda page: Raw(head(b"Transfer-Encoding: chunked") + b"f" * 40 + b"\r\n" + page, "closes"),
    "chunk_cut": lambda page: Raw(head(b"Transfer-Encoding: chunked") + b"ffff\r\n" + page[:50], "closes"),
    "chunk_longer": lambda page: Raw(head(b"Transfer-Encoding: chunked") + b"5\r\n" + page, "closes"),
    "transfer_unknown": lambda page: Raw(head(b"Transfer-Encoding: x-own") + page, "closes"),
    # Statuses with a body too much, or none.
    "body_204": lambda page: Raw(answer(page, status=b"204 No Content"), status=204),
    "body_304": lambda page: Raw(answer(page, status=b"304 Not Modified"), status=304),
    "body_205": lambda page: Raw(answer(page, status=b"205 Reset Content"), status=205),
    "partial_206": lambda page: Raw(
        answer(page[:50], HTML + b"Content-Range: bytes 0-49/%d\r\n" % len(page), b"206 Partial Content"), status=206
    ),
    "informed_100": lambda page: Raw(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(page)),
    "informed_103": lambda page: Raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + answer(page)),
    "informed_often": lambda page: Raw(b"HTTP/1.1 102 Processing\r\n\r\n" * 20_000 + answer(page)),
    "informed_only": lambda _: Raw(b"HTTP/1.1 100 Continue\r\n\r\n", "closes", 100),
    "switched_101": lambda page: Raw(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x-own\r\nConnection: upgrade\r\n\r\n" + page, "closes", 101
    ),
    # Heads.
    "head_none": lambda _: Raw(b"", "closes", 0),
    "head_cut": lambda _: Raw(b"HTTP/1.1 200 OK\r\nContent-", "closes"),
    "head_only": lambda _: Raw(head(HTML[:-2], b"Content-Length: 0")),
    "big_header": lambda page: Raw(answer(page, HTML + b"X-Big: %b\r\n" % (b"x" * 100_000))),
    "header_30k": lambda page: Raw(answer(page, HTML + b"X-Policy: %b\r\n" % (b"x" * 30_000))),
    "headers_100": lambda page: Raw(answer(page, HTML + b"".join(b"X-%d: 1\r\n" % n for n in range(100)))),
    "headers_5000": lambda page: Raw(answer(page, HTML + b"".join(b"X-%d: 1\r\n" % n for n in range(5000)))),
    "headers_twice": lambda page: Raw(answer(page, HTML + HTML + b"X-A: 1\r\nX-A: 2\r\n")),
    "header_bytes": lambda page: Raw(answer(page, HTML + b"X-Own: caf\xe9 \xff\r\n")),
    "header_folded": lambda page: Raw(answer(page, HTML + b"X-Own: one\r\n two\r\n")),
    "header_nul": lambda page: Raw(answer(page, HTML + b"X-Own: a\0b\r\n")),
    "header_no_colon": lambda page: Raw(answer(page, HTML + b"no colon\r\n"), "closes"),
    "header_no_name": lambda page: Raw(answer(page, HTML + b": value\r\n"), "closes"),
    "header_space_name": lambda page: Raw(answer(page, HTML + b"X Own : value\r\n"), "closes"),
    "cookies": lambda page: Raw(answer(page, HTML + b"Set-Cookie: a=1\r\nSet-Cookie: b=2; Domain=com\r\n")),
    "status_no_reason": lambda page: Raw(answer(page, status=b"200")),
    "status_long_reason": lambda page: Raw(answer(page, status=b"200 " + b"O" * 100_000), "closes"),
    "status_two_digits": lambda page: Raw(answer(page, status=b"20 OK"), "closes"),
    "status_word": lambda page: Raw(answer(page, status=b"OK 200"), "closes"),
    "lines_lf": lambda page: Raw(answer(page).replace(b"\r\n", b"\n"), "closes"),
    # What is hardly HTTP, or none.
    "http_09": lambda page: Raw(page, "closes"),
    "http_10": lambda page: Raw(answer(page).replace(b"HTTP/1.1", b"HTTP/1.0", 1), "closes"),
    "http_30": lambda page: Raw(answer(page).replace(b"HTTP/1.1", b"HTTP/3.0", 1), "closes"),
    "http_2": lambda _: Raw(b"\0\0\x12\x04\0\0\0\0\0" + bytes(18), "closes", 0),
    "tls": lambda _: Raw(b"\x15\x03\x01\0\x02\x02\x46", "closes", 0),
    "bad_status_line": lambda _: Raw(b"220 mail.example.org ESMTP\r\n\r\n", "closes", 0),
    "noise": lambda _: Raw(bytes(range(256)) * 40, "closes", 0),
    # Content types that are missing or wrong.
    "type_none": lambda page: Raw(answer(page, b"")),
    "type_empty": lambda page: Raw(answer(page, b"Content-Type: \r\n")),
    "type_none_binary": lambda _: Raw(answer(b"\x89PNG\r\n\x1a\n\0\0\0", b"")),
    "type_wrong": lambda _: Raw(answer(b"%PDF-1.7 <a href=/p/0>not a link</a>")),
    "type_feed": lambda _: Raw(answer(b"<?xml version='1.0'?><rss><a href='/p/0'>not a link</a></rss>")),
    "type_strange": lambda page: Raw(answer(page, b"Content-Type: caf\xe9;;=/\r\n")),
    "refresh_self": lambda _: Raw(answer(b"<title>Again</title><meta http-equiv=refresh content='0; url=?'>")),
    # Charsets.
    "latin1": lambda _: Raw(
        answer(
            "<!DOCTYPE html><title>Café Größe</title><p>déjà vu".encode("latin-1"),
            b"Content-Type: text/html; charset=ISO-8859-1\r\n",
        )
    ),
    "charset_bom": lambda _: Raw(
        answer((CYRILLIC % "").encode("utf-16"), b"Content-Type: text/html; charset=koi8-r\r\n")
    ),
    "charset_meta": lambda _: _cyrillic('<meta charset="windows-1251">'),
    "charset_late": lambda _: _cyrillic(f"<!--{'x' * 3000}--><meta charset=windows-1251>"),
    "charset_none": lambda _: _cyrillic(""),
    "charset_unknown": lambda _: Raw(answer((CYRILLIC % "").encode(), b"Content-Type: text/html; charset=no-such\r\n")),
    "charset_gb18030": lambda _: Raw(
        answer((CYRILLIC % "").encode("gb18030"), b"Content-Type: text/html; charset=GB2312\r\n")
    ),
    "charset_lie": lambda _: Raw(answer((CYRILLIC % "").encode("cp1251"))),
}  # fmt: skip


def _cyrillic(start: str) -> Raw:
    return Raw(answer((CYRILLIC % start).encode("cp1251"), b"Content-Type: text/html\r\n"))


RAW_FAULTS: Final = tuple(_FAULTS)


def raw_fault(name: str, page: bytes) -> Raw | None:
    """Return the bytes of a fault; None where its name is not one of these.

    Args:
        page: Page 0 of the host, that is sent where the fault is not in the page.
    """
    made = _FAULTS.get(name)
    return None if made is None else made(page)
