"""In which encoding a body is, and what it says."""

from __future__ import annotations

import codecs
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.charset import (
    _CODEC_BY_LABEL,
    GUESSED_BYTES,
    PRESCANNED_LATE_BYTES,
    charset_of,
    declared_charset,
    decode_body,
)
from streamcrawl.rules.sniff import BodyKind
from streamcrawl.web.fetcher import split_content_type


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ("text/html;CHARSET=UTF8", "utf-8"),
        ('text/html; charset="koi8-r"', "koi8-r"),
        ("text/html; charset='koi8-r'", "koi8-r"),
        ("text/html; a=b; charset = latin1 ", "windows-1252"),
        ("text/html; charset=us-ascii", "windows-1252"),
        ("text/html; charset=gb2312", "gbk"),
        ("text/html; charset=Shift_JIS", "cp932"),
        ("text/html; charset=ks_c_5601-1987", "cp949"),
        ("text/html; charset=big5", "big5hkscs"),
        ("text/html; charset=iso-8859-9", "windows-1254"),
        ("text/html; charset=tis-620", "cp874"),
        ("text/html; charset=x-mac-cyrillic", "mac-cyrillic"),
        ("text/html; charset=utf-16", "utf-16-le"),
        ("text/html; charset=utf-7", None),
        ("text/html; charset=rot13", None),
        ("text/html; charset=", None),
        ("text/html", None),
        ("", None),
        (None, None),
    ],
)
def test_header_names_the_encoding(content_type: str | None, charset: str | None) -> None:
    assert declared_charset(split_content_type(content_type).charset, b"<p>") == charset


def test_order_is_mark_then_header_then_meta() -> None:
    meta = b"<meta charset=koi8-r>"
    assert declared_charset("gbk", b"\xef\xbb\xbf" + meta) == "utf-8"
    assert declared_charset("gbk", b"\xff\xfe" + meta) == "utf-16-le"
    assert declared_charset("gbk", b"\xfe\xff" + meta) == "utf-16-be"
    assert declared_charset("gbk", meta) == "gbk"
    assert declared_charset("unheard-of", meta) == "koi8-r"
    assert declared_charset(None, meta) == "koi8-r"


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b"<meta charset=koi8-r>", "koi8-r"),
        (b"<META CharSet = ' KOI8-R '>", "koi8-r"),
        (b"<meta/charset='koi8-r'/>", "koi8-r"),
        (b"<meta charset=koi8-r", None),
        (b"<meta charset='koi8-r>", None),
        (b"<metacharset=koi8-r>", None),
        (b"<meta charset=unheard-of><meta charset=koi8-r>", "koi8-r"),
        (b"<meta charset=gbk charset=koi8-r>", "gbk"),
        (b"<meta charset=utf-16>", "utf-8"),
        (b"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>", "koi8-r"),
        (b"<meta content='text/html; charset=\"koi8-r\"' http-equiv=content-type>", "koi8-r"),
        (b"<meta http-equiv=content-type content='charset charset = koi8-r;x'>", "koi8-r"),
        (b"<meta http-equiv=content-type content='text/html'>", None),
        (b"<meta content='text/html; charset=koi8-r'>", None),
        (b"<meta http-equiv=refresh content='text/html; charset=koi8-r'>", None),
        (b"<!-- <meta charset=gbk> --><meta charset=koi8-r>", "koi8-r"),
        (b"<!--><meta charset=koi8-r>", "koi8-r"),
        (b"<!-- <meta charset=koi8-r>", None),
        (b"<p title='<meta charset=gbk>'><meta charset=koi8-r>", "koi8-r"),
        (b"<p title='><meta charset=koi8-r>", None),
        (b"</p x='<meta charset=gbk>'><meta charset=koi8-r>", "koi8-r"),
        (b"<!doctype html><?x <meta charset=gbk>?><meta charset=koi8-r>", "koi8-r"),
        (b"<1 <meta charset=koi8-r>", "koi8-r"),
        (b"<?xml version='1.0' encoding='koi8-r'?><html>", "koi8-r"),
        (b'<?xml encoding="koi8-r"?><meta charset=gbk>', "gbk"),
        (b" <?xml encoding='koi8-r'?>", None),
        (b" " * 1004 + b"<meta charset=gbk />", "gbk"),
        (b"", None),
        (b"<", None),
    ],
)
def test_meta_declares_the_encoding_within_the_first_kilobyte(head: bytes, charset: str | None) -> None:
    assert declared_charset(None, head) == charset


@given(
    st.none() | st.text(max_size=40),
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [b"<meta ", b"charset=", b"utf-8", b"<!--", b"-->", b"<a ", b"'", b'"', b">", b"/", b"=", b"<?", b" "]
        )
    ).map(b"".join),
)
def test_no_head_breaks_the_search_for_an_encoding(label: str | None, head: bytes) -> None:
    for kind in BodyKind:
        assert isinstance(decode_body(head, charset_of(label, head, kind)), str)


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode(), "utf-8", "é"),
        (b"\xef\xbb\xbfx", "utf-8", "x"),
        (b"a\xffb", "utf-8", "a\ufffdb"),
        (b"\xe9", None, "é"),
        ("é".encode(), None, "é"),
        (b"\xef\xbb\xbfx", None, "x"),
        (b"\x93x\x94", "latin1", "“x”"),
        (b"\x81", "windows-1252", "\x81"),
        (b"\x80\xaa\xd2", "windows-1253", "€\ufffd\ufffd"),
        (b"\x81\xa4", "tis-620", "\x81ค"),
        ("表①".encode("cp932"), "shift_jis", "表①"),
        ("𠀀".encode("gb18030"), "gb2312", "𠀀"),
        (b"\xff\xfea\x00", "utf-16-le", "a"),
        (b"a\x00b", "utf-16-le", "a\ufffd"),
        (b"x", "rot13", "x"),
        (b"x", "no such charset", "x"),
        (b"x", "", "x"),
        (b"", "utf-8", ""),
    ],
)
def test_body_is_decoded_as_browsers_do(body: bytes, charset: str | None, text: str) -> None:
    assert decode_body(body, charset) == text


@given(st.binary(), st.none() | st.text(max_size=20) | st.sampled_from(["utf-8", "gbk", "cp949", "iso-2022-jp", "hex"]))
def test_no_body_breaks_the_decoder(body: bytes, charset: str | None) -> None:
    text = decode_body(body, charset)
    assert text.encode("utf-8", "strict").decode() == text


def test_every_label_leads_to_a_codec_that_python_has() -> None:
    for label, codec in _CODEC_BY_LABEL.items():
        assert declared_charset(label, b"") == codec
        assert declared_charset(codec, b"") == codec
        assert codecs.lookup(codec)
        assert decode_body(b"\x00\xff\x80", codec)


# -- declarations that come too late


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        (b"<!--%s--><meta charset=koi8-r>" % (b"x" * 1024), "koi8-r"),
        (b" " * 1005 + b"<meta charset=gbk />", "gbk"),
        (b"<title>%s</title><META\nCHARSET=koi8-r>" % (b"x" * 9000), "koi8-r"),
        # A browser's prescan does not know that a script is text.
        (b"<script>'<meta charset=gbk>%s'</script><meta charset=koi8-r>" % (b"x" * 2000), "gbk"),
        (b"%s<script>'<meta charset=gbk>'</SCRIPT ><meta charset=koi8-r>" % (b"x" * 2000), "koi8-r"),
        (b"%s<style><meta charset=gbk></styles></style><meta charset=koi8-r>" % (b"x" * 2000), "koi8-r"),
        (b"%s<script><meta charset=gbk>" % (b"x" * 2000), None),
        (b"%s<title title='</title>'><meta charset=gbk></title><meta charset=koi8-r>" % (b"x" * 2000), "koi8-r"),
        (b" " * PRESCANNED_LATE_BYTES + b"<meta charset=gbk>", None),
    ],
)
def test_a_late_meta_is_met_by_the_parser(body: bytes, charset: str | None) -> None:
    assert declared_charset(None, body) == charset


@pytest.mark.parametrize(
    "piece",
    [b"<", b"<meta x", b"<meta \n", b"<!--", b"<meta ", b"<script>", b"<a b='", b"</title", b"<meta charset=x ", b"<?"],
)
def test_the_late_search_takes_no_more_than_linear_time(piece: bytes) -> None:
    body = piece * (200_000 // len(piece)) + b" charset"
    started = time.process_time()
    declared_charset(None, b" " * 1100 + b"charset" + body)
    assert time.process_time() - started < 2.0


# -- guesses

TEXTS = {
    "windows-1251": "Поезд из Перми приходит рано утром, а автобус до деревни ждёт пассажиров на площади.",
    "koi8-r": "Поезд из Перми приходит рано утром, а автобус до деревни ждёт пассажиров на площади.",
    "ibm866": "Поезд из Перми приходит рано утром, а автобус до деревни ждёт пассажиров на площади.",
    "iso-8859-7": "Το τρένο φτάνει νωρίς το πρωί και το λεωφορείο περιμένει τους επιβάτες στην πλατεία.",
    "windows-1254": "Tren sabah erken geliyor, köye giden otobüs yolcuları meydanda bekliyor, şoför çay içiyor.",
    "windows-1255": "הרכבת מגיעה מוקדם בבוקר והאוטובוס לכפר מחכה לנוסעים בכיכר העיר.",
    "windows-1256": "يصل القطار في الصباح الباكر وتنتظر الحافلة الركاب في ساحة القرية الصغيرة.",
    "iso-8859-2": "Pociąg przyjeżdża wcześnie rano, a autobus do wsi czeka na pasażerów na placu, gdzie śpią gołębie.",
    "windows-1252": "Der Zug kommt früh am Morgen, der Bus wartet für die Fahrgäste „am Platz“ gegenüber der Bäckerei.",
    "cp874": "รถไฟมาถึงแต่เช้าและรถประจำทางรอผู้โดยสารอยู่ที่จัตุรัสกลางหมู่บ้าน",
    "cp932": "列車は朝早く到着し、村へ行くバスは広場で乗客を待っています。",
    "euc-jp": "列車は朝早く到着し、村へ行くバスは広場で乗客を待っています。",
    "iso-2022-jp": "列車は朝早く到着し、村へ行くバスは広場で乗客を待っています。",
    "gbk": "火车清晨到达，开往村庄的公共汽车在广场上等候乘客。",
    "big5hkscs": "火車清晨到達，開往村莊的公共汽車在廣場上等候乘客。",
    "cp949": "기차는 이른 아침에 도착하고 마을로 가는 버스는 광장에서 승객을 기다립니다.",
    "utf-8": "Το τρένο φτάνει νωρίς το πρωί και το λεωφορείο περιμένει τους επιβάτες στην πλατεία.",
}


@pytest.mark.parametrize("charset", TEXTS)
def test_an_undeclared_page_is_guessed_from_its_bytes(charset: str) -> None:
    page = "<!DOCTYPE html><title>x</title>" + " " * 2 * GUESSED_BYTES + "<p>" + TEXTS[charset]
    body = page.encode(charset)
    guess = charset_of(None, body, BodyKind.HTML)
    assert decode_body(body, guess) == page
    assert decode_body(body, None) == page


def test_utf8_with_a_character_cut_is_still_utf8() -> None:
    body = ("é" * 20).encode() + b"\xc3 ..."
    assert charset_of(None, body, BodyKind.TEXT) == "utf-8"
    assert charset_of(None, b"caf\xe9 " * 20, BodyKind.TEXT) == "windows-1252"


@pytest.mark.parametrize(
    ("kind", "body", "charset"),
    [
        (BodyKind.HTML, b"", "windows-1252"),
        (BodyKind.HTML, b"<p>ascii", "windows-1252"),
        (BodyKind.XML, b"<rss>ascii", "utf-8"),
        (BodyKind.XML, b"<?xml version='1.0' encoding='koi8-r'?>", "koi8-r"),
        (BodyKind.XML, b"<meta charset=koi8-r>", "utf-8"),
        (BodyKind.TEXT, b"<meta charset=koi8-r>", "windows-1252"),
        (BodyKind.TEXT, b"\xff\xfea\0", "utf-16-le"),
        (BodyKind.BINARY, b"\xef\xbb\xbf", None),
    ],
)
def test_what_is_asked_depends_on_the_kind_of_body(kind: BodyKind, body: bytes, charset: str | None) -> None:
    assert charset_of(None, body, kind) == charset
    assert charset_of("gbk", b"x", kind) == (None if kind is BodyKind.BINARY else "gbk")
