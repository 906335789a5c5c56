"""Done, again, or dead: the decision after a fetch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.errors import (
    BodyTooLarge,
    ConnectError,
    DnsError,
    FetchError,
    FetchTimeout,
    ProtocolError,
    RedirectLoop,
)
from streamcrawl.rules.retry import Decision, RetryPolicy, Verdict, backoff_ms, decide_error, decide_status
from streamcrawl.settings import make_settings

POLICY = RetryPolicy(attempts_max=3, base_ms=1000, max_ms=5000, retry_after_max_ms=60_000)


def after(status: int, attempt: int = 1, retry_after_ms: int | None = None, jitter: float = 0.5) -> Decision:
    return decide_status(status, attempt=attempt, retry_after_ms=retry_after_ms, policy=POLICY, jitter=jitter)


@pytest.mark.parametrize("status", [200, 204, 206, 301, 304, 400, 401, 403, 404, 410, 418, 451, 501, 505, 999])
def test_answer_is_an_end(status: int) -> None:
    assert after(status) == Decision(Verdict.DONE, 0, f"http_{status}", 0)
    assert after(status, attempt=3).verdict is Verdict.DONE


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507, 520, 599])
def test_trouble_of_the_server_is_tried_again_until_attempts_are_used_up(status: int) -> None:
    assert after(status, attempt=1).verdict is Verdict.RETRY
    assert after(status, attempt=2).verdict is Verdict.RETRY
    last = after(status, attempt=3)
    assert (last.verdict, last.delay_ms, last.reason) == (Verdict.DEAD, 0, f"http_{status}")


@pytest.mark.parametrize(("attempt", "expected_ms"), [(1, 500), (2, 1000), (3, 2000), (4, 2500), (1000, 2500)])
def test_wait_doubles_up_to_the_maximum(attempt: int, expected_ms: int) -> None:
    policy = RetryPolicy(attempts_max=10_000, base_ms=1000, max_ms=5000, retry_after_max_ms=0)
    decision = decide_status(500, attempt=attempt, retry_after_ms=None, policy=policy, jitter=0.5)
    assert decision == Decision(Verdict.RETRY, expected_ms, "http_500", 0)


def test_jitter_covers_the_whole_wait() -> None:
    assert after(500, jitter=0.0).delay_ms == 0
    assert after(500, jitter=0.999).delay_ms == 999


@pytest.mark.parametrize("status", [429, 503])
def test_overloaded_host_is_left_alone_even_without_retry_after(status: int) -> None:
    assert after(status).block_ms == after(status).delay_ms == 500
    assert after(status, attempt=3).block_ms == 2000


def test_retry_after_holds_the_task_and_its_host() -> None:
    assert after(503, retry_after_ms=20_000) == Decision(Verdict.RETRY, 20_000, "http_503", 20_000)
    assert after(500, retry_after_ms=20_000) == Decision(Verdict.RETRY, 20_000, "http_500", 20_000)


def test_retry_after_shorter_than_the_backoff_blocks_the_host_only_that_long() -> None:
    assert after(503, retry_after_ms=100) == Decision(Verdict.RETRY, 500, "http_503", 100)
    assert after(503, retry_after_ms=0) == Decision(Verdict.RETRY, 500, "http_503", 0)


def test_retry_after_is_capped() -> None:
    assert after(429, retry_after_ms=10**12) == Decision(Verdict.RETRY, 60_000, "http_429", 60_000)


def test_retry_after_blocks_the_host_when_the_task_ends_too() -> None:
    assert after(429, attempt=3, retry_after_ms=9000) == Decision(Verdict.DEAD, 0, "http_429", 9000)
    assert after(403, retry_after_ms=9000) == Decision(Verdict.DONE, 0, "http_403", 9000)


def test_retry_after_of_a_success_has_no_meaning() -> None:
    assert after(200, retry_after_ms=9000) == Decision(Verdict.DONE, 0, "http_200", 0)


@given(
    status=st.integers(100, 999),
    attempt=st.integers(1, 10**6),
    retry_after_ms=st.none() | st.integers(0, 10**15),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_every_decision_is_within_its_bounds(
    status: int, attempt: int, retry_after_ms: int | None, jitter: float
) -> None:
    decision = after(status, attempt, retry_after_ms, jitter)
    assert 0 <= decision.delay_ms <= max(POLICY.max_ms, POLICY.retry_after_max_ms)
    assert 0 <= decision.block_ms <= max(POLICY.max_ms, POLICY.retry_after_max_ms)
    assert (decision.verdict is Verdict.RETRY) <= (attempt < POLICY.attempts_max)
    assert decision.verdict is Verdict.RETRY or decision.delay_ms == 0


@pytest.mark.parametrize(
    "error", [DnsError("x"), ConnectError("x"), FetchTimeout("x"), ProtocolError("x"), FetchError("x")]
)
def test_passing_error_is_tried_again(error: FetchError) -> None:
    assert decide_error(error, attempt=2, policy=POLICY, jitter=0.5) == Decision(Verdict.RETRY, 1000, error.kind, 0)
    assert decide_error(error, attempt=3, policy=POLICY, jitter=0.5) == Decision(Verdict.DEAD, 0, error.kind, 0)


@pytest.mark.parametrize("error", [BodyTooLarge("x"), RedirectLoop("x")])
def test_lasting_error_is_dead_at_once(error: FetchError) -> None:
    assert decide_error(error, attempt=1, policy=POLICY, jitter=0.5) == Decision(Verdict.DEAD, 0, error.kind, 0)


def test_backoff_of_no_failure_is_nothing() -> None:
    assert backoff_ms(0, 1000, 5000) == 0
    assert backoff_ms(-1, 1000, 5000) == 0


def test_policy_is_that_of_the_settings() -> None:
    settings = make_settings(name="t", attempts_max=7, retry_base_ms=1, retry_max_ms=2, retry_after_max_ms=3)
    assert RetryPolicy.from_settings(settings) == RetryPolicy(7, 1, 2, 3)
