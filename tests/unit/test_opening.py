"""What a crawl is refused for before it is created."""

from __future__ import annotations

import pytest

from streamcrawl import Crawl, Response
from streamcrawl.cli.opening import check_keep_bodies
from streamcrawl.errors import ConfigError
from streamcrawl.settings import Given


def test_pages_are_kept_only_for_a_stage_that_parses_them() -> None:
    kept = {"keep_bodies_ms": Given(1000, "--keep-bodies")}
    crawl = Crawl("shop", keep_bodies="24h")
    assert crawl.program.settings["keep_bodies_ms"].value == 86_400_000
    with pytest.raises(ConfigError, match=r"--keep-bodies: .* a crawl without a program has none"):
        check_keep_bodies(kept, None)
    with pytest.raises(ConfigError, match=r"the program: .* this program has none: declare one with @crawl.page\("):
        check_keep_bodies(crawl.program.settings, crawl.program)
    check_keep_bodies({}, None)
    check_keep_bodies({"keep_bodies_ms": Given(None, "--keep-bodies")}, None)

    @crawl.page(own_stage=True)
    def parse(response: Response) -> None: ...

    check_keep_bodies(crawl.program.settings, crawl.program)
