"""The pure parts of web/fetcher.py: what each error of aiohttp means, and how Content-Type is read."""

from __future__ import annotations

import inspect
import socket
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import client_exceptions
from aiohttp.http_exceptions import ContentLengthError

from streamcrawl.errors import (
    ConnectError,
    ConnectTimeout,
    Disconnected,
    DnsError,
    FetchError,
    FetchTimeout,
    ProtocolError,
    TlsError,
)
from streamcrawl.web.fetcher import _ERRORS, MESSAGE_MAX, ContentType, fetch_error, split_content_type

URL = "http://example.org/a"
KEY: Any = SimpleNamespace(host="example.org", port=443, ssl=True, is_ssl=True)
NEVER_RAISED = {"WSServerHandshakeError", "WSMessageTypeError", "UploadAbortedError"}
"""Of websockets and of request bodies: the fetcher has neither."""


def test_every_exception_of_aiohttp_is_mapped() -> None:
    raised = {
        cls
        for name, cls in inspect.getmembers(client_exceptions, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__ == client_exceptions.__name__ and name not in NEVER_RAISED
    }
    assert len(raised) > 20
    unmapped = {cls.__name__ for cls in raised - _ERRORS.keys()}
    assert not unmapped


def payload_error(cause: Exception) -> client_exceptions.ClientPayloadError:
    error = client_exceptions.ClientPayloadError("the body broke")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (client_exceptions.ClientConnectorDNSError(KEY, OSError(None, "Domain name not found")), DnsError),
        (UnicodeError("label too long"), DnsError),
        (client_exceptions.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")), ConnectError),
        (client_exceptions.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version number")), TlsError),
        (
            client_exceptions.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "self-signed")),
            TlsError,
        ),
        (client_exceptions.ConnectionTimeoutError("slow"), ConnectTimeout),
        (client_exceptions.SocketTimeoutError("slow"), FetchTimeout),
        (TimeoutError(), FetchTimeout),
        (client_exceptions.ServerDisconnectedError(), Disconnected),
        (client_exceptions.ClientOSError(104, "reset"), Disconnected),
        (client_exceptions.ClientConnectionResetError("Cannot write to closing transport"), Disconnected),
        (socket.herror(), Disconnected),
        (payload_error(ContentLengthError("short")), Disconnected),
        (client_exceptions.InvalidUrlClientError("http://"), ProtocolError),
        (client_exceptions.ClientError("some new one"), ProtocolError),
    ],
)
def test_an_error_gets_its_class(error: Exception, expected: type[FetchError]) -> None:
    mapped = fetch_error(error, URL, is_unanswered=False)
    assert type(mapped) is expected
    assert mapped.url == URL


def test_silence_is_told_from_a_broken_answer() -> None:
    for error in (TimeoutError(), client_exceptions.ServerDisconnectedError()):
        assert fetch_error(error, URL, is_unanswered=True).is_unanswered
        assert not fetch_error(error, URL, is_unanswered=False).is_unanswered
    refused = client_exceptions.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused"))
    assert fetch_error(refused, URL, is_unanswered=True).is_unanswered


def test_a_wrong_url_is_not_worth_a_retry() -> None:
    assert not fetch_error(client_exceptions.InvalidURL("x"), URL, is_unanswered=True).is_retryable
    assert not fetch_error(client_exceptions.NonHttpUrlClientError("x"), URL, is_unanswered=True).is_retryable
    assert fetch_error(client_exceptions.ClientError("x"), URL, is_unanswered=True).is_retryable


def test_a_message_is_one_bounded_line() -> None:
    error = client_exceptions.ClientOSError(f"first\nsecond\r\n{'x' * 1000}")
    message = str(fetch_error(error, URL, is_unanswered=False))
    assert message.startswith("first second xxx")
    assert len(message) == MESSAGE_MAX


def test_a_failed_connection_says_where_and_why() -> None:
    refused = client_exceptions.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused"))
    assert str(fetch_error(refused, URL, is_unanswered=True)) == "cannot connect to example.org:443: refused"
    nameless = client_exceptions.ClientConnectorError(KEY, ConnectionResetError())
    assert str(fetch_error(nameless, URL, is_unanswered=True)).endswith(": ConnectionResetError")
    unknown = client_exceptions.ClientConnectorDNSError(KEY, OSError(None, "Domain name not found"))
    expected = "cannot resolve example.org:443: Domain name not found"
    assert str(fetch_error(unknown, URL, is_unanswered=True)) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, ContentType(None, None)),
        ("", ContentType(None, None)),
        (";charset=utf-8", ContentType(None, "utf-8")),
        ("text/html", ContentType("text/html", None)),
        (" Text/HTML ; Charset=UTF-8", ContentType("text/html", "UTF-8")),
        ('text/html; charset="utf-8"', ContentType("text/html", "utf-8")),
        ("text/html; charset='utf-8'; x=y", ContentType("text/html", "utf-8")),
        ("text/html; x-charset=no", ContentType("text/html", None)),
        ("text/html;boundary=a;charset = koi8-r", ContentType("text/html", "koi8-r")),
        ("text/html; charset=", ContentType("text/html", None)),
        ("text/caf\udce9", ContentType(None, None)),
    ],
)
def test_content_type_is_split(header: str | None, expected: ContentType) -> None:
    assert split_content_type(header) == expected
