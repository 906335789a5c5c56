"""The streams of records: one writer at a time, a batch all or nothing, and a crawl that slows for a slow sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamcrawl.store.frontier import Beat
from streamcrawl.store.keys import GROUP
from tests.integration.snapshot import FETCH_STREAM, Held, Lab

if TYPE_CHECKING:
    from tests.integration.conftest import OpenLab

LEASE_MS = 30_000


class Sink:
    """A writer of the sink "out", with what it has read."""

    def __init__(self, lab: Lab, consumer: str) -> None:
        self.lab, self.consumer = lab, consumer
        self.writer = self.offset = 0
        self.read_ids: list[str] = []
        self.read_bytes = 0

    async def open(self) -> str:
        word, self.writer, self.offset, _ = await self.lab.frontier.sink_open("out", self.consumer, lease_ms=LEASE_MS)
        self.read_ids, self.read_bytes = [], 0
        return word

    async def beat(self, slots: int = 0) -> list[str]:
        beat = Beat(self.consumer, f"{FETCH_STREAM}:out", slots, "{}", self.read_ids)
        lost, _ = await self.lab.frontier.beat([beat, Beat("w1", FETCH_STREAM, 1000, "{}", [])], lease_ms=LEASE_MS)
        return lost[0]

    async def read(self, count: int = 100_000) -> list[bytes]:
        stream = self.lab.keys.sink_stream("out")
        answer: Any = await self.lab.client.xreadgroup(GROUP, self.consumer, {stream: ">"}, count=count)
        rows = answer[0][1] if answer else []
        self.read_ids += [entry_id.decode() for entry_id, _ in rows]
        self.read_bytes += sum(len(fields[b"item"]) for _, fields in rows)
        return [fields[b"item"] for _, fields in rows]

    async def commit(self, *, size: int = 10) -> tuple[str, Any]:
        answer = await self.lab.frontier.sink_commit(
            "out",
            writer=self.writer,
            expected=self.offset,
            offset=self.offset + size,
            entry_ids=self.read_ids,
            size=self.read_bytes,
        )
        if answer[0] == "DONE":
            self.offset += size
            self.read_ids, self.read_bytes = [], 0
        return answer


async def record(lab: Lab, *items: str) -> None:
    """Fetch a page that brings these records."""
    await lab.offer(f"http://{items[0]}.test/")
    [held] = await lab.take()
    flat = [part for item in items for part in ("out", item)]
    assert await lab.end(held, items=flat) == "DONE"


async def test_a_writer_that_lives_keeps_another_one_out(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    first, second = Sink(lab, "s1"), Sink(lab, "s2")
    assert await first.open() == "OK"
    await first.beat()
    assert await second.open() == "BUSY"
    assert await first.open() == "OK"  # itself it never keeps out
    assert first.writer == 1
    await first.beat(slots=-1)  # it leaves in order
    assert await second.open() == "OK"
    assert second.writer == 2


async def test_a_writer_silent_for_a_lease_is_replaced_and_notices(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    first, second = Sink(lab, "s1"), Sink(lab, "s2")
    await first.open()
    await record(lab, "a", "b")
    assert await first.read() == [b"a", b"b"]
    assert await first.beat() == []
    beat, rest = (await lab.client.hget(lab.keys.workers, "s1")).split(b" ", 1)
    await lab.client.hset(lab.keys.workers, "s1", b"%d %s" % (int(beat) - LEASE_MS, rest))
    assert await second.open() == "OK"

    assert await first.beat() == first.read_ids  # both are lost
    assert await first.commit() == ("REPLACED", None)
    assert await second.read() == [b"a", b"b"]
    assert await second.commit() == ("DONE", None)
    third = Sink(lab, "s2")
    assert (await third.open(), third.offset, third.writer) == ("OK", 10, 2)
    assert await third.read() == []


async def test_a_new_writer_gets_all_that_earlier_ones_left(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    for n in range(3):
        sink = Sink(lab, f"s{n}")
        await sink.open()
        await record(lab, *(f"r{n}-{m}" for m in range(200)))
        assert len(await sink.read(150 + 200 * n)) == 150 + 200 * n
    last = Sink(lab, "last")
    assert await last.open() == "OK"
    items = await last.read()
    assert sorted(items) == sorted(f"r{n}-{m}".encode() for n in range(3) for m in range(200))
    assert (await lab.snapshot())[f"{FETCH_STREAM}:out"]["consumers"] == ["last"]
    assert await last.commit() == ("DONE", None)
    assert (await lab.check())["totals"]["out.done"] == 600


async def test_a_batch_with_one_lost_record_is_not_written_at_all(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    sink = Sink(lab, "s1")
    await sink.open()
    await record(lab, "a", "b", "c")
    await sink.read()
    await lab.frontier.hand_back(f"{FETCH_STREAM}:out", sink.read_ids[1:2])
    lost = sink.read_ids[1]
    answer, changed = await lab.changes(sink.commit())
    assert (answer, changed) == (("LEASE_LOST", [lost]), {})
    sink.read_ids.remove(lost)
    sink.read_bytes -= 1
    assert await sink.read() == [b"b"]
    assert await sink.commit() == ("DONE", None)


async def test_a_batch_from_a_wrong_offset_is_not_written(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    sink = Sink(lab, "s1")
    await sink.open()
    await record(lab, "a")
    await sink.read()
    sink.offset = 7
    answer, changed = await lab.changes(sink.commit())
    assert (answer, changed) == (("OFFSET_MISMATCH", 0), {})
    sink.offset = 0
    assert await sink.commit() == ("DONE", None)


async def test_an_empty_batch_moves_the_offset_alone(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    sink = Sink(lab, "s1")
    await sink.open()
    answer, changed = await lab.changes(sink.commit(size=33))
    assert answer == ("DONE", None)
    assert changed == {"offsets": {"out:offset": (None, 33)}}


async def test_a_stream_that_was_flushed_loses_the_batch_and_raises_nothing(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    sink = Sink(lab, "s1")
    await sink.open()
    await record(lab, "a")
    await sink.read()
    ids = sink.read_ids
    await lab.client.delete(lab.keys.sink_stream("out"))
    assert await sink.commit() == ("LEASE_LOST", ids)
    assert await sink.open() == "OK"
    assert await sink.read() == []
    await lab.client.hincrby(lab.keys.totals, "out.streamed", -1)
    await lab.client.hincrby(lab.keys.totals, "out.created", -1)


async def test_dispatch_stops_above_the_high_mark_until_under_the_low_one(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"], sink_waiting_max=100)
    sink = Sink(lab, "s1")
    await sink.open()
    await lab.offer(*(f"http://h{n}.test/" for n in range(200)))
    held: list[Held] = []
    while one := await lab.take():
        held += one

    async def flag() -> bytes | None:
        value: bytes | None = await lab.client.hget(lab.keys.state, "throttled")
        return value

    for n, page in enumerate(held[:90], 1):
        await lab.end(page, items=("out", str(n)))
        assert (await flag() == b"out") == (n > 80), n
    assert (await lab.frontier.dispatch(1)).word == "THROTTLED"

    # What is read does not wait any more, but only a commit says that the sink gets on.
    await sink.read(60)
    assert await sink.commit() == ("DONE", None)
    assert await flag() == b"out"  # 30 wait: between the marks
    for page in held[90:100]:
        await lab.end(page, items=("out", "more"))
    assert await flag() == b"out"
    await sink.read(20)
    assert await sink.commit() == ("DONE", None)
    assert await flag() == b"out"  # 20 wait: not yet under the mark
    await sink.read(1)
    assert await sink.commit() == ("DONE", None)
    assert await flag() is None
    assert (await lab.frontier.dispatch(1)).word != "THROTTLED"


async def test_two_sinks_get_each_record_and_throttle_by_themselves(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out", "log"], sink_waiting_max=100)
    sink = Sink(lab, "s1")
    await sink.open()
    await lab.offer("http://a.test/")
    [held] = await lab.take()
    await lab.end(held, items=[part for n in range(90) for name in ("out", "log") for part in (name, str(n))])
    state = await lab.check()
    assert len(state[f"{FETCH_STREAM}:out"]["entries"]) == len(state[f"{FETCH_STREAM}:log"]["entries"]) == 90
    assert state["state"]["throttled"] == "out,log"
    await sink.read()
    await sink.commit()
    assert (await lab.snapshot())["state"]["throttled"] == "log"
    await lab.offer("http://b.test/")
    assert (await lab.frontier.dispatch(1)).word == "THROTTLED"


async def test_mark_by_bytes_stops_dispatch_as_the_one_by_count_does(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"], sink_max_bytes=1_000_000)
    sink = Sink(lab, "s1")
    await sink.open()

    async def flag() -> bytes | None:
        value: bytes | None = await lab.client.hget(lab.keys.state, "throttled")
        return value

    await lab.offer(*(f"http://h{n}.test/" for n in range(2)))
    first, second = await lab.take()
    await lab.end(first, items=("out", "a" * 500_000))
    assert await flag() is None
    await sink.read()
    await lab.end(second, items=("out", "b" * 350_000))
    assert await flag() == b"out"
    assert (await lab.frontier.dispatch(1)).word == "THROTTLED"
    assert await sink.commit() == ("DONE", None)
    # What is left is more than a fifth.
    assert await flag() == b"out"
    await sink.read()
    assert await sink.commit() == ("DONE", None)
    assert await flag() is None


async def test_bytes_that_nobody_counted_are_forgotten_with_the_last_record(open_lab: OpenLab) -> None:
    lab = await open_lab(sinks=["out"])
    sink = Sink(lab, "s1")
    await sink.open()
    await record(lab, "a", "b")
    await sink.read(1)
    sink.read_bytes = 0
    await lab.client.hincrby(lab.keys.totals, "out.bytes", 5)
    assert await sink.commit() == ("DONE", None)
    assert int(await lab.client.hget(lab.keys.totals, "out.bytes")) == 7
    await sink.read(1)
    sink.read_bytes = 100
    assert await sink.commit() == ("DONE", None)
    assert int(await lab.client.hget(lab.keys.totals, "out.bytes")) == 0
