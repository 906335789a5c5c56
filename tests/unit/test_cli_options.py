"""The command line before it touches anything: what it refuses, in one line, and what its help says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamcrawl.cli import main
from streamcrawl.cli.crawl import command as crawl_command
from streamcrawl.cli.crawl_run import CrawlOptions
from streamcrawl.cli.options import GroupedOption
from streamcrawl.errors import ExitCode
from streamcrawl.settings import CLASSES, ENVIRONMENT_PREFIX, Given, gather, option_of, variable_of

if TYPE_CHECKING:
    import click

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
        (["crawl", URL, "-o", "pages.xml"], "the format is told by the ending or the scheme; give FILE.jsonl, "),
        (["crawl", URL, "-o", "none/pages.jsonl"], "does not exist; make it first"),
        (["crawl", URL, "--allow", "("], "--allow '(' is not a regular expression"),
        (["crawl", URL, "--deny", "[z-a]"], "--deny '[z-a]' is not a regular expression"),
        (["crawl", URL, "--delay", "soon"], "'soon' is not a duration"),
        (["crawl", URL, "--max-body", "big"], "'big' is not a size"),
        (["crawl", URL, "--depth", "deep"], "'deep' is not a whole number"),
        (["crawl", URL, "--scope", "planet"], "'planet' is not one of"),
        (["crawl", URL, "--processes", "0"], "--processes 0 will not do: the least is 1"),
        (["crawl", URL, "--shards", "257"], "--shards 257 will not do: the most is 256"),
        (["crawl", URL, "--nameserver", "dns.test"], "--nameserver 'dns.test' is not the address of a name server"),
        (["crawl", "shop:crawl"], "is not an http(s) URL; a program is run by: streamcrawl run shop:crawl"),
        (["run", "shop.py"], "must be written module:attribute, as shop:crawl for `crawl` in shop.py"),
        (["run", "no_such_shop:crawl"], "No module named 'no_such_shop' (looked for in this folder and where"),
        (["crawl", "ftp://me:hunter2@a.test/"], "'ftp://***@a.test/' is not an http(s) URL"),
        (["crawl", URL, "--header", "X: secret"], 'header 1 will not do: write "example.org: Name: value"'),
        (["crawl", URL, "--auth", "a.test secret"], 'auth 1 will not do: write "example.org: user:password"'),
        (["crawl", URL, "--max-pages", "many"], "'many' is not a whole number"),
        (["crawl", URL, "-o", "a.csv", "-o", "./a.csv"], "a.csv is given twice"),
        (["crawl", URL, "--config", "none.toml"], "--config none.toml cannot be read: No such file or directory"),
        (["status", "--config", "none.toml"], "--config none.toml cannot be read: No such file or directory"),
        (["audit", "x", "--config", "none.toml"], "--config none.toml cannot be read: No such file or directory"),
        (["crawl", URL, "--name", "../up"], "crawl name '../up' will not do"),
        (["crawl", URL, "--fresh", "--resume"], "give one of the two"),
        (["crawl", URL, "--one-round"], "no page is visited again: give --revisit DURATION too"),
        (["crawl", "--seeds", "none.txt"], "--seeds none.txt cannot be read: No such file"),
        (["crawl", "--resume"], "say which crawl to resume: --name NAME (in .streamcrawl: none)"),
        (
            ["crawl", "--resume", "--name", "none"],
            "there is no crawl 'none' to resume here (there: none); leave --resume out",
        ),
        (["crawl", URL, "--redis", "http://127.0.0.1"], "write redis://HOST:PORT/DB"),
        (["crawl", URL, "--colour", "1"], "No such option '--colour'"),
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


@pytest.mark.parametrize("name", ["urls.txt", "shop.py"])
def test_file_in_the_place_of_a_url_is_not_taken_for_a_host(capsys: pytest.CaptureFixture[str], name: str) -> None:
    Path(name).write_text("https://example.org/\n")
    code, _, err = run(capsys, "crawl", name)
    assert code == ExitCode.USAGE
    assert f"{name!r} is a file here: give its URLs with --seeds {name}" in err
    assert f"or write https://{name}/ for the site of that name\n" in err
    assert [path.name for path in Path().iterdir()] == [name]


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


SETTING_OPTIONS = [option for option in crawl_command.params if option.name in CLASSES]


@pytest.mark.parametrize("option", SETTING_OPTIONS, ids=lambda option: str(option.name))
def test_setting_that_an_option_gives_says_its_variable_and_is_called_like_it(option: click.Parameter) -> None:
    assert isinstance(option, GroupedOption)
    found = re.search(r"\[(STREAMCRAWL_\w+)(=[01])?\]$", str(option.help))
    assert found
    assert found[1] == variable_of(str(option.name))
    assert option_of(str(option.name)) in option.opts
    names = ("obey_robots", "sitemaps", "one_round", "unchanged_records", "sort_query", "allow_private", "insecure")
    switches = dict.fromkeys(names, "1")
    text = {"scope": "any", "allow": "a b", "cookies": "host", "politeness_by": "domain", **switches}.get(
        str(option.name), "7"
    )
    assert gather({}, environment={found[1]: text}).keys() == {option.name}


def test_options_become_settings() -> None:
    options = options_of(
        URL, "--delay", "500ms", "--max-body", "1MiB", "--depth", "0", "--no-robots", "--deny", "a", "--deny", "b",
        "-q", "--drop-params", "tracking,ref", "--no-sort-query",
    )  # fmt: skip
    assert options.urls == (URL,)
    assert options.is_quiet
    assert options.settings == {
        "delay_ms": Given(500, "--delay"),
        "body_max_bytes": Given(1 << 20, "--max-body"),
        "depth_max": Given(0, "--depth"),
        "obey_robots": Given(False, "--no-robots"),
        "deny": Given(("a", "b"), "--deny"),
        "drop_params": Given(("ref", "tracking"), "--drop-params"),
        "sort_query": Given(False, "--no-sort-query"),
    }


def test_sitemaps_that_are_given_are_seeds_of_their_own_kind() -> None:
    options = options_of(URL, "--sitemap", "a.test/map.xml", "--sitemap", "https://b.test/", "--sitemaps")
    assert options.urls == (URL, "Sitemap: a.test/map.xml", "Sitemap: https://b.test/")
    assert options.settings == {"sitemaps": Given(True, "--sitemaps")}
    assert options_of("--sitemap", URL).urls == (f"Sitemap: {URL}",)


def test_nothing_is_given_when_nothing_is_typed() -> None:
    options = options_of(URL)
    assert (options.settings, options.place) == ({}, ())
    assert (options.outputs, options.redis_url, options.name, options.seeds) == ((), None, None, None)


# name in the file and in upper case in the environment, option, values for file, environment and command line
PLACES = [
    ("output", "-o", "outputs", "a a.jsonl", "b b.jsonl", "c c.jsonl"),
    ("redis", "--redis", "redis_url", "redis://127.0.0.1/1", "redis://127.0.0.1/2", "redis://127.0.0.1/3"),
    ("name", "--name", "name", "a", "b", "c"),
    ("seeds", "--seeds", "seeds", "a.txt", "b.txt", "-"),
]


@pytest.mark.parametrize("way", ["--config", "STREAMCRAWL_CONFIG"])
@pytest.mark.parametrize(("key", "option", "attribute", "in_file", "in_environment", "typed"), PLACES)
def test_option_that_is_no_setting_wins_over_environment_over_file(
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    key: str,
    option: str,
    attribute: str,
    in_file: str,
    in_environment: str,
    typed: str,
) -> None:
    Path("crawl.toml").write_text(f'{key} = "{in_file}"\n')
    config = ["--config", "crawl.toml"] if way == "--config" else []
    if not config:
        monkeypatch.setenv(way, "crawl.toml")

    def said(*arguments: str) -> str:
        value: str | tuple[str, ...] = getattr(options_of(*arguments), attribute)
        return value if isinstance(value, str) else "|".join(value)

    assert said(*config, URL) == in_file
    # The file is read first wherever it stands.
    assert said(option, typed, *config, URL) == typed
    monkeypatch.setenv(ENVIRONMENT_PREFIX + key.upper(), in_environment)
    assert said(URL, *config) == in_environment
    assert said(option, typed, *config, URL) == typed
    monkeypatch.setenv(ENVIRONMENT_PREFIX + key.upper(), "")
    assert said(URL, *config) == in_file


def test_setting_that_is_typed_wins_over_environment_over_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("crawl.toml").write_text(
        'delay = "1s"\nprocesses = 2\nlease = 60\npages_max = 5\nobey_robots = false\ndeny = ["a b"]\n'
    )
    monkeypatch.setenv("STREAMCRAWL_CONFIG", "crawl.toml")
    monkeypatch.setenv("STREAMCRAWL_DELAY", "2s")
    monkeypatch.setenv("STREAMCRAWL_PROCESSES", "3")
    options = options_of(URL, "--delay", "3s", "--max-pages", "none", "--robots")
    assert options.settings == {
        "delay_ms": Given(3000, "--delay"),
        "processes": Given(3, "STREAMCRAWL_PROCESSES"),
        "lease_ms": Given(60_000, "crawl.toml"),
        "pages_max": Given(None, "--max-pages"),
        "obey_robots": Given(True, "--robots"),
        "deny": Given(("a b",), "crawl.toml"),
    }


def test_config_that_is_typed_wins_over_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("typed.toml").write_text('name = "typed"\n')
    monkeypatch.setenv("STREAMCRAWL_CONFIG", "none.toml")
    assert options_of("--config", "typed.toml", URL).name == "typed"
    monkeypatch.setenv("STREAMCRAWL_CONFIG", "")
    assert options_of(URL).name is None


def test_switches_may_stand_in_the_file() -> None:
    Path("crawl.toml").write_text("json = true\nquiet = true\n")
    options = options_of(URL, "--config", "crawl.toml")
    assert (options.is_json, options.is_quiet) == (True, True)


def test_file_of_another_deployment_does_not_name_the_crawl_that_is_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("crawl.toml").write_text('name = "shop"\nredis = "http://127.0.0.1"\n')
    code, _, err = run(capsys, "audit", "--config", "crawl.toml")
    assert (code, "Missing argument 'NAME'" in err) == (ExitCode.USAGE, True)
    code, _, err = run(capsys, "audit", "x", "--config", "crawl.toml")
    assert (code, "write redis://HOST:PORT/DB" in err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("delay = 1\ndelay = 0.5s\n", "crawl.toml: "),
        ("dely = 1", "crawl.toml: 'dely': there is no such setting; the nearest is 'delay'"),
        ("processes = 0", "crawl.toml: processes=0 will not do: the least is 1"),
        ("name = '../up'", "crawl name '../up' will not do"),
        ("output = 'pages.xml'", "the format is told by the ending or the scheme; give FILE.jsonl, "),
    ],
)
def test_wrong_file_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    Path("crawl.toml").write_text(content)
    code, out, err = run(capsys, "crawl", URL, "--config", "crawl.toml")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("streamcrawl: ")
    assert message in err
    assert err.count("\n") == 1


def test_password_of_the_file_is_in_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    Path("crawl.toml").write_text('redis = "http://:hunter2@127.0.0.1"\n')
    code, _, err = run(capsys, "crawl", URL, "--config", "crawl.toml", "--debug")
    assert code == ExitCode.USAGE
    assert "write redis://HOST:PORT/DB" in err
    assert "hunter2" not in err


def test_place_is_repeated_to_resume_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a crawl.toml").write_text('redis = "redis://:hunter2@127.0.0.1/1"\n')
    assert options_of(URL, "--config", "a crawl.toml").place == ("--config", "a crawl.toml")
    place = options_of(URL, "--redis", "redis://:hunter2@127.0.0.1/1").place
    assert place[0] == "--redis"
    assert "hunter2" not in shlex.join(place)
    monkeypatch.setenv("STREAMCRAWL_CONFIG", "a crawl.toml")
    monkeypatch.setenv("STREAMCRAWL_REDIS", "redis://127.0.0.1/1")
    assert options_of(URL).place == ()


def options_of(*arguments: str) -> CrawlOptions:
    with crawl_command.make_context("crawl", list(arguments)) as context:
        return CrawlOptions.from_click(context)
