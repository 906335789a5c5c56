"""The exceptions of streamcrawl, cut by what the caller does next.

A `ConfigError` is mended by the person who typed it, a `StoreError` by waiting or by an operator, a `LeaseLost`
by dropping the result, a `FetchError` by the retry rule. Expected ends of a task (robots denial, duplicate, 404)
are values of `Outcome` (rules/task.py), never exceptions. Errors of aiohttp and redis-py are mapped to these where
they enter (web/fetcher.py, store/connection.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What every command of `streamcrawl` ends with."""

    DONE = 0
    USAGE = 2
    STOPPED = 3
    """Stopped before the end by a limit or a signal; the same command resumes."""
    WITH_DEAD_LETTERS = 4
    """Done, but some tasks are dead or their hosts were given up."""
    STORE_UNAVAILABLE = 5
    AUDIT_FAILED = 6


class StreamcrawlError(Exception):
    """Base of every error this package raises on purpose. `str(error)` is one line that says what would mend it."""

    exit_code: ExitCode = ExitCode.USAGE


class ConfigError(StreamcrawlError):
    """Wrong before we start: names the setting, its value and what would do."""


class Unfit(ConfigError):
    """What a handler asks for cannot be had in this run, whatever its page: something is not installed here, or nothing
    takes its items. The workers end with this line, and hand back what they have."""


class StoreError(StreamcrawlError):
    """Something is wrong with Redis, seen from here."""

    exit_code = ExitCode.STORE_UNAVAILABLE


class StoreUnavailable(StoreError):
    """Redis does not answer now; whoever sees this backs off and goes on. The command may have been executed."""


class StoreFull(StoreError):
    """Redis refused a write that needs memory (OOM)."""


class StoreIncompatible(StoreError):
    """A server we refuse: version, eviction policy, topology or permission. Waiting does not mend it."""


class CrawlGone(StoreError):
    """The crawl was deleted or started afresh: this worker's epoch is over. It exits and writes nothing."""


class QueueGone(StoreError):
    """The TaskQueue was deleted, or its Redis flushed: this object of it is over."""


class QueueClosed(StreamcrawlError):
    """A put after `close()`; or a get after it, once all that was accepted is settled: the consumer ends."""


class LeaseLost(StreamcrawlError):
    """Another worker has, or had, the entry: drop the result and count it."""


class CodecError(StreamcrawlError):
    """Stored bytes that cannot be read: a dead letter at once, never retried."""


class FetchError(StreamcrawlError):
    """A fetch that brought no usable answer.

    `kind` is the closed set of words used in dead letters and metrics. `is_unanswered` says that nothing of the
    host answered at all (it may be down as a whole), rather than that this one URL went wrong.
    """

    kind = "fetch"
    is_retryable = True
    is_unanswered = False

    def __init__(self, message: str, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class DnsError(FetchError):
    kind = "dns"
    is_unanswered = True


class ConnectError(FetchError):
    kind = "connect"
    is_unanswered = True


class BlockedAddress(FetchError):
    """The host is at an address that this crawl must not connect to (web/address_guard.py). Nothing was sent."""

    kind = "blocked_address"
    is_retryable = False


class ProxyError(FetchError):
    """The proxy itself failed: neither the page nor its host is to blame, so nothing is counted against them."""

    kind = "proxy_error"

    def __init__(self, message: str, url: str = "", *, wait_ms: int = 0) -> None:
        super().__init__(message, url)
        self.wait_ms = wait_ms
        """Until another try makes sense."""


class ProxyRefused(FetchError):
    """The proxy works, and does not let us through to this host."""

    kind = "proxy_refused"
    is_retryable = False


class TlsError(FetchError):
    """No secure connection came about. `kind` says on the instance what is wrong with a certificate."""

    kind = "tls"
    is_unanswered = True

    CERTIFICATE_KINDS: ClassVar = (
        "tls_expired",
        "tls_not_yet_valid",
        "tls_self_signed",
        "tls_unknown_authority",
        "tls_wrong_host",
    )
    """What may be wrong with a certificate, beside `tls` for anything else."""

    def __init__(self, message: str, url: str = "", *, kind: str = "tls") -> None:
        super().__init__(message, url)
        self.kind = kind


class FetchTimeout(FetchError):
    """The total, connect or read limit passed. `is_unanswered` is set on the instance when no byte had come."""

    kind = "timeout"

    def __init__(self, message: str, url: str = "", *, is_unanswered: bool = False) -> None:
        super().__init__(message, url)
        self.is_unanswered = is_unanswered


class ConnectTimeout(FetchTimeout):
    """No connection came about in time: the host's fault and never one URL's."""

    kind = "connect_timeout"

    def __init__(self, message: str, url: str = "", *, is_unanswered: bool = True) -> None:
        super().__init__(message, url, is_unanswered=True)


class BodyTooSlow(FetchTimeout):
    """The body came at less than the least rate: a drip that would hold its slot up to the total limit."""

    kind = "body_too_slow"


class Disconnected(FetchError):
    """The connection broke or was reset in the middle; `is_unanswered` when before the first byte of the answer."""

    kind = "disconnected"

    def __init__(self, message: str, url: str = "", *, is_unanswered: bool = False) -> None:
        super().__init__(message, url)
        self.is_unanswered = is_unanswered


class BodyTooLarge(FetchError):
    kind = "body_too_large"
    is_retryable = False


class TooManyRedirects(FetchError):
    kind = "too_many_redirects"
    is_retryable = False


class RedirectLoop(FetchError):
    kind = "redirect_loop"
    is_retryable = False


class BadRedirect(FetchError):
    """A redirect without a usable Location, or to a URL that is none."""

    kind = "bad_redirect"
    is_retryable = False


class ProtocolError(FetchError):
    """What came back is not HTTP, or its encoding is broken."""

    kind = "protocol"


def fetch_error_kinds() -> tuple[str, ...]:
    """Return every `kind` that a FetchError can have, sorted: the closed set that metrics count by."""
    kinds = {*TlsError.CERTIFICATE_KINDS}
    classes: list[type[FetchError]] = [FetchError]
    while classes:
        error = classes.pop()
        kinds.add(error.kind)
        classes += error.__subclasses__()
    return tuple(sorted(kinds))


class StageError(StreamcrawlError):
    """The work after the fetch failed."""

    def __init__(self, message: str, *, stage: str, url: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.url = url


class ParseError(StageError):
    pass


class StartError(StageError):
    """What a program opens at the start of a worker could not be opened; the next worker tries again."""


class SinkError(StageError):
    """A sink could not write. The batch stays unacknowledged; nothing is lost."""
