"""What a crawl says when it stops: how far it came, what failed and where, and what to do next.

Pure: built from a `Status` (ops/status.py) and the word with which the supervisor ended. Start at `summary_lines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import ExitCode
from streamcrawl.ops.progress import clock
from streamcrawl.ops.status import STAGE, counted, number, reasons, stopped_because

if TYPE_CHECKING:
    from streamcrawl.ops.status import Status

_ENDINGS: Final = {
    "ENDED": "complete",
    "LIMIT": "stopped at --max-pages",
    "STOPPED": "stopped",
    "PAUSED": "paused",
    "INTERRUPTED": "interrupted",
    "UNFED": "all that is known is done, but a command ended before it had given all of its seeds; give them again",
    "UNBALANCED": "ended, and its counts do not balance",
    "GONE": "deleted by someone else while it ran",
    "UNAVAILABLE": "given up, the store does not answer",
}


class Run(msgspec.Struct, frozen=True):
    """What this run of the crawl did, beside what the store has."""

    word: str
    """As Supervisor.run returns it."""
    elapsed_s: float
    pages_before: int
    """Pages that were done when it began."""
    resume: str
    """The command that goes on with it."""
    more: str
    """What to do for more pages than --max-pages."""
    tune: str = ""
    """The commands that change a setting, with {} for NAME=VALUE, and let the crawl go on; '' where options do."""


def exit_code(word: str, status: Status) -> ExitCode:
    """Return the exit code of a crawl that ended with `word`."""
    match word:
        case "ENDED":
            has_failures = status.dead_letters > 0 or bool(status.given_up) or _parked(status) > 0
            return ExitCode.WITH_DEAD_LETTERS if has_failures else ExitCode.DONE
        case "UNBALANCED":
            return ExitCode.AUDIT_FAILED
        case "UNAVAILABLE" | "GONE":
            return ExitCode.STORE_UNAVAILABLE
    return ExitCode.STOPPED


def _parked(status: Status) -> int:
    """Return the pages that blocked hosts keep: of a crawl that has ended, all that are left in queues."""
    return status.page("queued") if status.hosts_blocked else 0


def summary_lines(run: Run, status: Status) -> list[str]:
    """Return the closing summary as lines of plain text."""
    fetched = status.page("done") - run.pages_before
    rate = fetched / run.elapsed_s if run.elapsed_s > 0 else 0.0
    lines = [
        f"crawl {status.name}: {_ending(run, status)}",
        f"  {counted(fetched, 'page')} in {clock(run.elapsed_s)}, {rate:.1f}/s"
        + (f"; {number(status.page('done'))} in all" if run.pages_before else ""),
    ]
    left = status.page("queued") + status.page("streamed") + status.page("delayed")
    if left:
        lines.append(f"  {number(left)} still to fetch")
    for stage in status.stages:
        if stage.kind == STAGE:
            to_do = stage.waiting + stage.pending + stage.delayed
            lines.append(
                f"  stage {stage.stage}: {counted(stage.done, 'item')} done"
                + (f", {number(stage.dead)} dead" if stage.dead else "")
                + (f", {number(to_do)} left" if to_do else "")
            )
    lines += [f"  {state}: {reasons(counts)}" for state in ("dropped", "dead") if (counts := status.by_reason(state))]
    if status.given_up:
        more = status.hosts_given_up - len(status.given_up)
        lines.append(
            f"  hosts given up, none of their pages could be had: {', '.join(status.given_up)}"
            + (f" and {number(more)} more" if more > 0 else "")
        )
    # Of a traceback the end, where the cause stands; `dead show` has all of it.
    lines += [
        f"    {letter.url}: {letter.reason}{f' ({letter.error.splitlines()[-1]})' if letter.error else ''}"
        for letter in status.newest_dead
    ]
    if status.dead_letters > len(status.newest_dead) > 0:
        lines.append(f"    and {number(status.dead_letters - len(status.newest_dead))} more")
    if status.blocked:
        kept = ", ".join(f"{one.host} keeps {counted(one.queued, 'page')}" for one in status.blocked)
        more = status.hosts_blocked - len(status.blocked)
        lines.append(f"  hosts blocked: {kept}" + (f" and {number(more)} more" if more > 0 else ""))
    if status.demoted:
        names = ", ".join(one.host for one in status.demoted)
        more = status.hosts_demoted - len(status.demoted)
        lines.append(
            f"  hosts demoted, as their pages are near-identical: {names}"
            + (f" and {number(more)} more" if more > 0 else "")
        )
    lines += [
        f"  output: {sink.path or sink.name} ({counted(sink.written, 'record')}"
        + (f", {number(sink.waiting)} not written yet)" if sink.waiting else ")")
        for sink in status.sinks
    ]
    lines += [f"  {line}" for line in _next(run, status)]
    return lines


def summary_json(run: Run, status: Status) -> dict[str, Any]:
    """Return the same for programs; `status` in it is what `streamcrawl status --json` prints."""
    return {
        "event": "summary",
        "ending": run.word,
        "exit_code": int(exit_code(run.word, status)),
        "elapsed_s": round(run.elapsed_s, 3),
        "pages": status.page("done") - run.pages_before,
        "resume": run.resume,
        "status": status.as_json(),
    }


def _ending(run: Run, status: Status) -> str:
    text = _ENDINGS.get(run.word, run.word)
    return f"{text}: {stopped_because(status.stopped, run.tune)}" if run.word == "STOPPED" else text


def _next(run: Run, status: Status) -> list[str]:
    if run.word == "ENDED":
        if _parked(status):
            return [
                f"to fetch what a blocked host keeps: streamcrawl host unblock {status.name} HOST, then {run.resume}"
            ]
        is_idle = run.pages_before and status.page("done") == run.pages_before
        return ["no page was left to fetch; --fresh begins again"] if is_idle else []
    if run.word == "LIMIT":
        return [f"more: {run.more}"]
    if run.word == "UNBALANCED":
        return [f"look at it: streamcrawl audit {status.name}"]
    if run.word == "GONE":
        return []
    return [f"go on: {run.resume}"]
