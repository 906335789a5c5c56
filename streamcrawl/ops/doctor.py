"""What is wrong with a crawl, and what to do: a list of findings, the gravest first. It changes nothing.

A fault is something that is lost or may be, or that stands still until somebody acts; a warning costs work or becomes a
fault; a note is worth knowing. What is merely slow is for ops/why.py, of whose answer the rest is taken here. Beside
that: the audit, dead letters and given-up hosts by reason, streams that nobody reads or that are held back for long.
Redis and the machine are looked at by ops/checkup.py. Start at `crawl_findings` and `exit_code`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import ExitCode, StoreIncompatible
from streamcrawl.ops.audit import audit
from streamcrawl.ops.checkup import Area, Finding, Severity
from streamcrawl.ops.exporter import read_imbalance
from streamcrawl.ops.status import OUTPUT, STAGE, counted, number, span
from streamcrawl.ops.why import Word, read_why
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import FETCH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from streamcrawl.errors import StreamcrawlError
    from streamcrawl.ops.status import Status
    from streamcrawl.ops.why import Typed, Why
    from streamcrawl.store.shards import Shards

RUNBOOK: Final = "https://streamcrawl.readthedocs.io/en/latest/runbook.html#"
AUDIT_LINES_MAX: Final = 20
"""Faults of an audit that are listed; `streamcrawl audit` has all."""
GIVEN_UP_LOOKED_MAX: Final = 500
"""Given-up hosts of a shard that are asked why, the first ones."""
REASONS_MAX: Final = 20
LONG_MS: Final = 600_000
"""From so long on what is held back is no passing moment, as for the alerts."""
STUCK_MS: Final = 300_000
_AREAS: Final = {
    Area.AUDIT: ExitCode.AUDIT_FAILED,
    Area.REDIS: ExitCode.STORE_UNAVAILABLE,
    Area.MACHINE: ExitCode.STORE_UNAVAILABLE,
    Area.CRAWL: ExitCode.STOPPED,
    Area.LETTERS: ExitCode.WITH_DEAD_LETTERS,
}
"""The gravest first."""
_OF_CAUSES: Final[dict[Word, tuple[Severity, str]]] = {
    Word.PAUSED: (Severity.NOTE, ""),
    Word.MEMORY_FULL: (Severity.FAULT, "StreamcrawlMemoryFull"),
    Word.FRONTIER_FULL: (Severity.FAULT, "StreamcrawlFrontierFull"),
    Word.STOPPED: (Severity.FAULT, ""),
    Word.NO_WORKERS: (Severity.FAULT, "StreamcrawlNoConsumers"),
    Word.REPLAY: (Severity.FAULT, "StreamcrawlNoConsumers"),
    Word.STAGE_UNREAD: (Severity.FAULT, "StreamcrawlNoConsumers"),
    Word.OUTPUT_UNWRITTEN: (Severity.FAULT, "StreamcrawlSinkStalled"),
    Word.BUDGET: (Severity.NOTE, ""),
    Word.STALLED: (Severity.WARNING, "StreamcrawlStalled"),
    Word.FAILING: (Severity.NOTE, "StreamcrawlFetchErrors"),
    Word.WORKER_SILENT: (Severity.WARNING, "StreamcrawlLeasesLost"),
    Word.PENDING_OLD: (Severity.WARNING, "StreamcrawlPendingOld"),
    Word.MEMORY_NEAR: (Severity.WARNING, "StreamcrawlRedisMemoryNearMark"),
    Word.FRONTIER_NEAR: (Severity.WARNING, "StreamcrawlFrontierFull"),
}
"""What of `why` is wrong, rather than slow; REPLAY only where nobody is there for it, THROTTLED and SEEDS only where
they last."""
_OURS: Final = {
    "codec": "its stored bytes cannot be read: a damaged store, or a version that is too old",
    "crashed": "processes died with it in hand, at last alone: memory, or a library of a handler",
    "handler": "a handler raised, and its traceback is in the letter",
    "internal": "a fault of streamcrawl, with its traceback in the letter",
    "retry": "a handler asked for another try too often",
}
"""Dead letters for a fault on our side: the page is there, and we did not take it."""
_THEIRS: Final = {
    "host_unreachable": "the host did not answer for host_give_up: it is gone, or this network is broken",
    "robots_unreachable": "its robots.txt could not be had, so nothing of the host may be asked",
    "dns": "the name has no address: the host is gone, or a name server fails",
    "connect": "no connection came about",
    "connect_timeout": "no connection came about in time",
    "disconnected": "the host closed the connection before its answer was whole",
    "timeout": "no whole answer in time: too slow, or asked too fast",
    "body_too_slow": "its answer came more slowly than min-rate",
    "body_too_large": "its answer is larger than max-body",
    "protocol": "its answer is no HTTP that can be read",
    "too_many_redirects": "it leads on too often",
    "redirect_loop": "it leads in a circle",
    "bad_redirect": "it leads to no URL",
    "blocked_address": "its address is private, and a crawl stays out of such networks",
    "proxy_error": "the proxy does not work",
    "proxy_refused": "the proxy refuses this host",
    "http_429": "the host says it is asked too often",
}


async def crawl_findings(crawl: Shards, name: str, typed: Typed, *, is_audited: bool) -> list[Finding]:
    """Return what is wrong with one crawl.

    Args:
        typed: Commands as they can be typed here.
        is_audited: Recount it whole (every key is read), rather than compare its counts with the sizes of structures.

    Raises:
        ConfigError, CrawlGone: it was deleted meanwhile.
        StoreUnavailable: as every call of the store.
    """
    why = await read_why(crawl, name, typed=typed)
    status = why.status
    assert status is not None
    found = [one async for one in _audited(crawl, name, status, typed, is_audited=is_audited)]
    found += _of_why(why)
    found += _held_long(why, typed)
    found += _feeders(status, typed)
    found += _outputs(status, typed)
    found += _letters(status, typed)
    found += await _given_up(crawl, status, typed)
    found += _versions(status, typed)
    return [Finding(**{**_fields(one), "crawl": name}) for one in found]


def _fields(finding: Finding) -> dict[str, Any]:
    return {field: getattr(finding, field) for field in finding.__struct_fields__}


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return what a command ends with that has found these: by the gravest area that has a fault."""
    areas = {one.area for one in findings if one.severity is Severity.FAULT}
    return next((code for area, code in _AREAS.items() if area in areas), ExitCode.DONE)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the gravest first; those of one crawl stay together as far as they weigh the same."""
    severities, areas = list(Severity), list(_AREAS)
    return sorted(findings, key=lambda one: (severities.index(one.severity), areas.index(one.area), one.crawl))


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as lines of plain text."""
    lines = []
    for one in findings:
        about = one.crawl or one.area.value
        lines.append(f"{one.severity.value:<7}  {about}: {one.text}")
        lines += [f"         > {one.do}"] if one.do else []
        lines += [f"         {RUNBOOK}{one.runbook.lower()}"] if one.runbook else []
    return lines


def as_json(finding: Finding) -> dict[str, Any]:
    document = {name: str(value) for name, value in _fields(finding).items()}
    document["runbook"] = f"{RUNBOOK}{finding.runbook.lower()}" if finding.runbook else ""
    return document


def _crawl(severity: Severity, word: str, text: str, do: str = "", runbook: str = "") -> Finding:
    return Finding(severity, Area.CRAWL, word, text, do, runbook)


# -- is anything lost?


async def _audited(
    crawl: Shards, name: str, status: Status, typed: Typed, *, is_audited: bool
) -> AsyncIterator[Finding]:
    if is_audited:
        try:
            report = await audit(crawl)
        except StoreIncompatible as error:
            # A user without the right to run scripts. What plain reads show is better than nothing.
            yield _crawl(Severity.NOTE, "not_audited", f"not recounted, only its sums are compared: {error}")
        else:
            for line in report.faults[:AUDIT_LINES_MAX]:
                yield _audit(line, typed("audit", name))
            if (more := len(report.faults) - AUDIT_LINES_MAX) > 0:
                yield _audit(f"and {number(more)} more figures that do not fit", typed("audit", name))
            return
    try:
        imbalance = await read_imbalance(crawl.client, status)
        if any(imbalance.values()):
            # Once more: several shards are not read at one instant.
            imbalance = await read_imbalance(crawl.client, status)
    except StoreIncompatible as error:
        yield _crawl(Severity.NOTE, "not_compared", f"its counts were not compared with its structures: {error}")
        return
    for (stage, check), count in imbalance.items():
        if count:
            text = f"{stage}: its {check} differ by {number(count)} from what is counted"
            yield _audit(text, typed("audit", name))


def _audit(text: str, do: str) -> Finding:
    return Finding(Severity.FAULT, Area.AUDIT, "unbalanced", text, do, "StreamcrawlAuditUnbalanced")


# -- does anything stand still?


def _of_why(why: Why) -> Iterator[Finding]:
    for cause in why.causes:
        if cause.word in _OF_CAUSES and (cause.is_stop or cause.word is not Word.REPLAY):
            severity, runbook = _OF_CAUSES[cause.word]
            yield _crawl(severity, cause.word.value, cause.text, cause.do, runbook)


def _held_long(why: Why, typed: Typed) -> Iterator[Finding]:
    for cause in why.causes:
        if cause.word is Word.THROTTLED and (cause.for_ms or 0) >= LONG_MS:
            text = f"{cause.text}, for {span(cause.for_ms or 0)}"
            yield _crawl(Severity.WARNING, "throttled", text, cause.do, "StreamcrawlStageFull")
    status = why.status
    if status is not None and status.hosts_giving_up and not status.is_alive:
        text = (
            f"{counted(status.hosts_giving_up, 'host')} given up, whose queues nobody empties while no worker is alive"
        )
        yield _crawl(Severity.NOTE, "giving_up", text, typed.start)


def _feeders(status: Status, typed: Typed) -> Iterator[Finding]:
    for feeder in status.feeders:
        if not feeder.is_alive and not status.is_closed:
            ago = "" if feeder.sign_age_ms is None else f" ({span(feeder.sign_age_ms)} ago)"
            text = f"{feeder.name} ended before all its seeds were in{ago}: the crawl does not end without them"
            do = f"the same `streamcrawl seed` again goes on at its cursor; without it: {typed('close', status.name)}"
            yield _crawl(Severity.WARNING, "feeder_dead", text, do)


def _outputs(status: Status, typed: Typed) -> Iterator[Finding]:
    for stage in status.stages[1:]:
        is_read = any(one.stage == stage.stage and status.lives(one) for one in status.workers)
        age = stage.oldest_pending_ms or stage.oldest_waiting_ms or 0
        if not is_read or age < STUCK_MS:
            continue
        if stage.kind == OUTPUT:
            path = next((one.path for one in status.sinks if one.name == stage.stage), "") or stage.stage
            text = f"the output {path} has not written a record for {span(age)}, and {number(stage.waiting)} wait"
            do = f"see its worker's log; {typed('pending', 'ls', status.name, '--stage', f'{FETCH}:{stage.stage}')}"
            yield _crawl(Severity.WARNING, "output_stuck", text, do, "StreamcrawlSinkStalled")
        elif not stage.is_over and stage.oldest_pending_ms is not None and stage.oldest_pending_ms >= LONG_MS:
            text = f"stage {stage.stage} has an item in hand for {span(stage.oldest_pending_ms)}"
            do = typed("pending", "ls", status.name, "--stage", stage.stage)
            yield _crawl(Severity.WARNING, "stage_stuck", text, do, "StreamcrawlPendingOld")


# -- what failed for good?


def _letters(status: Status, typed: Typed) -> Iterator[Finding]:
    by_reason = status.by_reason("dead")
    for reason, count in list(by_reason.items())[:REASONS_MAX]:
        is_ours = reason in _OURS
        means = f": {meaning}" if (meaning := meaning_of(reason)) else ""
        look = typed("dead", "ls", status.name, "--where", f"reason={reason}")
        again = typed("dead", "replay", status.name, "--where", f"reason={reason}")
        severity = Severity.FAULT if is_ours else Severity.WARNING
        text = f"{counted(count, 'dead letter')} by {reason}{means}"
        runbook = "StreamcrawlWorkersCrashing" if reason == "crashed" else "StreamcrawlDeadLettersRising"
        yield Finding(severity, Area.LETTERS, "dead_letters", text, f"{look}; when it is mended: {again}", runbook)
    if len(by_reason) > REASONS_MAX:
        text = f"and dead letters by {number(len(by_reason) - REASONS_MAX)} more reasons"
        do = typed("dead", "ls", status.name, "--by", "reason")
        yield Finding(Severity.WARNING, Area.LETTERS, "dead_letters", text, do, "StreamcrawlDeadLettersRising")


def meaning_of(reason: str) -> str:
    """Return what a reason of dead letters means; '' for one of a program."""
    known = _OURS.get(reason) or _THEIRS.get(reason)
    if known is None and re.fullmatch(r"http_\d{3}", reason):
        return f"the host answered {reason.removeprefix('http_')} to every try"
    if known is None and reason.startswith("tls"):
        return "no secure connection: an expired, foreign or wrong certificate"
    return known or ""


async def _given_up(crawl: Shards, status: Status, typed: Typed) -> list[Finding]:
    if not status.hosts_given_up:
        return []
    why: Counter[str] = Counter()
    for frontier in crawl:
        with mapped_errors():
            hosts: Any = await frontier.client.zrange(frontier.keys.given_up, 0, GIVEN_UP_LOOKED_MAX - 1)
        if not hosts:
            continue
        async with frontier.client.pipeline(transaction=False) as pipe:
            for host in hosts:
                pipe.hget(frontier.keys.host(host.decode("utf-8", "replace")), "given_up")
            with mapped_errors():
                why.update((reason or b"since forgiven").decode("utf-8", "replace") for reason in await pipe.execute())
    looked = sum(why.values())
    of = (
        f" (of {number(looked)} looked at, of {number(status.hosts_given_up)})"
        if looked < status.hosts_given_up
        else ""
    )
    named = ", ".join(status.given_up[:3]) + (" …" if status.hosts_given_up > 3 else "")
    found = []
    for reason, count in why.most_common():
        means = f": {_THEIRS[reason]}" if reason in _THEIRS else ""
        text = f"{counted(count, 'host')} given up by {reason}{of}{means} ({named})"
        do = typed("dead", "replay", status.name, "--where", f"reason={reason}")
        found.append(Finding(Severity.WARNING, Area.LETTERS, "given_up", text, do, "StreamcrawlHostsGivenUp"))
    return found


# -- do they agree?


def _versions(status: Status, typed: Typed) -> Iterator[Finding]:
    versions = sorted({shard.version for shard in status.shards})
    if len(versions) > 1:
        text = f"its shards have settings of versions {', '.join(map(str, versions))}: a change is on its way, or stuck"
        yield _crawl(Severity.WARNING, "settings_differ", text, typed("settings", "show", status.name))
    read: dict[str, list[str]] = {}
    for stage in status.stages:
        base, _, version = stage.stage.partition("@")
        if stage.kind == STAGE and stage.slots:
            read.setdefault(base, []).append(version or "without one")
    for base, own in read.items():
        if len(own) > 1:
            text = f"workers of {len(own)} versions of stage {base} are at work: {', '.join(sorted(own))}"
            yield _crawl(Severity.NOTE, "versions", text, typed("status", status.name))


def gone(name: str, error: StreamcrawlError) -> Finding:
    """Return the finding that a crawl cannot be looked at."""
    return Finding(Severity.FAULT, Area.CRAWL, "unreadable", f"it cannot be looked at: {error}", crawl=name)
