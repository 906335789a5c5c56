"""TLS: what is wrong with a certificate is said by name, and taken all the same only where that was asked for."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from aiohttp import web

from streamcrawl.errors import TlsError
from streamcrawl.settings import make_settings
from streamcrawl.web.fetcher import Fetcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

import asyncio

CERTIFICATES: Final = Path(__file__).resolve().parents[1] / "certs"
FAULTS: Final = {
    "good": ("", ""),
    "expired": ("tls_expired", "its certificate has expired"),
    "wrong_host": ("tls_wrong_host", "its certificate is for another"),
    "self_signed": ("tls_self_signed", "its certificate is self-signed"),
    "unknown_authority": ("tls_unknown_authority", "its certificate was issued by an authority that is not known"),
}
_FETCH: Final = """
import asyncio, json, sys
from streamcrawl.errors import FetchError
from streamcrawl.settings import make_settings
from streamcrawl.web.fetcher import Fetcher

async def main():
    said = []
    async with Fetcher(make_settings("tls", {}, allow_private=True)) as fetcher:
        for url in sys.argv[1:]:
            try:
                said.append(((await fetcher.fetch(url)).status, ""))
            except FetchError as error:
                said.append((error.kind, str(error)))
    print(json.dumps(said))

asyncio.run(main())
"""
"""In a process of its own: OpenSSL reads whom to trust when aiohttp is imported."""


@asynccontextmanager
async def serving(certificate: str) -> AsyncIterator[str]:
    """Serve with a certificate of tests/certs; yields the origin."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / "key.pem")
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_each_fault_of_a_certificate_has_its_own_name_and_text() -> None:
    async with (
        serving("good") as good,
        serving("expired") as expired,
        serving("wrong_host") as wrong_host,
        serving("self_signed") as self_signed,
        serving("unknown_authority") as unknown,
    ):
        origins = [good, expired, wrong_host, self_signed, unknown]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _FETCH,
            *(f"{origin}/" for origin in origins),
            stdout=subprocess.PIPE,
            env={**os.environ, "SSL_CERT_FILE": str(CERTIFICATES / "ca.pem")},
        )
        out, _ = await process.communicate()
    said = dict(zip(FAULTS, json.loads(out), strict=True))
    assert said.pop("good") == [200, ""]
    for fault, (kind, text) in said.items():
        assert kind == FAULTS[fault][0]
        assert FAULTS[fault][1] in text
        assert text.startswith("no secure connection to 127.0.0.1:")


@pytest.mark.parametrize("certificate", FAULTS)
async def test_insecure_takes_any_certificate_from_the_next_connection_on(certificate: str) -> None:
    strict = make_settings("tls", {}, allow_private=True)
    async with serving(certificate) as origin, Fetcher(strict) as fetcher:
        with pytest.raises(TlsError) as caught:
            await fetcher.fetch(f"{origin}/")
        assert caught.value.is_unanswered
        fetcher.apply(make_settings("tls", {}, allow_private=True, insecure=True))
        assert (await fetcher.fetch(f"{origin}/")).body == b"hello"
        fetcher.apply(strict)
        with pytest.raises(TlsError):
            await fetcher.fetch(f"{origin}/")
