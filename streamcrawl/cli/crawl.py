"""`streamcrawl crawl`: its options and their help. What it does is in cli/crawl_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from streamcrawl.cli.options import (
    AUTH_HELP,
    CONCURRENCY_HELP,
    CONTEXT,
    HEADER_HELP,
    PROCESSES_HELP,
    PROXY_HELP,
    Duration,
    GroupedCommand,
    GroupedOption,
    Limit,
    MaybeDuration,
    Names,
    Networks,
    OnePath,
    SettingValue,
    Size,
    config_option,
    debug_option,
    guarded,
    log_options,
    metrics_options,
    redis_option,
)
from streamcrawl.settings import ENVIRONMENT_PREFIX, variable_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.errors import ExitCode

START: Final = "What to crawl"
OUTPUT: Final = "What comes out"
MANNERS: Final = "Politeness"
FETCHING: Final = "Fetching"
PLACE: Final = "Where it runs"
AGAIN: Final = "Again"
BOUNDS: Final = "Bounds"
WATCHING: Final = "Watching it"


def _option(*names: str, group: str, **kwargs: Any) -> Callable[[Any], Any]:
    return click.option(*names, cls=GroupedOption, group=group, **kwargs)


@click.command("crawl", cls=GroupedCommand, context_settings=CONTEXT)
@click.argument("urls", nargs=-1, metavar="URL...")
@_option(
    "--seeds",
    metavar="FILE|-",
    group=START,
    envvar=ENVIRONMENT_PREFIX + "SEEDS",
    help="More URLs to begin with, one a line, from a file or standard input (-). Lines that begin with # are "
    f"left out; a line that is no URL is named and passed over. [{ENVIRONMENT_PREFIX}SEEDS]",
)
@_option(
    "--sitemaps/--no-sitemaps",
    "sitemaps",
    default=None,
    group=START,
    setting="sitemaps",
    help="Read the sitemaps of every host that a page is fetched from, those its robots.txt lists or else "
    "/sitemap.xml: what they list and is in scope is followed as if that page linked to it. Default: no.",
)
@_option(
    "--sitemap",
    "given_sitemaps",
    metavar="URL",
    multiple=True,
    group=START,
    help="Begin with what this sitemap lists (XML, RSS, Atom or text, gzipped or not; an index too), with or without "
    "URLs; may be repeated. In --seeds: a line `Sitemap: URL`.",
)
@_option(
    "--scope",
    type=click.Choice(["host", "domain", "prefix", "any"]),
    group=START,
    setting="scope",
    help="Which links are followed: those to the host of their page or of a seed (host, the default), to its "
    "registered domain (domain), below the folder of a seed (prefix), or all.",
)
@_option(
    "--allow",
    metavar="REGEX",
    multiple=True,
    group=START,
    setting="allow",
    help="Follow only links whose URL matches this; with several, any of them. Seeds are always fetched.",
)
@_option(
    "--deny",
    metavar="REGEX",
    multiple=True,
    group=START,
    setting="deny",
    help="Follow no link whose URL matches this, whatever --allow says.",
)
@_option(
    "--depth",
    "depth_max",
    type=Limit(),
    metavar="N|none",
    group=START,
    setting="depth_max",
    help="Follow links at most N steps from a seed; 0 fetches the seeds only. Default: any depth.",
)
@_option(
    "--max-pages",
    "pages_max",
    type=Limit(),
    metavar="N|none",
    group=START,
    setting="pages_max",
    help="Stop after N pages (exit code 3); go on later with a larger N. Default: no limit.",
)
@_option(
    "--max-pages-per-host",
    "pages_per_host_max",
    type=Limit(),
    metavar="N|none",
    group=START,
    setting="pages_per_host_max",
    help="Leave out what a host has beyond N pages. Default: no limit.",
)
@_option(
    "--revisit",
    "revisit_ms",
    type=MaybeDuration(),
    metavar="DURATION|none",
    group=START,
    setting="revisit_ms",
    help="Fetch each page again after this time, then sooner while it changes and later while it does not; hosts are "
    "asked whether it changed. Such a crawl goes on until it is stopped (see --one-round). Default: none, never again.",
)
@_option(
    "--revisit-min",
    "revisit_min_ms",
    type=MaybeDuration(),
    metavar="DURATION|none",
    group=START,
    setting="revisit_min_ms",
    help="Never sooner than this after its last visit. Default: an eighth of --revisit.",
)
@_option(
    "--revisit-max",
    "revisit_max_ms",
    type=MaybeDuration(),
    metavar="DURATION|none",
    group=START,
    setting="revisit_max_ms",
    help="Never later than this after its last visit. Default: eight times --revisit.",
)
@_option(
    "--one-round/--no-one-round",
    "one_round",
    default=None,
    group=START,
    setting="one_round",
    help="With --revisit: end once nothing is due; --resume fetches what has become due since. Default: no.",
)
@_option(
    "--unchanged-records/--no-unchanged-records",
    "unchanged_records",
    default=None,
    group=START,
    setting="unchanged_records",
    help="Write a record, with status 304, also for a page whose host says that it has not changed; a handler is "
    "called with it, and finds no body. Default: no.",
)
@_option(
    "--drop-params",
    "drop_params",
    type=Names(),
    metavar="NAME,NAME*",
    group=START,
    setting="drop_params",
    help="Take these query parameters out of every URL; tracking stands for utm_*, fbclid, gclid and their like, "
    "sessions for session ids, also in the path. Fixed when the crawl is created. Default: none.",
)
@_option(
    "--sort-query/--no-sort-query",
    "sort_query",
    default=None,
    group=START,
    setting="sort_query",
    help="Put query parameters into the order of their names. Fixed when the crawl is created. Default: as they are "
    "written.",
)
@_option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE|URL",
    type=OnePath(),
    envvar=ENVIRONMENT_PREFIX + "OUTPUT",
    multiple=True,
    group=OUTPUT,
    help="Where the pages go, each exactly once, whatever crashes: FILE.jsonl, FILE.csv, FILE.parquet, FILE.warc.gz "
    "(what went over the wire), sqlite:///FILE.db or postgresql://USER@HOST/DATABASE. May be repeated. Default: "
    f"NAME.jsonl. [{ENVIRONMENT_PREFIX}OUTPUT]",
)
@_option(
    "--keep-bodies",
    "keep_bodies_ms",
    type=Duration(),
    metavar="TIME",
    group=OUTPUT,
    setting="keep_bodies_ms",
    help="Of a program that parses pages in a stage of its own: keep them, with their bodies, for so long, so that "
    "`replay --stage parse` runs a better parser over them without a fetch. See `log_max` for how many bytes. "
    "Default: not at all.",
)
@_option(
    "--rotate-size",
    "rotate_size_bytes",
    type=Size(),
    metavar="SIZE",
    group=OUTPUT,
    setting="rotate_size_bytes",
    help="Finish a file at this size and begin the next: FILE-00001.jsonl, FILE-00002.jsonl, …; the one that is "
    "written is called FILE-00003.jsonl.part. Fixed when the crawl is created. Default: one file.",
)
@_option(
    "--rotate-every",
    "rotate_every_ms",
    type=Duration(),
    metavar="TIME",
    group=OUTPUT,
    setting="rotate_every_ms",
    help="The same at this age of its first record.",
)
@_option(
    "--json",
    "is_json",
    is_flag=True,
    group=OUTPUT,
    envvar=ENVIRONMENT_PREFIX + "JSON",
    help="Progress and summary as JSON lines on standard output.",
)
@_option(
    "--quiet",
    "-q",
    "is_quiet",
    is_flag=True,
    group=OUTPUT,
    envvar=ENVIRONMENT_PREFIX + "QUIET",
    help="No progress and no summary; warnings and errors only.",
)
@debug_option(group=OUTPUT, envvar=ENVIRONMENT_PREFIX + "DEBUG")
@_option(
    "--delay",
    "delay_ms",
    type=Duration(),
    group=MANNERS,
    setting="delay_ms",
    help="Least pause of each host between the end of one fetch and the start of the next. Default: 1s; a longer "
    "Crawl-delay in robots.txt wins, and so does what the host bears: see --delay-factor.",
)
@_option(
    "--politeness-by",
    type=click.Choice(["host", "domain"]),
    group=MANNERS,
    setting="politeness_by",
    help="What is asked at this pace: each scheme, host and port by itself (host, the default), or all hosts of a "
    "registered domain together (domain), one after another. Fixed when the crawl is created.",
)
@_option(
    "--delay-factor",
    "delay_factor",
    type=int,
    metavar="N",
    group=MANNERS,
    setting="delay_factor",
    help="Leave a host alone N times as long as its answers take, if that is more than --delay. Default: 2; 0: however "
    "long they take, as with --delay 0.",
)
@_option(
    "--delay-max",
    "delay_max_ms",
    type=Duration(),
    group=MANNERS,
    setting="delay_max_ms",
    help="The longest pause that slow answers make, or refusals: 429, 503 and timeouts double it, answers bring it "
    "back slowly. Default: 1m; 0: --delay holds whatever happens. A Retry-After is obeyed all the same.",
)
@_option(
    "--demotion-max",
    "demotion_max",
    type=int,
    metavar="N",
    group=MANNERS,
    setting="demotion_max",
    help="While other hosts wait, leave one of which nine in ten pages are near-identical (an endless calendar, one "
    "page under any URL) alone up to N times as long; nothing is dropped. Default: 16, within --delay-max; 0: never.",
)
@_option(
    "--host-concurrency",
    "host_concurrency",
    type=int,
    metavar="N",
    group=MANNERS,
    setting="host_concurrency",
    help="Fetches of one host at a time, over all machines. Default: 1.",
)
@_option(
    "--ip-concurrency",
    "ip_concurrency",
    type=int,
    metavar="N",
    group=MANNERS,
    setting="ip_concurrency",
    help="Fetches of one IP address at a time, over all machines and hosts, as far as can be told. Worth it for crawls "
    "of very many hosts, of which some share a small server. Default: 0, any number.",
)
@_option(
    "--ip-exempt",
    "ip_exempt",
    type=Networks(),
    metavar="NETWORK,NETWORK",
    group=MANNERS,
    setting="ip_exempt",
    help="Networks that --ip-concurrency leaves alone, 203.0.113.0/24; cdn stands for those of CDNs that publish "
    "a list. Default: cdn.",
)
@_option(
    "--robots/--no-robots",
    "obey_robots",
    default=None,
    group=MANNERS,
    help="Obey robots.txt (the default), or do not even ask for it: for sites of your own. "
    f"[{variable_of('obey_robots')}=0]",
)
@_option(
    "--user-agent",
    "user_agent",
    metavar="TEXT",
    group=MANNERS,
    setting="user_agent",
    help="Sent with every request and looked up in robots.txt. Default: streamcrawl/VERSION.",
)
@_option(
    "--contact",
    "contact",
    metavar="ADDRESS",
    group=MANNERS,
    setting="contact",
    help="E-mail address or page of whom the owners of sites can write to, sent behind the User-Agent. Asked for when "
    "a crawl of more than some hundred pages of other people's sites has none.",
)
@_option(
    "--host-give-up",
    "host_give_up_ms",
    type=Duration(),
    group=MANNERS,
    setting="host_give_up_ms",
    help="Give a host up that has not answered for so long; its pages become dead letters. Default: 1h. Once nothing "
    f"else is left to do, 5m is enough [{variable_of('host_give_up_idle_ms')}].",
)
@_option(
    "--timeout",
    "timeout_ms",
    type=Duration(),
    group=FETCHING,
    setting="timeout_ms",
    help="For one fetch from start to end. Default: 30s.",
)
@_option(
    "--header",
    "headers",
    metavar="HOST: NAME: VALUE",
    multiple=True,
    group=FETCHING,
    setting="headers",
    help=HEADER_HELP,
)
@_option(
    "--auth",
    "auth",
    metavar="HOST: USER:PASSWORD",
    multiple=True,
    group=FETCHING,
    setting="auth",
    help=AUTH_HELP,
)
@_option(
    "--cookies",
    type=click.Choice(["off", "host", "crawl"]),
    group=FETCHING,
    setting="cookies",
    help="Send cookies back: to the very host that set them (host), or wherever a browser would, to other hosts of "
    "their domain too (crawl). All workers share them, in Redis. Default: off.",
)
@_option(
    "--proxy",
    "proxies",
    metavar="URL",
    multiple=True,
    group=FETCHING,
    setting="proxies",
    help=PROXY_HELP,
)
@_option(
    "--allow-private/--no-allow-private",
    "allow_private",
    default=None,
    group=FETCHING,
    setting="allow_private",
    help="Connect to addresses of this machine and of private networks too (never to a cloud's metadata service). "
    "Without it only a crawl whose seeds all lie there reaches them.",
)
@_option(
    "--insecure/--no-insecure",
    "insecure",
    default=None,
    group=FETCHING,
    help=f"Take any TLS certificate: expired, of another host, of nobody known. [{variable_of('insecure')}=1]",
)
@_option(
    "--min-rate",
    "rate_min_bytes",
    type=Size(),
    group=FETCHING,
    setting="rate_min_bytes",
    help="Least bytes a second of a body, asked for after a third of --timeout; a slower one is tried again and at "
    "last a dead letter. 0 for none. Default: 100.",
)
@_option(
    "--max-body",
    "body_max_bytes",
    type=Size(),
    group=FETCHING,
    setting="body_max_bytes",
    help="Longest body, decompressed; a longer one is a dead letter. Default: 10MB.",
)
@_option(
    "--name",
    metavar="NAME",
    group=PLACE,
    envvar=ENVIRONMENT_PREFIX + "NAME",
    help=f"Of the crawl, to find it again. Default: the host of the first URL. [{ENVIRONMENT_PREFIX}NAME]",
)
@redis_option(
    group=PLACE,
    help="Keep the crawl in this Redis: redis://, rediss://, unix:// or redis+sentinel://. A crawl of the same name "
    "there is joined with more workers. Default: a private server, with its data in ./.streamcrawl/NAME. "
    f"[{ENVIRONMENT_PREFIX}REDIS]",
)
@_option(
    "--shards",
    type=int,
    metavar="N",
    group=PLACE,
    setting="shards",
    help="Parts that the crawl is kept in, 1 to 256, by registered domain. Fixed when the crawl is created. "
    "Default: 1.",
)
@_option(
    "--processes",
    type=SettingValue("processes", "processes"),
    metavar="N|auto",
    group=PLACE,
    setting="processes",
    help=PROCESSES_HELP,
)
@_option(
    "--concurrency",
    type=SettingValue("concurrency", "slots"),
    metavar="N|MIN-MAX|auto",
    group=PLACE,
    setting="concurrency",
    help=CONCURRENCY_HELP,
)
@_option(
    "--nameserver",
    "nameservers",
    metavar="ADDRESS[:PORT]",
    multiple=True,
    group=PLACE,
    setting="nameservers",
    help="Ask this DNS server, and not those of the operating system; may be repeated.",
)
@_option(
    "--lease",
    "lease_ms",
    type=Duration(),
    group=PLACE,
    setting="lease_ms",
    help="How long a machine may be silent before others take over what it had in hand. Default: 30s.",
)
@config_option(group=PLACE)
@_option(
    "--resume",
    is_flag=True,
    group=AGAIN,
    help="Go on with an existing crawl as it was begun; options that are given now win. Without URL and --name: "
    "the one crawl in ./.streamcrawl.",
)
@_option(
    "--fresh",
    is_flag=True,
    group=AGAIN,
    help="Delete the crawl of this name first: its pages, its queue and its output file.",
)
@_option(
    "--frontier-max",
    "frontier_max",
    type=int,
    metavar="N",
    group=BOUNDS,
    setting="frontier_max",
    help="Stop when so many URLs wait to be fetched (exit code 3). Default: 20,000,000.",
)
@_option(
    "--memory-max",
    "memory_max_bytes",
    type=Size(),
    group=BOUNDS,
    setting="memory_max_bytes",
    help="Memory of Redis; the crawl stops at 80 % of it (exit code 3). Default: 1GB for the private server; with "
    "--redis the maxmemory of that server, which must be set if this is not.",
)
@metrics_options(group=WATCHING)
@log_options(group=WATCHING)
@guarded
@click.pass_context
def command(context: click.Context, /, **_: Any) -> ExitCode:
    """Crawl from the given URLs and write every page to a file.

    Without --redis nothing else is needed: a private Redis runs as long as the crawl. Ctrl-C stops in order and says
    how to go on; the same command again goes on too. Nothing is lost or fetched twice by a crash at any moment.

    Durations are seconds (0.5) or carry a unit (500ms, 2s, 5m, 7d); sizes likewise (10MB, 64MiB). Each option can be
    set by the environment variable in brackets and by a line of the --config file; an option of the command wins over
    the environment, and that over the file.

    \b
    streamcrawl crawl https://example.org/
    streamcrawl crawl https://example.org/docs/ --scope prefix --depth 3 -o docs.jsonl
    streamcrawl crawl --sitemap https://example.org/sitemap.xml --depth 1
    streamcrawl crawl --seeds urls.txt --scope any --max-pages 100000 --processes 4 --name wide
    streamcrawl crawl --resume --name wide --max-pages 200000
    """
    from streamcrawl.cli.crawl_run import CrawlOptions, crawl  # Redis, asyncio and rich: not for --help

    return crawl(CrawlOptions.from_click(context))
