"""WARC 1.1: what went over the wire, one gzip member for each record. Valid by `warcio check` and `fastwarc check`.

For each request a `response` record and a `request` record that refers to it. Names and values of headers are byte for
byte as they were sent and received, but for two things: secrets of `--header` and `--auth` are not in them, and since a
transfer coding is undone where the connection is read, its header is called `X-Crawl-Transfer-Encoding` (as Common
Crawl does), so that nobody takes the payload for chunks. The payload is as it came: a gzip, br or zstd body stays one,
and its Content-Encoding says so.

A payload that this process has written already becomes a `revisit` record with the head alone, and so does a 304, which
refers to the record in which the payload of its URL stands. What is known of is bounded, and forgotten with the
process: then a payload is there twice, which costs room and no more, and a 304 refers to its URL alone.
Sources: ISO 28500:2017 (WARC 1.1), sections 6.3, 6.4, 6.7 and annex D (gzip).
"""

from __future__ import annotations

import re
import zlib
from base64 import b32encode
from collections import OrderedDict
from datetime import UTC, datetime
from hashlib import sha1
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from streamcrawl.web.exchange import Exchange, decode_exchanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.sinks.files import LockedFile

BATCH_MAX: Final = 32
"""Items in one write: each may hold a whole body of `--max-body`, and redirects before it."""
KNOWN_MAX: Final = 300_000
"""Some 80 MB: by digest, and by URL where the host may be asked whether it changed, where and when a payload was first
written."""
_GZIP: Final = b"\x1f\x8b\x08"
_GZIP_BITS: Final = zlib.MAX_WBITS | 16
_VALIDATOR: Final = re.compile(rb"\n(?:etag|last-modified):", re.IGNORECASE)
_CONDITION: Final = re.compile(rb"\n(?:if-none-match|if-modified-since):", re.IGNORECASE)
_IDENTICAL: Final = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
_NOT_MODIFIED: Final = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


class _First(NamedTuple):
    """The record in which a payload stands."""

    record_id: str
    url: str
    date: str
    digest: str

    def named(self) -> list[tuple[str, str]]:
        """Return the headers of a record that refers to it."""
        return [
            ("WARC-Payload-Digest", self.digest),
            ("WARC-Refers-To", self.record_id),
            ("WARC-Refers-To-Target-URI", self.url),
            ("WARC-Refers-To-Date", self.date),
        ]


class WarcRecords:
    """The format of `.warc.gz`."""

    batch_max = BATCH_MAX

    def __init__(self) -> None:
        self._known: OrderedDict[str, _First] = OrderedDict()
        """Digest, or URL -> the first record with such a payload, of those that are written."""
        self._new: dict[str, _First] = {}
        """The same of what was encoded last, and may never be written."""

    def missing_at(self, file: LockedFile, offset: int) -> str:
        # The end of a member cannot be told from its last bytes; that it is a file of members at all, from its first.
        return "" if file.read(3, 0) == _GZIP else "gzip members of a WARC file at its beginning"

    def begin(self, file: LockedFile, offset: int) -> None:
        # What was cut off may be what these say is the first.
        self._known.clear()
        self._new.clear()

    def encode(self, records: Sequence[bytes], offset: int) -> bytes:
        self._new.clear()
        parts = [_warcinfo()] if offset == 0 and records else []
        for record in records:
            for exchange in decode_exchanges(record):
                parts += self._exchange(exchange)
        return b"".join(parts)

    def written(self) -> None:
        self._known |= self._new
        self._new.clear()
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _exchange(self, exchange: Exchange) -> list[bytes]:
        """Return the records of one exchange: of the answer, then of the request."""
        record_id = _new_id()
        headers = [
            ("WARC-Record-ID", record_id),
            ("WARC-Date", exchange.began_at),
            ("WARC-Target-URI", exchange.url),
        ]
        if exchange.address:
            headers.append(("WARC-IP-Address", exchange.address))
        digest = _digest(exchange.body)
        first = self._new.get(digest) or self._known.get(digest)
        block = exchange.head
        kind = "revisit"
        if exchange.status == 304:
            more = [("WARC-Profile", _NOT_MODIFIED)]
            had = self._new.get(exchange.url) or self._known.get(exchange.url)
            if had is not None:
                more += had.named()
            elif _CONDITION.search(exchange.request) is not None:
                more.append(("WARC-Refers-To-Target-URI", exchange.url))  # what it was asked for was had there
        elif exchange.body and first is not None:
            more = [("WARC-Profile", _IDENTICAL), *first.named()]
        else:
            kind, block = "response", exchange.head + exchange.body
            more = [("WARC-Payload-Digest", digest)]
            if exchange.body:
                first = self._new[digest] = _First(record_id, exchange.url, exchange.began_at, digest)
        if first is not None and exchange.status == 200 and _VALIDATOR.search(exchange.head) is not None:
            self._new[exchange.url] = first
        request = [
            ("WARC-Record-ID", _new_id()),
            ("WARC-Date", exchange.began_at),
            ("WARC-Target-URI", exchange.url),
            ("WARC-Concurrent-To", record_id),
        ]
        return [
            _record(kind, [*headers, *more], "application/http; msgtype=response", block),
            _record("request", request, "application/http; msgtype=request", exchange.request),
        ]


def _warcinfo() -> bytes:
    date = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {
        "software": f"streamcrawl/{version('streamcrawl')}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
    }
    block = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    return _record("warcinfo", [("WARC-Record-ID", _new_id()), ("WARC-Date", date)], "application/warc-fields", block)


def _record(kind: str, headers: Sequence[tuple[str, str]], content_type: str, block: bytes) -> bytes:
    """Return one record as a gzip member."""
    lines = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        *(f"{name}: {value}" for name, value in headers),
        f"WARC-Block-Digest: {_digest(block)}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(block)}",
    ]
    stream = zlib.compressobj(wbits=_GZIP_BITS)
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return b"".join((stream.compress(head), stream.compress(block), stream.compress(b"\r\n\r\n"), stream.flush()))


def _digest(data: bytes) -> str:
    """SHA-1 in base 32, as all who read such files expect: it tells contents apart, and guards nothing."""
    return "sha1:" + b32encode(sha1(data, usedforsecurity=False).digest()).decode()


def _new_id() -> str:
    return f"<urn:uuid:{uuid4()}>"
