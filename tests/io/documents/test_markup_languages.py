"""AsciiDoc, Org, reStructuredText, LaTeX, manual pages, subtitles, XML, notebooks, wiki links, archives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time

import pytest
from support.document_samples import extract, write_folder, zipped

from dupmae_ir.errors import InputError
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import FileOptions, read_file_parts
from dupmae_ir.io.documents.readers.extracted import Heading, Unreadable
from dupmae_ir.search.view.naming import hidden_markup, without


def shown(name: str, source: str) -> str:
    """What a person sees of a document: its text without what is hidden, on one line."""
    kind, found = extract(name, source.encode())
    hidden = hidden_markup(found.text, {"type": kind, "path": name})
    return " ".join(without(found.text, 0, len(found.text), hidden).split())


def test_asciidoc() -> None:
    source = (
        "= Kiln manual\n:toc: left\n:source-highlighter: rouge\n// a comment\n\n== Firing\n\n"
        "[NOTE]\n====\nHeat *slowly* to "
        "`600` degrees, see <<cooling,the next part>>.\n====\n\n.A listing\n[source,python]\n"
        "----\n== no heading\n----\n\n"
        "* one\n* two https://example.org/kiln[the site] and link:a.html[a page]\n\n=== Cooling\n"
        "image::cone.png[a cone]\n"
    )
    _, found = extract("a.adoc", source.encode())
    assert found.title == "Kiln manual"
    assert [(heading.level, heading.text) for heading in found.headings] == [
        (1, "Kiln manual"),
        (2, "Firing"),
        (3, "Cooling"),
    ]
    assert found.text == source
    assert shown("a.adoc", source) == (
        "Kiln manual Firing Heat slowly to 600 degrees, see the next part. A listing no heading "
        "one two the site and a page "
        "Cooling a cone"
    )


def test_org() -> None:
    source = (
        "#+TITLE: Garden\n#+FILETAGS: :plants:winter:\n#+DATE: <2024-05-01 Wed>\n#+AUTHOR: Anna\n"
        "\n* TODO [#A] Sow beans :spring:\n"
        ":PROPERTIES:\n:ID: 17\n:END:\nUse the /old/ bed, see [[file:bed.org][the plan]].\n"
        "#+begin_src sh\n* no heading\n#+end_src\n"
        "** Water\nDaily.\n"
    )
    _, found = extract("a.org", source.encode())
    assert (found.title, found.metadata) == (
        "Garden",
        {"date": "2024-05-01", "author": ["Anna"], "tags": ["plants", "winter"]},
    )
    assert [(heading.level, heading.text) for heading in found.headings] == [
        (1, "Sow beans"),
        (2, "Water"),
    ]
    assert "see the plan. " in shown("a.org", source)
    assert "17" not in shown("a.org", source)


def test_directives_and_roles_of_restructuredtext_are_hidden() -> None:
    source = (
        "Pumps\n=====\n\n.. note::\n   Call :func:`pump.start` first, see `the manual <https://example.org/m>`_.\n\n"
        ".. code-block:: python\n   :linenos:\n\n   pump.start()\n"
    )
    assert shown("a.rst", source) == (
        "Pumps Call pump.start first, see the manual. python pump.start()"
    )


def test_latex() -> None:
    pytest.importorskip("pylatexenc")
    source = (
        "\\documentclass{article}\n\\usepackage{amsmath}\n\\title{On \\emph{tides}}\n\\begin{document}\n\\maketitle\n"
        "\\section[Short]{Tidal \\textbf{locking}}\\label{sec:a}\nThe Moon's "
        "period~\\cite{kepler} is 5\\% longer. % a comment\n"
        "\\begin{equation}T^2 = a^3\\end{equation}\n\\subsection*{Caf\\'e}\n"
        "\\begin{itemize}\\item one \\item two\\end{itemize}\n"
        "See Figure~\\ref{fig:x} and ``quotes''.\n\\end{document}\nafter"
    )
    kind, found = extract("a.tex", source.encode())
    assert (kind, found.title) == ("tex", "On tides")
    assert [(heading.level, heading.text) for heading in found.headings] == [
        (3, "Tidal locking"),
        (4, "Café"),
    ]
    assert "The Moon's period is 5% longer." in found.text
    assert "T^2 = a^3" in found.text
    for left in ("\\", "cite", "comment", "usepackage", "after", "sec:a", "{"):
        assert left not in found.text


@pytest.mark.parametrize("macros", ["man", "mdoc"])
def test_manual_pages_are_recognised_and_read(macros: str) -> None:
    source = {
        "man": '.\\" a comment\n.TH PUMP 1 "2024-05-01"\n.SH NAME\npump \\- starts a pump\n.SH '
        'OPTIONS\n.TP\n.BR \\-\\-rate " N"\n'
        "Litres for \\fIeach\\fR second.\n.SS Examples\n.B pump \\-\\-rate 5\n",
        "mdoc": ".Dd May 1, 2024\n.Dt PUMP 1\n.Sh NAME\n.Nm pump\n.Nd starts a pump\n.Sh "
        "OPTIONS\n.Bl -tag\n.It Fl rate Ar N\n"
        "Litres for each second.\n.El\n.Ss Examples\n",
    }[macros]
    for name, data in (("pump.1", source.encode()), ("pump.1.gz", gzip.compress(source.encode()))):
        kind, found = extract(name, data)
        assert (kind, found.title) == ("man", "pump(1)")
        assert [heading.text for heading in found.headings] == ["NAME", "OPTIONS", "Examples"]
        assert "starts a pump" in found.text
        assert "rate" in found.text
        assert "Litres for each second." in found.text
        assert "\\" not in found.text
    assert extract("server.log.1", b"10:00 pump started\n10:01 pump stopped\n")[0] == "text"


def test_subtitles_say_when() -> None:
    source = (
        "WEBVTT\n\n1\n00:00:01.000 --> 00:00:03.500 align:start\n<v Anna>The pump is <i>old</i>.\n\n"
        "2\n00:00:03.500 --> 00:00:05.000\n<v Anna>The pump is <i>old</i>.\n\n3\n01:02:07,000 "
        "--> 01:02:09,000\nReplace it &amp; go.\n"
    )
    _, found = extract("talk.vtt", source.encode())
    assert found.text == "The pump is old.\nReplace it & go."
    assert found.place(found.text.index("Replace")) == {"time": "1:02:07"}
    assert found.place(0) == {"time": "0:00:01"}
    with pytest.raises(Unreadable, match="no subtitles"):
        extract("talk.srt", b"words alone")


def test_xml() -> None:
    source = (
        '<?xml version="1.0" encoding="koi8-r"?><book xmlns="urn:x"><title>Погреб</title><!-- '
        "note --><chapter><title>Ключ</title>"
        "<para>Ключ лежит у <emph>садовника</emph>.</para></chapter><item id='17' price='9.5'/>"
        "<name2>Анна</name2></book>"
    )
    _, found = extract("a.xml", source.encode("koi8-r"))
    assert found.title == "Погреб"
    assert (
        found.text
        == "Погреб\n\nКлюч\n\nКлюч лежит у садовника.\n\nitem: id: 17; price: 9.5\nname2: Анна"
    )


@pytest.mark.parametrize("encoding", ["IBM855", "utf-8", "windows-1251"])
def test_feeds_that_are_cut_or_in_rare_encodings_are_read(encoding: str) -> None:
    source = (
        f'<?xml version="1.0" encoding="{encoding}"?><rss><item><title>Погреб</title><link>a?b&c</link>'
        "<description>Ключ лежит у садовника.</description></item><item><title>Самов"
    )
    _, found = extract("feed.xml", source.encode(encoding))
    assert found.title == "Погреб"
    assert "Ключ лежит у садовника." in found.text


def test_old_notebooks() -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Kalman filter"]},
        {"cell_type": "markdown", "source": "The gain balances."},
        {"cell_type": "code", "input": ["x = 1\n", "y = 2"], "outputs": [{"text": "never"}]},
    ]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode()
    _, found = extract("old.ipynb", data)
    assert found.text == "## Kalman filter\n\nThe gain balances.\n\nx = 1\ny = 2"
    assert found.headings == [Heading(0, 2, "Kalman filter")]


def test_wiki_links_fences_callouts_and_tags_are_hidden() -> None:
    source = (
        "# Bread\n\n> [!note] Feed twice a day.\nSee [[Flour types|flour]], [[Yeast]], "
        "![[jar.png]] and [the page](https://e.org).<br>"
        "\n\n```python\nprint('x')\n```\nA List<String> stays.\n"
    )
    assert shown("a.md", source) == (
        "Bread > Feed twice a day. See flour, Yeast, jar.png and the page. print('x') A List<String> stays."
    )


def test_front_matter_becomes_metadata(tmp_path) -> None:
    write_folder(
        tmp_path,
        {
            "a.md": b"---\ntitle: Sourdough\ntags: [bread, '#yeast', 2]\ndate: 2024-05-01\n"
            b"created: 2024-05-01 10:00:00\n---\nFeed.\n",
            "b.md": b"---\ntags: bread, rye\nauthor: Anna\npath: /etc/passwd\ntype: 7\n---\nMore.\n",
            "c.md": b"---\ntags: {a: [\n---\nDamaged.\n",
        },
    )
    documents = {
        document.docid: document.metadata for document in DocumentCollection([str(tmp_path)])
    }
    assert documents["a.md#0"]["tags"] == ["bread", "yeast", "2"]
    assert documents["a.md#0"]["date"] == "2024-05-01"
    assert documents["a.md#0"]["created"] == "2024-05-01 10:00:00"
    assert documents["b.md#0"]["tags"] == ["bread", "rye"]
    assert documents["b.md#0"]["author"] == ["Anna"]
    assert documents["b.md#0"]["path"] == "b.md"
    assert documents["b.md#0"]["type"] == "md"
    assert "tags" not in documents["c.md#0"]


def test_navigation_and_banners_of_pages_are_left_out() -> None:
    pytest.importorskip("lxml")
    page = (
        "<div role=navigation>Menu <div>deep</div></div><div id='cookie-banner' class=x><p>We use cookies</p></div>"
        "<div class='c-consent'>Agree</div><p hidden>secret</p><main><p>The text.</p></main>"
    )
    assert extract("a.html", page.encode())[1].text == "The text."


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("link.txt")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        archive.addfile(link)
    return out.getvalue()


FILES = {
    "docs/a.txt": b"one",
    "docs/.hidden": b"two",
    "__MACOSX/b.txt": b"three",
    "pic.png": b"\x89PNG",
    "in.zip": zipped({"c.md": b"# four"}),
}


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz"])
def test_archives_are_read_like_folders_on_request(tmp_path, name: str) -> None:
    data = zipped(FILES) if name.endswith("zip") else tar(FILES)
    if name.endswith("gz"):
        data = gzip.compress(data)
    write_folder(tmp_path, {name: data})
    with pytest.raises(InputError, match="no text"):
        list(DocumentCollection([str(tmp_path)]))
    collection = DocumentCollection([str(tmp_path)], options=FileOptions(archives=True))
    assert [(document.docid, document.text) for document in collection] == [
        (f"{name}/docs/a.txt#0", "one"),
        (f"{name}/in.zip/c.md#0", "# four"),
    ]
    assert collection.report is not None
    assert collection.report["skipped"] == {".png": 1}


def test_archives_in_archives_have_limits(monkeypatch) -> None:
    data = b"deep"
    name = "a.txt"
    for _ in range(8):
        data = zipped({name: data})
        name = "a.zip"
    *_, part = read_file_parts("a.zip", data, options=FileOptions(archives=True))
    assert part.problem == "more than 5 files deep"
    monkeypatch.setattr("dupmae_ir.io.documents.files.MAX_MEMBERS", 3)
    parts = list(
        read_file_parts(
            "a.zip",
            zipped({f"{i}.txt": b"x" for i in range(9)}),
            options=FileOptions(archives=True),
        )
    )
    assert [part.problem for part in parts] == ["", "", "", "", "more than 3 files in it"]
    monkeypatch.setattr("dupmae_ir.io.documents.files.MAX_MEMBERS", 30)
    monkeypatch.setattr("dupmae_ir.io.documents.files.MAX_UNPACKED", 10)
    parts = list(
        read_file_parts(
            "a.zip",
            zipped({f"{i}.txt": b"x" * 6 for i in range(9)}),
            options=FileOptions(archives=True),
        )
    )
    assert [part.problem for part in parts] == ["", "", "unpacks to more than 0 MiB, the limit"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.adoc", "= a\n" + "----\n" * 50_000),
        ("a.adoc", "=" * 200_000),
        ("a.org", "* a\n" + "#+begin_src\n" * 50_000),
        ("a.org", "* " + "a" * 200_000 + ":"),
        ("a.srt", "00:00:01,000 --> 00:00:02,000\n" * 20_000),
        ("a.srt", "1" * 200_000),
        ("a.tex", "\\section{" + "{" * 50_000),
        ("a.tex", "\\section{a}" * 2_000),
        ("a.tex", "$" * 20_001),
        ("a.man", ".SH " + '"' * 100_000),
        ("a.man", ".B " + "\\f" * 100_000),
        ("a.xml", "<a>" * 100_000),
        ("a.xml", "<a>" + "<b x='1'>t</b>" * 30_000 + "</a>"),
        ("a.md", "---\na: &a [1,1]\nb: [" + "*a," * 3_000 + "]\n---\ntext"),
        ("a.md", "---\ntags: " + "[" * 5_000 + "\n---\ntext"),
    ],
)
def test_hostile_markup_takes_bounded_time(name: str, source: str) -> None:
    began = time.monotonic()
    parts = list(read_file_parts(name, source.encode()))
    for part in parts:
        if part.extracted is not None:
            hidden_markup(part.extracted.text, {"type": str(part.kind)})
    assert time.monotonic() - began < 15
    assert parts
