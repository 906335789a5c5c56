"""A fetched page on its way to a stage of its own: what was answered, as an item.

Its body travels in the entry, compressed: it is written with the entry, moved with it, and gone with it; in a dead
letter too, from where it is parsed again without a fetch. A key of its own could be lost, or left over.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from streamcrawl.errors import CodecError
from streamcrawl.response import Response
from streamcrawl.rules.task import Ask, CrawlTask
from streamcrawl.rules.urls import split_url
from streamcrawl.web.fetcher import Answer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from streamcrawl.work.program import Item

_IN_THREAD_BYTES: Final = 200_000
"""A larger body is compressed beside the loop: below, that takes half a millisecond."""


class FetchedPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a Response is made of again."""

    final_url: str
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    """zstd."""
    content_type: str | None
    charset: str | None
    elapsed_ms: int
    attempt: int = 1
    referrer: str | None = None
    redirects: list[str] = []
    label: str = ""
    meta: Any = None


async def pack_page(task: CrawlTask, answer: Answer, hops: list[str]) -> bytes:
    """Return a page as the JSON of an item; its URL and depth are those of the item."""
    if len(answer.body) > _IN_THREAD_BYTES:
        body = await asyncio.to_thread(zstd.compress, answer.body)
    else:
        body = zstd.compress(answer.body)
    return msgspec.json.encode(
        FetchedPage(
            final_url=answer.url,
            status=answer.status,
            # aiohttp keeps bytes that are no UTF-8 as surrogates, which JSON does not take.
            headers=[(str(name), value.encode("utf-8", "replace").decode()) for name, value in answer.headers.items()],
            body=body,
            content_type=answer.content_type,
            charset=answer.charset_header,
            elapsed_ms=answer.elapsed_ms,
            attempt=task.attempt,
            referrer=task.referrer,
            redirects=[*task.redirects, *hops],
            label=task.ask.label,
            meta=task.ask.meta,
        )
    )


def unpack_page(item: Item, *, links_max: int) -> Response:
    """Return the page of an item.

    Raises:
        CodecError: it holds none.
    """
    try:
        page = msgspec.json.decode(item.raw, type=FetchedPage)
        host, path = split_url(item.url)
        body = zstd.decompress(page.body)
    except (msgspec.MsgspecError, ValueError, zstd.ZstdError) as error:
        raise CodecError(f"stored page cannot be read: {error}") from error
    task = CrawlTask(
        host=host,
        path=path,
        depth=item.depth,
        attempt=page.attempt,
        referrer=page.referrer,
        redirects=tuple(page.redirects),
        ask=Ask(label=page.label, meta=page.meta),
    )
    answer = Answer(
        url=page.final_url,
        status=page.status,
        headers=CIMultiDictProxy(CIMultiDict(page.headers)),
        body=body,
        content_type=page.content_type,
        charset_header=page.charset,
        location=None,
        elapsed_ms=page.elapsed_ms,
        ended_at=0.0,
        retry_after=None,
    )
    return Response(task, answer, links_max=links_max)
