"""The command line before it touches anything: what it refuses, in one line, and what its help says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamcrawl.cli import main
from streamcrawl.cli.crawl import command as crawl_command
from streamcrawl.cli.crawl_run import CrawlOptions
from streamcrawl.cli.options import GroupedOption
from streamcrawl.errors import ExitCode
from streamcrawl.settings import ENVIRONMENT_PREFIX, Settings, from_environment

URL = "https://example.org/"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["crawl"], "say what to crawl"),
        (["crawl", "htp:/x"], "'htp:/x' is not an http(s) URL"),
        (["crawl", URL, "also wrong"], "'also wrong' is not an http(s) URL"),
        (["crawl", URL, "-o", "pages.csv"], "the only format is JSON lines; name the file FILE.jsonl"),
        (["crawl", URL, "-o", "none/pages.jsonl"], "does not exist; make it first"),
        (["crawl", URL, "--allow", "("], "--allow '(' is not a regular expression"),
        (["crawl", URL, "--deny", "[z-a]"], "--deny '[z-a]' is not a regular expression"),
        (["crawl", URL, "--delay", "soon"], "'soon' is not a duration"),
        (["crawl", URL, "--max-body", "big"], "'big' is not a size"),
        (["crawl", URL, "--depth", "deep"], "'deep' is not a valid integer"),
        (["crawl", URL, "--scope", "planet"], "'planet' is not one of"),
        (["crawl", URL, "--processes", "0"], "processes=0 will not do: the least is 1"),
        (["crawl", URL, "--name", "../up"], "crawl name '../up' will not do"),
        (["crawl", URL, "--fresh", "--resume"], "give one of the two"),
        (["crawl", "--seeds", "none.txt"], "--seeds none.txt cannot be read: No such file"),
        (["crawl", "--resume"], "say which crawl to resume: --name NAME (in .streamcrawl: none)"),
        (["crawl", "--resume", "--name", "none"], "there is no crawl 'none' to resume here"),
        (["crawl", URL, "--redis", "http://127.0.0.1"], "write redis://HOST:PORT/DB"),
        (["crawl", URL, "--metrics-port", "1"], "No such option '--metrics-port'"),
        (["crawl", URL, "--colour"], "No such option '--colour'"),
        (["fly"], "No such command 'fly'"),
        (["audit"], "Missing argument 'NAME'"),
        (["audit", "none"], "there is no crawl 'none' in .streamcrawl (there: none)"),
        (["status", "none"], "there is no crawl 'none' in .streamcrawl (there: none)"),
        (["status", "a/b"], "crawl name 'a/b' will not do"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == ExitCode.USAGE
    assert message in err
    assert err.startswith("streamcrawl: ")
    assert err.count("\n") == 1
    assert out == ""
    assert list(Path().iterdir()) == []


def test_file_of_something_else_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pages.jsonl").write_text("mine\n")
    code, _, err = run(capsys, "crawl", URL, "-o", "pages.jsonl")
    assert code == ExitCode.USAGE
    assert "exists and is not of this crawl" in err
    assert [path.name for path in Path().iterdir()] == ["pages.jsonl"]


def test_file_without_a_usable_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("seeds.txt").write_text("# nothing\n\nhtp:/x\n")
    code, _, err = run(capsys, "crawl", "--seeds", "seeds.txt")
    assert code == ExitCode.USAGE
    assert "there is no http(s) URL in it" in err


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "crawl", "htp:/x", "--debug")
    assert "Traceback" in err
    assert err.endswith("streamcrawl: 'htp:/x' is not an http(s) URL\n")


def test_empty_folder_has_no_crawls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "status") == (0, "no crawls in .streamcrawl\n", "")
    assert run(capsys, "status", "--json") == (0, '{"crawls":[]}\n', "")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == ExitCode.USAGE
    assert "Commands:" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"streamcrawl \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize("arguments", [["--help"], ["crawl", "--help"], ["audit", "-h"], ["status", "-h"]])
def test_help_is_there_and_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, time; from streamcrawl.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'redis', 'aiohttp', 'asyncio', 'rich', 'uvloop'} & set(sys.modules); assert not heavy, heavy\n"
        "assert time.process_time() < 0.25"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: streamcrawl" in done.stdout


def test_every_setting_that_an_option_gives_says_its_variable_and_obeys_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"scope": "any", "allow": "a b", "deny": "c", "user_agent": "me", "obey_robots": "0"}
    for option in crawl_command.params:
        if option.name in {*Settings.__struct_fields__, "no_robots"} - {"name"}:
            assert isinstance(option, GroupedOption)
            field = "obey_robots" if option.name == "no_robots" else str(option.name)
            found = re.search(r"\[(STREAMCRAWL_\w+)(=0)?\]$", str(option.help))
            assert found, option.name
            monkeypatch.setenv(found[1], texts.get(field, "7"))
            assert field in from_environment(os.environ)


def test_options_become_settings() -> None:
    options = options_of(
        URL, "--delay", "500ms", "--max-body", "1MiB", "--depth", "0", "--no-robots", "--deny", "a", "--deny", "b", "-q"
    )
    assert options.urls == (URL,)
    assert options.is_quiet
    assert options.settings == {
        "delay_ms": 500, "body_max_bytes": 1 << 20, "depth_max": 0, "obey_robots": False, "deny": ("a", "b"),
    }  # fmt: skip


def test_environment_gives_what_is_not_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMCRAWL_OUTPUT", "x.jsonl")
    monkeypatch.setenv("STREAMCRAWL_REDIS", "redis://127.0.0.1/1")
    monkeypatch.setenv("STREAMCRAWL_NAME", "given")
    options = options_of(URL)
    assert (options.output, options.redis_url, options.name) == ("x.jsonl", "redis://127.0.0.1/1", "given")
    assert options_of(URL, "-o", "y.jsonl").output == "y.jsonl"


def options_of(*arguments: str) -> CrawlOptions:
    context: Any = crawl_command.make_context("crawl", list(arguments))
    return CrawlOptions.from_click(context.params)
