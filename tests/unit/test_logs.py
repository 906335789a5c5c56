"""What is said: levels, fields, JSON lines, and an end to repeats."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest

from streamcrawl.work.logs import (
    BURST,
    KINDS_MAX,
    WINDOW_S,
    FromLibraries,
    Level,
    Logger,
    Repeats,
    Said,
    as_said,
    kind_of,
    printable,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def logger_of(**options: Any) -> tuple[Logger, list[str], Clock]:
    lines: list[str] = []
    clock = Clock()
    return Logger(lines.append, clock=clock, **options), lines, clock


def test_sentence_is_written_as_it_is() -> None:
    logger, lines, _ = logger_of()
    logger("crawling into a.jsonl")
    logger(Said.warning("a worker died", worker="w1"))
    assert lines == ["crawling into a.jsonl", "a worker died"]


def test_said_is_text_wherever_text_is_wanted() -> None:
    said: list[str] = []
    said.append(Said.error("it broke", entry="5-1"))
    assert said == ["it broke"]
    assert f"{said[0]}!" == "it broke!"


@pytest.mark.parametrize("text", ["plain", "caf\u00e9", "\udcff"])
def test_what_is_printable_can_be_encoded_whatever_it_was(text: str) -> None:
    assert type(printable(Said.warning(text))) is str
    assert msgspec.json.encode(printable(Said.warning(text)))


def test_json_line_has_level_and_fields() -> None:
    logger, lines, _ = logger_of(is_json=True)
    logger.fields["crawl"] = "books"
    logger(Said.error("internal error at https://a.example/:\nTraceback", entry="5-1", task="https://a.example/"))
    logger("plain")
    first, second = map(json.loads, lines)
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "error", "message": "internal error at https://a.example/:\nTraceback", "crawl": "books",
        "entry": "5-1", "task": "https://a.example/",
    }  # fmt: skip
    assert (second["level"], second["message"]) == ("info", "plain")


def test_further_fields_do_not_replace_what_was_said() -> None:
    said = as_said(Said.warning("gone", stage="fetch"), stage="other", worker="w1")
    assert (said.level, said.fields) == (Level.WARNING, {"stage": "fetch", "worker": "w1"})
    assert as_said("plain", worker="w1").fields == {"worker": "w1"}


def test_what_matters_less_is_not_written_but_counted() -> None:
    logger, lines, _ = logger_of(least=Level.WARNING)
    logger("info")
    logger(Said.warning("warning"))
    logger(Said.error("error"))
    assert lines == ["warning", "error"]
    assert logger.counts == {"info": 1, "warning": 1, "error": 1}


def test_counts_of_all_levels_are_there_from_the_start() -> None:
    assert logger_of()[0].counts == {"info": 0, "warning": 0, "error": 0}


def test_messages_that_differ_by_names_and_numbers_are_of_a_kind() -> None:
    assert kind_of("slot: internal error at https://a.example/1:\nTraceback 1") == kind_of(
        "slot: internal error at http://b.example/x/y:\nTraceback 2"
    )
    assert kind_of("fetch fetch-m-12-0a1b2c3d died with 3 entries") == kind_of(
        "fetch fetch-m-9-ffffffff died with 64 entries"
    )
    assert kind_of("the store answers again") != kind_of("the crawl is paused")


def test_repeats_are_held_back_and_their_number_is_said() -> None:
    logger, lines, clock = logger_of(is_json=True)
    for n in range(BURST + 7):
        logger(Said.warning(f"page https://a.example/{n} went wrong", entry=f"{n}-0"))
        clock.now_s += 0.1
    logger("something else")
    assert len(lines) == BURST + 1
    clock.now_s += WINDOW_S
    logger("something else again")
    summary = json.loads(lines[-2])
    assert summary["message"] == f"page https://a.example/{BURST + 6} went wrong (7 like this were held back)"
    assert (summary["level"], summary["repeats"], summary["entry"]) == ("warning", 7, f"{BURST + 6}-0")
    # A new window: it is heard of again.
    logger(Said.warning("page https://a.example/x went wrong"))
    assert json.loads(lines[-1])["message"] == "page https://a.example/x went wrong"
    assert logger.counts["warning"] == BURST + 8


def test_what_was_held_back_is_said_at_the_end() -> None:
    logger, lines, _ = logger_of()
    for _ in range(BURST + 2):
        logger("again")
    logger.close()
    assert lines[BURST:] == ["again (2 like this were held back)"]
    logger.close()
    assert len(lines) == BURST + 1


def test_repeats_that_a_child_held_back_are_counted() -> None:
    logger, _, _ = logger_of()
    logger(Said.warning("again (7 like this were held back)", repeats=7))
    assert logger.counts["warning"] == 7


def test_kinds_are_bounded_and_none_is_forgotten_silently() -> None:
    repeats = Repeats()
    for _ in range(BURST + 1):
        list(repeats.admit(Said("the first kind"), 0.0))
    words = ["".join(chr(ord("g") + int(digit)) for digit in str(n)) for n in range(KINDS_MAX)]
    written = [str(said) for word in words for said in repeats.admit(Said(f"kind {word}"), 1.0)]
    assert written.count("the first kind (1 like this were held back)") == 1
    assert len(written) == KINDS_MAX + 1


def test_what_libraries_log_is_said_with_their_level() -> None:
    logger, lines, _ = logger_of(is_json=True)
    library, handler = logging.getLogger("a library"), FromLibraries(logger)
    library.addHandler(handler)
    library.info("nobody needs this")
    library.warning("%d connections left open", 3)
    try:
        raise ValueError("bad")
    except ValueError:
        library.exception("it broke")
    library.removeHandler(handler)
    first, second = map(json.loads, lines)
    assert (first["level"], first["logger"], first["message"]) == ("warning", "a library", "3 connections left open")
    assert second["level"] == "error"
    assert second["message"].startswith("it broke\nTraceback")
    assert second["message"].endswith("ValueError: bad")


def test_text_of_any_kind_can_be_written() -> None:
    for text, shown in ((Said.error("plain"), "plain"), ("ü", "ü"), ("bad \udcff", "bad \\udcff")):
        assert msgspec.json.decode(msgspec.json.encode(printable(text))) == shown
