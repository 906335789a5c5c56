"""What went over the wire: requests and answers as an archive keeps them.

A page and the redirects that led to it travel to the sink of an archive as one item: msgpack, compressed by zstd, in
which bodies that came compressed stay so. Nothing here decides what is archived. Start at `Exchange`.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from streamcrawl.errors import CodecError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ARCHIVE: Final = "warc-"
"""How the names of sinks begin that take exchanges; the others take records. By the name, because every worker knows
it, and the file only where it is written."""
LEVEL: Final = 3


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """One request and its answer."""

    url: str
    began_at: str
    """ISO 8601 in UTC, with ms."""
    address: str
    """Of the server, '' when it is not known."""
    request: bytes
    """The head, from the request line to the empty line. Headers that are secrets are left out."""
    head: bytes
    """Of the answer, in the same form: names and values byte for byte and in their order."""
    body: bytes
    """The content as it came: with its content codings, without a transfer coding."""
    status: int


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(list[Exchange]).decode


def is_archive(sink: str) -> bool:
    return sink.startswith(ARCHIVE)


def encode_exchanges(exchanges: list[Exchange]) -> bytes:
    return zstd.compress(_ENCODE(exchanges), LEVEL)


def decode_exchanges(item: bytes) -> list[Exchange]:
    """Return what `encode_exchanges` was given; it is of our own making, so its size is that of bodies with a cap.

    Raises:
        CodecError: it is something else.
    """
    try:
        return _DECODE(zstd.decompress(item))
    except (zstd.ZstdError, msgspec.MsgspecError) as error:
        raise CodecError(f"stored exchange cannot be read ({error}): {item[:120]!r}") from error
