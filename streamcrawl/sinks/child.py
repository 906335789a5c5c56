"""The sink role of a worker child: one output file. The supervisor starts it as a module."""

from __future__ import annotations

from pathlib import Path

from streamcrawl.sinks.jsonl import JsonlFile
from streamcrawl.sinks.loop import SinkLoop
from streamcrawl.work.child import Child, main


async def run_sink(child: Child) -> None:
    """Write the records of one sink until the supervisor says stop.

    Raises:
        SinkError: the file cannot be used as it is; the message says what would mend it.
        CrawlGone: the crawl is over for this epoch.
    """
    spec = child.spec
    loop = SinkLoop(
        child.frontier,
        child.reader,
        JsonlFile(Path(spec.sink_path)),
        sink=spec.sink,
        consumer=spec.consumer,
        board=child.board,
        lease_ms=spec.settings.lease_ms,
        log=child.log,
    )
    child.event(event="ready")
    await loop.run(child.stop)


if __name__ == "__main__":
    main(run_sink)
