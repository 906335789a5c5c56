"""Read the body of an answer: inflate it step by step, never beyond its cap, never slower than its least rate.

Everything a host can do with a body ends here in the body or in one `FetchError`: more than the cap is `BodyTooLarge`,
a drip is `BodyTooSlow`, a coding that is broken, cut off or applied more often than anybody does is a `ProtocolError`.
Start at `read_body`; `codings_of` reads the header.

Not aiohttp's decoder: with 3.14.5 a gzip, br or zstd body that ends in its middle counts as whole, one behind whose end
stands some padding as broken, `x-gzip` and two codings in a row are left undecoded, and a raw deflate stream is told by
half a byte.

Sources: RFC 9110 section 8.4 (codings, x-gzip); RFC 1950 section 2.2 (the header of zlib, by which raw deflate is
told); RFC 1952 section 2.2 (members); RFC 7932 (br); RFC 8878 (zstd frames); RFC 9659 (a window of 8 MB at most).
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

import brotli  # type: ignore[import-untyped]

from streamcrawl.errors import BodyTooLarge, BodyTooSlow, ProtocolError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


STEP_BYTES: Final = 65_536
"""Inflated at a time: what a body may pass its cap by."""
TURN_BYTES: Final = 1_000_000
"""Inflated before others get a turn: some 3 ms."""
WIRE_SPARE_BYTES: Final = 65_536
"""A compressed body may be larger than what it holds by this much: a stream of empty members would never end."""
CODINGS_MAX: Final = 3
MEMBERS_MAX: Final = 1024
"""Of one gzip or zstd body. Real ones have one or a few; each copies what follows it, which is quadratic."""
ZSTD_WINDOW_LOG_MAX: Final = 23
"""8 MiB, what RFC 9659 allows; a frame may ask for gigabytes, and the library would give it 128 MiB."""


class _Broken(Exception):
    """The stream is none of its coding; the text says how."""


class _Inflater(Protocol):
    """One content coding of one body."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what `data` brings, some 64 KiB at a time.

        Raises:
            _Broken: by our own rules; and the library's own error.
        """

    @property
    def is_whole(self) -> bool:
        """Whether the stream may end here."""


class _Gzip:
    """gzip with any number of members; what follows the last and is none (padding, mostly) is left out."""

    is_whole = False

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._members = 1
        self._is_over = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == STEP_BYTES:
            if self._is_over:
                return
            if self._stream.eof:
                if not data:
                    return
                if data[:2] != b"\x1f\x8b"[: len(data)]:
                    self._is_over = True
                    return
                self._members += 1
                if self._members > MEMBERS_MAX:
                    raise _Broken(f"more than {MEMBERS_MAX} members")
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            piece = self._stream.decompress(data, STEP_BYTES)
            yield piece
            self.is_whole = self._stream.eof
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail


class _Deflate:
    """What HTTP calls deflate: the zlib format, or the raw stream that some servers send."""

    is_whole = False

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None
        self._start = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            data = self._start = self._start + data
            if len(data) < 2:
                return
            is_zlib = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        piece = b""
        while (data or len(piece) == STEP_BYTES) and not self._stream.eof:
            piece = self._stream.decompress(data, STEP_BYTES)
            yield piece
            data = self._stream.unconsumed_tail
        self.is_whole = self._stream.eof


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._stream.is_finished():
            raise _Broken("something follows its end")
        piece = self._stream.process(data, output_buffer_limit=STEP_BYTES)
        yield piece
        # Until it has nothing more to say, whatever it would accept: a step that ends where the data does leaves the
        # mark of the end unread.
        while not self._stream.is_finished() and (piece or not self._stream.can_accept_more_data()):
            piece = self._stream.process(b"", output_buffer_limit=STEP_BYTES)
            yield piece

    @property
    def is_whole(self) -> bool:
        return bool(self._stream.is_finished())


class _Zstd:
    """zstd with any number of frames."""

    is_whole = False

    def __init__(self) -> None:
        self._stream = self._frame()
        self._frames = 1

    def _frame(self) -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX})

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data or not (self._stream.eof or self._stream.needs_input):
            if self._stream.eof:
                self._frames += 1
                if self._frames > MEMBERS_MAX:
                    raise _Broken(f"more than {MEMBERS_MAX} frames")
                self._stream = self._frame()
            yield self._stream.decompress(data, STEP_BYTES)
            self.is_whole = self._stream.eof
            data = self._stream.unused_data if self._stream.eof else b""


_INFLATERS: Final[dict[str, type[_Gzip | _Deflate | _Brotli | _Zstd]]] = {
    "gzip": _Gzip, "x-gzip": _Gzip, "deflate": _Deflate, "br": _Brotli, "zstd": _Zstd,
}  # fmt: skip
ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"


def codings_of(header: str) -> tuple[str, ...]:
    """Return the content codings to undo, in that order: the last applied is the first.

    One that nobody asked for ends the list: it is left as it came, with what is under it, as browsers do.
    """
    found: list[str] = []
    for word in reversed(header.lower().split(",")):
        coding = word.strip()
        if coding in ("", "identity"):
            continue
        if coding not in _INFLATERS:
            break
        found.append(coding)
    return tuple(found)


class Decoder:
    """All codings of one body, one behind the other."""

    def __init__(self, codings: tuple[str, ...], size_max: int, url: str) -> None:
        if len(codings) > CODINGS_MAX:
            raise ProtocolError(f"{len(codings)} content codings, the limit is {CODINGS_MAX}", url)
        self._stages: list[tuple[str, _Inflater]] = [(coding, _INFLATERS[coding]()) for coding in codings]
        # What lies between two codings is bounded too: it would be a bomb of its own.
        self._left = [size_max + WIRE_SPARE_BYTES] * (len(codings) - 1) + [size_max]
        self._size_max = size_max
        self._url = url

    def pieces(self, data: bytes, stage: int = 0) -> Iterator[bytes]:
        """Yield what `data` brings.

        Raises:
            BodyTooLarge: beyond the cap.
            ProtocolError: the coding is broken.
        """
        coding, inflater = self._stages[stage]
        try:
            for piece in inflater.pieces(data):
                self._left[stage] -= len(piece)
                if self._left[stage] < 0:
                    raise too_large(self._size_max, self._url)
                if stage + 1 == len(self._stages):
                    yield piece
                elif piece:
                    yield from self.pieces(piece, stage + 1)
        except (_Broken, zlib.error, brotli.error, zstd.ZstdError) as error:
            raise ProtocolError(f"the body is no whole {coding}: {error}", self._url) from error

    def check_end(self) -> None:
        """Raise ProtocolError when a stream was cut off."""
        for coding, inflater in self._stages:
            if not inflater.is_whole:
                raise ProtocolError(f"the {coding} body ends in its middle", self._url)


def too_large(size_max: int, url: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {size_max} bytes", url)


class Content(Protocol):
    """What is read of aiohttp's StreamReader."""

    def is_eof(self) -> bool: ...
    def read_nowait(self) -> bytes: ...
    async def readany(self) -> bytes: ...


async def read_body(
    content: Content,
    codings: tuple[str, ...],
    size_max: int,
    url: str,
    *,
    enough: int | None = None,
    rate_min: int = 0,
    patience_s: float = 0.0,
    into: Callable[[bytes], Awaitable[bool]] | None = None,
) -> bytes:
    """Return the whole decoded body. Errors of aiohttp's reader pass.

    Args:
        content: Undecoded. Read by `readany`, never by `read()`: that lifts aiohttp's bound on what it holds.
        codings: From `codings_of`.
        size_max: Most bytes of the decoded body.
        url: For errors.
        enough: With so many decoded bytes it ends, whatever follows them; at least STEP_BYTES * 2 less than `size_max`.
        rate_min: Least bytes a second on the wire, from now to each moment; 0 for no such limit.
        patience_s: How long `rate_min` is not asked for; what `into` takes is no time of the host's.
        into: Takes the decoded body piece by piece as it comes, so that nothing of it is kept, and b"" is returned. The
            host is read no faster than it takes them. It says whether it has enough; then the rest is not read.

    Raises:
        BodyTooLarge: it has more than `size_max` bytes.
        BodyTooSlow: it came at less than `rate_min`.
        ProtocolError: its coding is broken or cut off.
    """
    if not codings and content.is_eof():
        # Most pages: head and body came together, nothing to wait for.
        body = content.read_nowait()
        if len(body) > size_max:
            raise too_large(size_max, url)
        if into is not None:
            await into(body)
            return b""
        return body[:enough]
    decoder = Decoder(codings, size_max, url) if codings else None
    wire_max = size_max + WIRE_SPARE_BYTES if codings else size_max
    started = monotonic()
    pieces: list[bytes] = []
    wire = inflated = size = 0
    while block := await content.readany():
        wire += len(block)
        if wire > wire_max:
            raise too_large(size_max, url)
        if into is not None:
            began = monotonic()
            for piece in (block,) if decoder is None else decoder.pieces(block):
                if piece and await into(piece):
                    return b""
            started += monotonic() - began
        elif decoder is None:
            pieces.append(block)
            size += len(block)
        else:
            for piece in decoder.pieces(block):
                pieces.append(piece)
                size += len(piece)
                inflated += len(piece)
                if enough is not None and size >= enough:
                    break
                if inflated > TURN_BYTES:
                    inflated = 0
                    await asyncio.sleep(0)
        if enough is not None and size >= enough:
            return b"".join(pieces)[:enough]
        if rate_min and not content.is_eof():
            took_s = monotonic() - started
            if took_s > patience_s and wire < rate_min * took_s:
                raise BodyTooSlow(f"{wire} bytes in {took_s:.1f} s, the least is {rate_min} a second", url)
    if decoder is not None and wire:
        decoder.check_end()
    return b"".join(pieces)
