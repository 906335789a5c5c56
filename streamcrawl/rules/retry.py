"""What happens to a task after a fetch: is it done, tried again, or dead?

Pure arithmetic: no clock and no dice of its own, so the caller passes the jitter. Start at `decide_status` (the server
answered) or `decide_error` (it did not). Neither counts attempts nor backs a silent host off: whether an error of the
network concerns the task or its whole host is the worker's question (`FetchError.is_unanswered`), and it comes first.

Sources: RFC 9110 sections 15.5, 15.6 and 10.2.3; RFC 6585 section 4 (429); RFC 8470 section 5.2 (425). Full jitter, as
in Exponential Backoff And Jitter (AWS Architecture Blog, 2015): tasks that failed together do not come back together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from streamcrawl.rules.politeness import refusal_of

if TYPE_CHECKING:
    from streamcrawl.errors import FetchError
    from streamcrawl.settings import Settings

_RETRIED_4XX: Final = frozenset({408, 425, 429})
_NOT_RETRIED_5XX: Final = frozenset({501, 505})
"""Not Implemented and HTTP Version Not Supported speak of how we ask, and we would ask the same way again."""
_DOUBLINGS_MAX: Final = 40
"""2**40 ms is 35 years: beyond any maximum, and no integer grows without end."""


class Verdict(StrEnum):
    """What the commit of a fetch does with its task."""

    RETRY = "retry"
    DEAD = "dead"
    DONE = "done"


class RetryPolicy(msgspec.Struct, frozen=True):
    """The settings these decisions need."""

    attempts_max: int
    base_ms: int
    max_ms: int
    retry_after_max_ms: int

    @classmethod
    def from_settings(cls, settings: Settings) -> RetryPolicy:
        return cls(settings.attempts_max, settings.retry_base_ms, settings.retry_max_ms, settings.retry_after_max_ms)


class Decision(msgspec.Struct, frozen=True):
    """A verdict with what is needed to carry it out."""

    verdict: Verdict
    delay_ms: int
    """Until the next attempt; 0 unless the verdict is RETRY."""
    reason: str
    """`http_503`, or the `kind` of the error: the word that dead letters are counted by."""
    block_ms: int
    """How long the whole host must be left alone, whatever the verdict; 0 for not at all."""


def backoff_ms(failures: int, base_ms: int, max_ms: int) -> int:
    """Return `base_ms` doubled for each failure after the first, at most `max_ms`; 0 for no failure."""
    if failures <= 0:
        return 0
    return min(max_ms, base_ms << min(failures - 1, _DOUBLINGS_MAX))


def decide_status(
    status: int, *, attempt: int, retry_after_ms: int | None, policy: RetryPolicy, jitter: float
) -> Decision:
    """Decide after an answer that is not followed as a redirect.

    408, 425, 429 and 5xx (but 501 and 505) are tried again, after `jitter` times a wait that doubles with each
    attempt, and are dead with the last one. Every other status is an answer: DONE, and its record says which.
    A Retry-After, up to the policy's cap, holds the task at least that long, and the host too. It counts for every
    status but 2xx, where it has no meaning: rate limits are announced with 403 as well. 429 and 503 without one
    hold the host for the task's own wait.

    Args:
        attempt: Which try this was, from 1.
        retry_after_ms: The header's value as a duration (`politeness.parse_retry_after_ms`); None if there was none.
        jitter: A random number, 0 <= jitter < 1.
    """
    reason = f"http_{status}"
    is_retried = status in _RETRIED_4XX or (500 <= status <= 599 and status not in _NOT_RETRIED_5XX)
    asked_ms = 0 if retry_after_ms is None or 200 <= status <= 299 else min(retry_after_ms, policy.retry_after_max_ms)
    if not is_retried:
        return Decision(Verdict.DONE, 0, reason, asked_ms)
    delay_ms = max(asked_ms, _jittered_backoff_ms(attempt, policy, jitter))
    block_ms = delay_ms if refusal_of(status) is not None and retry_after_ms is None else asked_ms
    if attempt >= policy.attempts_max:
        return Decision(Verdict.DEAD, 0, reason, block_ms)
    return Decision(Verdict.RETRY, delay_ms, reason, block_ms)


def decide_error(error: FetchError, *, attempt: int, policy: RetryPolicy, jitter: float) -> Decision:
    """Decide after a fetch that brought no usable answer; the reason is the error's `kind`."""
    if not error.is_retryable or attempt >= policy.attempts_max:
        return Decision(Verdict.DEAD, 0, error.kind, 0)
    return Decision(Verdict.RETRY, _jittered_backoff_ms(attempt, policy, jitter), error.kind, 0)


def _jittered_backoff_ms(attempt: int, policy: RetryPolicy, jitter: float) -> int:
    return int(jitter * backoff_ms(attempt, policy.base_ms, policy.max_ms))
