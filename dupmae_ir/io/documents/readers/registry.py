"""All formats. To add one, write a module with its reader in this folder and list it here."""

from __future__ import annotations

from collections.abc import Iterator

from dupmae_ir.io.documents.readers.format import Format

_LANGUAGES = {
    "python": ("py", "pyi", "pyw", "pyx"),
    "javascript": ("js", "mjs", "cjs", "jsx"),
    "typescript": ("ts", "mts", "cts"),
    "tsx": ("tsx",),
    "java": ("java",),
    "c": ("c",),
    "cpp": ("cpp", "cxx", "cc", "hpp", "hxx", "hh", "h"),
    "csharp": ("cs",),
    "go": ("go",),
    "rust": ("rs",),
    "ruby": ("rb",),
    "php": ("php",),
    "bash": ("sh", "bash", "zsh"),
    "scala": ("scala", "sc"),
    "kotlin": ("kt", "kts"),
    "swift": ("swift",),
    "lua": ("lua",),
    "perl": ("pl", "pm"),
    "haskell": ("hs",),
    "objc": ("m", "mm"),
    "dart": ("dart",),
}
"""Languages that are read by their grammars -> endings of their files."""
_CODE_ENDINGS = (
    "fish r jl sql ml erl ex exs clj el lisp vim awk sed cmake mk tcl css scss less yaml yml toml ini cfg conf "
    "properties proto graphql sty cls bib diff patch"
)


def _language_formats() -> Iterator[Format]:
    for language, endings in _LANGUAGES.items():
        yield Format(language, endings, "source:read_source", language=language)


# The order is also the order in which files without a known ending are recognised, and in which an error message counts
# the files that need a package.
_ALL = (
    Format("text", ("txt", "text", "log", "me"), "text:read_text"),
    Format("rst", ("rst", "rest"), "text:read_text"),
    Format("md", ("md", "markdown", "mdx"), "markdown:read_markdown"),
    Format("html", ("html", "htm", "xhtml"), "html:read_html", ("lxml",)),
    Format("adoc", ("adoc", "asciidoc", "asc"), "lightweight:read_asciidoc"),
    Format("org", ("org",), "lightweight:read_org"),
    Format("subtitles", ("srt", "vtt"), "subtitles:read_subtitles"),
    Format("csv", ("csv", "tsv"), "table:read_table"),
    Format("json", ("json", "jsonl", "ndjson"), "table:read_json"),
    Format("ipynb", ("ipynb",), "notebook:read_notebook"),
    *_language_formats(),
    Format("code", tuple(_CODE_ENDINGS.split()), "code:read_code"),
    Format(
        "eml", ("eml", "mht", "mhtml"), "mail:read_mail", recogniser="mail_headers:begins_as_mail"
    ),
    Format("emlx", ("emlx",), "mail:read_apple_mail"),
    Format(
        "mbox",
        ("mbox", "mbx"),
        splitter="mailbox:mailbox_members",
        recogniser="mail_headers:begins_as_mailbox",
    ),
    Format("msg", ("msg",), "outlook:read_outlook", ("oxmsg", "lxml")),
    Format(
        "man", ("man", "mdoc", "roff"), "manual:read_manual", recogniser="manual:begins_as_manual"
    ),
    Format("zip", ("zip",), "packed:read_zip", archive=True),
    Format("tar", ("tar", "tgz"), "packed:read_tar", archive=True),
    Format("xml", ("xml", "rss", "atom", "dbk", "docbook", "tei"), "xml:read_xml", ("lxml",)),
    Format("epub", ("epub",), "books:read_epub", ("lxml",)),
    Format("tex", ("tex", "ltx", "latex"), "latex:read_latex", ("pylatexenc",)),
    Format("docx", ("docx", "docm", "dotx"), "office:read_docx", ("lxml", "docx")),
    Format("pptx", ("pptx", "pptm", "ppsx", "potx"), "office:read_pptx", ("lxml", "pptx")),
    Format("doc", ("doc", "dot"), "office:read_old_word", ("lxml", "docx", "striprtf")),
    Format("ppt", ("ppt", "pps"), "office:read_old_slides", ("lxml", "pptx")),
    Format("odt", ("odt", "ott", "fodt"), "opendocument:read_opendocument", ("lxml",)),
    Format("odp", ("odp", "otp", "fodp"), "opendocument:read_opendocument", ("lxml",)),
    Format("rtf", ("rtf",), "rtf:read_rtf", ("striprtf",)),
    Format(
        "sheet",
        ("xlsx", "xlsm", "xls", "xlsb", "ods", "xltx"),
        "sheets:read_sheets",
        ("lxml", "python_calamine"),
    ),
    Format("pdf", ("pdf",), "pdf:read_pdf", ("pypdfium2",), recognising_reader="pdf:recognise_pdf"),
    Format(
        "picture",
        ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "webp"),
        "scans:read_picture",
        ("PIL",),
        recognising_reader="scans:recognise_picture",
        picture=True,
    ),
)


def _kinds_by_ending() -> dict[str, str]:
    kinds = {}
    for entry in _ALL:
        for ending in entry.endings:
            kinds[ending] = entry.kind
    return kinds


def _kinds_by_package() -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for entry in _ALL:
        for package in entry.packages:
            kinds.setdefault(package, []).append(entry.kind)
    return kinds


FORMATS = {entry.kind: entry for entry in _ALL}
"""Kind of a file -> its format."""

KINDS = _kinds_by_ending()
"""Ending of a name -> kind. Any other file is text if its beginning is."""


def language_of(name: str) -> str:
    """The programming language of a file by its name; empty for one without a grammar."""
    kind = KINDS.get(name.rpartition(".")[2].lower())
    return FORMATS[kind].language if kind else ""


PACKAGES = _kinds_by_package()
"""Package of the extra -> the kinds of files that need it."""
