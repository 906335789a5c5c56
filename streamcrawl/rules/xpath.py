"""XPath over the text of a page, by lxml: an extra, imported when the first page is asked.

HTML is read by libxml2, whose tree of a broken page differs from a browser's, which `Response.css` has. XML (feeds,
sitemaps) is read with its namespaces, broken as it may be. Nothing is fetched or opened for it, and what its entities
may stand for is bounded by libxml2. Start at `tree_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamcrawl.errors import Unfit
from streamcrawl.rules.parse import bounded_markup

if TYPE_CHECKING:
    from collections.abc import Mapping


def tree_of(text: str, *, is_xml: bool) -> Any:
    """Return the root element of a page; None where it has none.

    Raises:
        Unfit: there is no lxml here.
    """
    try:
        from lxml import etree, html
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lxml":
            raise
        raise Unfit(
            "response.xpath needs lxml, which is not installed here: pip install 'streamcrawl[xpath]', or use "
            "response.css"
        ) from error
    # As bytes, and the parser told their encoding: of a str whose head names one lxml refuses to read anything, and a
    # page that has been decoded still says what it was. A NUL would end the page there.
    data = (text if is_xml else bounded_markup(text)).replace("\0", "").encode("utf-8", "replace")
    parser: Any
    if is_xml:
        parser = etree.XMLParser(encoding="utf-8", recover=True, resolve_entities="internal", no_network=True)
    else:
        parser = html.HTMLParser(encoding="utf-8")
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError:
        return None  # nothing in it at all


def find(tree: Any, expression: str, namespaces: Mapping[str, str] | None, variables: Mapping[str, Any]) -> list[Any]:
    """Return what an expression finds, as a list; see `Response.xpath`.

    Raises:
        ValueError: it is no XPath, or names a prefix or a variable that it was not given.
    """
    from lxml import etree

    try:
        # Plain strings: the clever ones of lxml keep the whole tree alive, and no codec takes them for strings.
        found = tree.xpath(expression, namespaces=namespaces, smart_strings=False, **variables)
    except etree.XPathError as error:
        raise ValueError(f"xpath {expression!r} will not do: {error}") from error
    return found if isinstance(found, list) else [found]
