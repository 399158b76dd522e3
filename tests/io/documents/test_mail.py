"""Mail: headers, the text once, attachments as documents of their own, mailboxes, and hostile messages."""

from __future__ import annotations

import base64
import time
from email import policy
from email.message import EmailMessage

import pytest
from support.document_samples import docx, extract, paragraphs, write_folder

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import kind_of, read_file_parts
from dupmae_ir.io.documents.readers.mail import mailbox_members, read_mail

HEADERS = "From: Anna Berg <anna@example.org>\nTo: office@example.org\nSubject: The boiler\n"


def message(text: str = "The boiler is repaired.", **headers: str) -> EmailMessage:
    """A message by the standard library, which writes what programs of today write."""
    mail = EmailMessage(policy=policy.SMTP)
    mail["From"] = headers.pop("sender", "Anna Berg <anna@example.org>")
    mail["To"] = "Office <office@example.org>, Ümit Çelik <umit@example.org>"
    mail["Date"] = "Mon, 04 Mar 2024 12:00:00 +0200"
    mail["Subject"] = headers.pop("subject", "Heizung im Gewächshaus")
    mail["Message-ID"] = "<17@example.org>"
    mail.set_content(text)
    return mail


def parts_of(name: str, data: bytes) -> dict[str, str | None]:
    """Member -> its text; the reason for one that cannot be read, None for one that is no document."""
    found: dict[str, str | None] = {}
    for part in read_file_parts(name, data):
        found[part.member] = part.problem or (part.extracted and part.extracted.text)
    return found


def test_headers_are_decoded_and_become_metadata() -> None:
    _, mail = extract("a.eml", message().as_bytes())
    assert mail.title == "Heizung im Gewächshaus"
    assert mail.metadata == {
        "from": "Anna Berg <anna@example.org>",
        "to": ["Office <office@example.org>", "Ümit Çelik <umit@example.org>"],
        "date": "2024-03-04T10:00:00Z",
        "message_id": "17@example.org",
    }
    assert mail.text.endswith("The boiler is repaired.")


@pytest.mark.parametrize(
    ("header", "subject"),
    [
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?iso-8859-1?q?Gr=FC=DFe?= =?iso-8859-1?q?_aus?= K=?utf-8?b?w7Y=?=ln", "Grüße aus Köln"),
        ("=?utf-8?b?R3LDvMOfZQ==?=\n =?utf-8?b?IGF1cw==?=", "Grüße aus"),
        ("=?koi8-r?b?88HNz9fB0g==?=", "Самовар"),
        ("=?iso-2022-jp?b?GyRCPzc0NEB+GyhC?=", "新幹線"),
        ("=?unknown-8bit?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?b?not base64 at all", "=?utf-8?b?not base64 at all"),
        ("plain words", "plain words"),
    ],
)
def test_subjects(header: str, subject: str) -> None:
    data = f"From: a@example.org\nDate: today\nSubject: {header}\n\nText\n"
    assert read_mail(data.encode()).title == subject


def test_raw_bytes_in_a_header() -> None:
    data = "From: a@b.org\nSubject: Заметка о погребе и самоваре\n\nx\n"
    assert read_mail(data.encode()).title == "Заметка о погребе и самоваре"
    assert read_mail(data.encode("cp1251")).title == "Заметка о погребе и самоваре"


@pytest.mark.parametrize("encoding", ["7bit", "8bit", "quoted-printable", "base64"])
@pytest.mark.parametrize("charset", ["utf-8", "koi8-r", "cp1251"])
def test_bodies_in_every_transfer_encoding(encoding: str, charset: str) -> None:
    text = "Ключ от погреба лежит у садовника под лестницей."
    mail = EmailMessage()
    mail["From"] = "a@example.org"
    if encoding == "7bit":
        text = "The key is under the stairs."
        charset = "us-ascii"
    mail.set_content(text, charset=charset, cte=encoding)
    assert read_mail(mail.as_bytes()).text.endswith(text)


def test_a_wrong_charset_is_not_believed() -> None:
    body = "Ключ от погреба лежит у садовника.".encode()
    data = HEADERS.encode() + b"Content-Type: text/plain; charset=us-ascii\n\n" + body
    assert read_mail(data).text.endswith("Ключ от погреба лежит у садовника.")


def test_the_text_is_there_once_and_html_only_without_plain_text() -> None:
    pytest.importorskip("lxml")
    both = message("The plain text.")
    both.add_alternative("<p>The <b>rich</b> text.</p>", subtype="html")
    assert read_mail(both.as_bytes()).text.endswith("The plain text.")
    blank = message("\n")
    blank.add_alternative("<style>p{}</style><p>The <b>rich</b> text.</p>", subtype="html")
    assert read_mail(blank.as_bytes()).text.endswith("The rich text.")
    related = message("ignored")
    related.set_content("<p>Only HTML.</p>", subtype="html")
    related.add_related(b"\x89PNG", "image", "png", cid="<1>", filename="logo.png")
    found = parts_of("a.eml", related.as_bytes())
    assert found[""].endswith("Only HTML.")
    assert found["logo.png"] is None


def test_attachments_are_documents_of_their_own(tmp_path) -> None:
    pytest.importorskip("docx")
    mail = message()
    mail.add_attachment("Seed list: forty packets of marigold.", filename="seeds.txt")
    mail.add_attachment("Another list.", filename="seeds.txt")
    mail.add_attachment(docx(), "application", "octet-stream", filename="bericht für März.docx")
    mail.add_attachment(b"\x89PNG", "image", "png", filename="picture.png")
    mail.add_attachment(b"name,depth\nreef,3\n", "text", "csv", filename="../../etc/passwd.csv")
    mail.add_attachment(message("The inner text.", subject="Forwarded"))
    write_folder(tmp_path, {"mails/one.eml": mail.as_bytes()})
    collection = DocumentCollection([str(tmp_path)])
    documents = list(collection)
    by_member = {document.metadata.get("member", ""): document for document in documents}
    assert set(by_member) == {
        "",
        "seeds.txt",
        "seeds-2.txt",
        "bericht für März.docx",
        "etc_passwd.csv",
        "Forwarded.eml",
    }
    assert {document.metadata["path"] for document in documents} == {"mails/one.eml"}
    assert by_member["seeds.txt"].docid == "mails/one.eml/seeds.txt#0"
    assert by_member["bericht für März.docx"].metadata["type"] == "docx"
    assert by_member["bericht für März.docx"].title.startswith("A report")
    assert by_member["Forwarded.eml"].text.endswith("The inner text.")
    assert collection.report is not None
    assert collection.report["files"] == 1
    assert collection.report["skipped"] == {".png": 1}
    assert not any("base64" in document.text for document in documents)


@pytest.mark.parametrize("damage", ["cut", "no padding", "letters between"])
def test_damaged_base64_is_decoded_as_far_as_it_goes(damage: str) -> None:
    encoded = base64.encodebytes(paragraphs("boiler", 8).encode()).decode()
    if damage == "cut":
        encoded = encoded[: len(encoded) // 2]
    elif damage == "no padding":
        encoded = encoded.rstrip("=\n")
    else:
        encoded = encoded.replace("\n", "\n!\n")
    data = f"{HEADERS}Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n{encoded}\n"
    assert "boiler number 0" in read_mail(data.encode()).text


def test_flowed_lines_are_joined() -> None:
    data = (
        f"{HEADERS}Content-Type: text/plain; format=flowed\n\n"
        "A paragraph that \ncontinues on the \nnext line.\n\n> quoted \n> words\n  indented\n-- \nAnna\n"
    )
    text = read_mail(data.encode()).text
    assert "A paragraph that continues on the next line.\n\n> quoted" in text
    assert text.endswith("\n indented\n-- \nAnna")


def test_passages_of_quoted_replies_say_so(tmp_path) -> None:
    quoted = "".join(f"> {line}.\n" for line in paragraphs("pump", 30).split(". "))
    (tmp_path / "reply.eml").write_text(
        f"{HEADERS}\n{paragraphs('valve', 30)}\n\nOn Monday Kim wrote:\n\n{quoted}\n{paragraphs('tank', 30)}\n"
    )
    passages = list(DocumentCollection([str(tmp_path)], length=60, overlap=0))
    by_mark: dict[bool, str] = {True: "", False: ""}
    for passage in passages:
        by_mark[bool(passage.metadata.get("quoted"))] += passage.text
    assert "pump number 20" in by_mark[True]
    assert "pump number 20" not in by_mark[False]
    assert "valve number 3" in by_mark[False]
    assert "tank number 20" in by_mark[False]


def test_a_mailbox_has_its_messages_in_order(tmp_path) -> None:
    messages = []
    for number in range(3):
        mail = message(f"Text {number}.\nFrom the roof came water.", subject=f"Letter {number}")
        body = mail.as_bytes(policy=policy.compat32).replace(b"\nFrom the", b"\n>From the")
        messages.append(b"From anna@example.org Mon Mar  4 10:00:00 2024\n" + body)
    data = b"\n".join(messages)
    names = [member.name for member in mailbox_members(data)]
    assert names == ["1.eml", "2.eml", "3.eml"]
    write_folder(tmp_path, {"old.mbox": data, "INBOX": data.replace(b"\n", b"\r\n")})
    documents = list(DocumentCollection([str(tmp_path)]))
    ids = [document.docid for document in documents]
    assert ids == [
        f"{name}/{number}.eml#0" for name in ("INBOX", "old.mbox") for number in (1, 2, 3)
    ]
    assert [document.title for document in documents[3:]] == ["Letter 0", "Letter 1", "Letter 2"]
    assert documents[4].text.endswith("Text 1.\nFrom the roof came water.")


def test_a_maildir_is_read_by_the_contents_of_its_files(tmp_path) -> None:
    name = "cur/1709546400.M17P4.host,S=512:2,S"
    assert kind_of(name) == ""
    write_folder(tmp_path, {name: message().as_bytes(), "notes": b"To: do\nFrom: here\nto there\n"})
    kinds = {
        document.metadata["path"]: document.metadata["type"]
        for document in DocumentCollection([str(tmp_path)])
    }
    assert kinds == {name: "eml", "notes": "text"}


def test_encrypted_messages_are_named(tmp_path) -> None:
    data = (
        f'{HEADERS}Content-Type: multipart/encrypted; boundary="x"\n\n--x\nContent-Type: application/pgp-encrypted\n\n'
        "Version: 1\n--x\nContent-Type: application/octet-stream\n\n-----BEGIN PGP MESSAGE-----\nhQEMA\n--x--\n"
    )
    (tmp_path / "secret.eml").write_text(data)
    collection = DocumentCollection([str(tmp_path)])
    (document,) = collection
    assert "PGP" not in document.text
    assert collection.unreadable == {"secret.eml": "read in part: encrypted"}


def nested(depth: int) -> bytes:
    """Multiparts in multiparts."""
    lines = [HEADERS.rstrip()]
    for level in range(depth):
        lines += [f'Content-Type: multipart/mixed; boundary="b{level}"', "", f"--b{level}"]
    return "\n".join([*lines, "Content-Type: text/plain", "", "deep", ""]).encode()


def forwarded(depth: int) -> bytes:
    """Messages in messages."""
    data = f"{HEADERS}\ninnermost\n"
    for _ in range(depth):
        data = f"{HEADERS}Content-Type: message/rfc822\n\n{data}"
    return data.encode()


HOSTILE = {
    "nested multiparts": nested(10_000),
    "messages in messages": forwarded(300),
    "a long header": b"From: a@b\nSubject: " + b"=?utf-8?q?x?= " * 60_000 + b"\n\ntext\n",
    "many recipients": b"From: a@b\nTo: " + b"<a@b.org>, " * 60_000 + b"\n\ntext\n",
    "brackets": b"From: a@b\nTo: " + b"(" * 60_000 + b"\n\ntext\n",
    "many parts": b'From: a@b\nContent-Type: multipart/mixed; boundary="x"\n\n'
    + b"--x\n\na\n" * 20_000,
    "many parameters": b"From: a@b\nContent-Type: text/plain" + b"; a*0=b" * 60_000 + b"\n\ntext\n",
    "a date that is none": b"From: a@b\nDate: 99 99 99999999999999 99:99:99 +999999\nSubject: x\n\ntext\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_end_soon(name: str) -> None:
    began = time.monotonic()
    parts = list(read_file_parts("a.eml", HOSTILE[name]))
    assert time.monotonic() - began < 20
    assert parts
    for part in parts:
        assert "\n" not in part.problem


def test_a_mailbox_takes_time_in_proportion_to_its_size() -> None:
    line = b"From a@b Mon Mar  4 10:00:00 2024\n"
    one = line + message().as_bytes(policy=policy.compat32) + b"\n"

    def seconds(count: int) -> float:
        data = one * count
        began = time.perf_counter()
        assert sum(1 for _ in mailbox_members(data)) == count
        return time.perf_counter() - began

    seconds(100)
    assert seconds(16_000) < 40 * max(seconds(1_000), 1e-3)
