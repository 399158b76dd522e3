"""Mail: headers, the text once, attachments as documents of their own, mailboxes, and hostile messages."""

from __future__ import annotations

import base64
import binascii
import time
from email import policy
from email.message import EmailMessage

import pytest
from support.document_samples import docx, extract, paragraphs, write_folder
from support.outlook_samples import compound_file, outlook_tree

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import kind_of, read_file_parts
from dupmae_ir.io.documents.readers.extracted import Unreadable
from dupmae_ir.io.documents.readers.mail import read_mail
from dupmae_ir.io.documents.readers.mailbox import mailbox_members
from dupmae_ir.io.documents.readers.outlook import read_outlook

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
        ("=?iso-8859-1*de?q?Gr=FC=DFe?=", "Grüße"),
        ("=?utf-8?b?R3LD?= =?utf-8?b?vMOfZQ==?=", "Grüße"),
        ("=?utf-8?q?Grüße?= aus Köln", "Grüße aus Köln"),
        ("=?utf-8?q?Who? What?=", "Who? What"),
        ("=?utf-8?b?%%%%?=", "=?utf-8?b?%%%%?="),
        ("x =?utf-8?b??=", "x"),
        ("=?utf-8?b?not base64 at all", "=?utf-8?b?not base64 at all"),
        ("plain words", "plain words"),
    ],
)
def test_subjects(header: str, subject: str) -> None:
    data = f"From: a@example.org\nDate: today\nSubject: {header}\n\nText\n"
    assert read_mail(data.encode()).title == subject


@pytest.mark.parametrize(
    ("header", "people"),
    [
        (
            "=?utf-8?q?Berg=2C_Anna?= <anna@b.org>, kim@b.org",
            ['"Berg, Anna" <anna@b.org>', "kim@b.org"],
        ),
        ("=?utf-8?q?Berg,_Änne?= <anna@b.org>", ["Berg, Änne <anna@b.org>"]),
        ('"Berg, Anna" <anna@b.org>', ['"Berg, Anna" <anna@b.org>']),
        ("Änne <änne@b.org>, žofie@b.org", ["Änne <änne@b.org>", "žofie@b.org"]),
        ("<anna@b.org>", ["anna@b.org"]),
        ("undisclosed-recipients:;", ["undisclosed-recipients:;"]),
        ("Anna Berg", ["Anna Berg"]),
    ],
)
def test_addresses(header: str, people: list[str]) -> None:
    data = f"From: a@example.org\nTo: {header}\n\nText\n".encode()
    assert read_mail(data).metadata["to"] == people


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
        "passwd.csv",
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


def test_comments_in_comments_leave_the_message() -> None:
    data = b"From: a@b.org\nTo: <" + b"(" * 5_000 + b"\n\nThe boiler is repaired.\n"
    assert read_mail(data).text.endswith("The boiler is repaired.")


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


MBOX_LINES = {
    "no blank line before": b"From anna@example.org Mon Mar  4 10:00:00 2024\n",
    "Thunderbird": b"\nFrom - Mon Mar 04 10:00:00 2024\n",
    "Eudora": b"\nFrom ???@??? Mon Mar 04 10:00:00 2024\n",
    "Netscape": b"From - \n",
    "no time": b"\nFrom anna@example.org\n",
}


@pytest.mark.parametrize("name", MBOX_LINES)
def test_a_mailbox_is_split_where_messages_begin(name: str) -> None:
    text = b"From the roof came water.\n\nFrom here on: nothing.\n\nFrom 10:30 on\nit was dry.\n"
    one = MBOX_LINES[name] + HEADERS.encode() + b"\n" + text
    for data in (one * 3, (one * 3).replace(b"\n", b"\r\n"), b"A line before\n" + one * 3):
        members = list(mailbox_members(data))
        assert len(members) == 3
        for member in members:
            assert read_mail(member.data).text.strip().endswith("it was dry.")


def test_a_maildir_is_read_by_the_contents_of_its_files(tmp_path) -> None:
    name = "cur/1709546400.M17P4.host,S=512:2,S"
    assert kind_of(name) == ""
    write_folder(tmp_path, {name: message().as_bytes(), "notes": b"To: do\nFrom: here\nto there\n"})
    kinds = {
        document.metadata["path"]: document.metadata["type"]
        for document in DocumentCollection([str(tmp_path)])
    }
    assert kinds == {name: "eml", "notes": "text"}


@pytest.mark.parametrize("boundary", ["other", "", "wro\n ng"])
def test_parts_behind_a_wrong_boundary_are_found(boundary: str) -> None:
    data = (
        f'{HEADERS}Content-Type: multipart/mixed; boundary="{boundary}"\n\n'
        "--right\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n"
        f"{base64.b64encode('Grüße.'.encode()).decode()}\n"
        '--right\nContent-Type: text/csv; name="a.csv"\n\nname,depth\n--right--\n'
    )
    mail = read_mail(data.encode())
    assert mail.text.endswith("Grüße.")
    assert [(member.name, member.data) for member in mail.members] == [("a.csv", b"name,depth")]


def test_a_multipart_without_parts_is_text() -> None:
    data = f"{HEADERS}Content-Type: multipart/report\n\nThe boiler could not be reached.\n"
    mail = read_mail(data.encode())
    assert mail.text.endswith("The boiler could not be reached.")
    assert mail.members == []


def test_reports_of_mail_servers_are_text() -> None:
    data = (
        f'{HEADERS}Content-Type: multipart/report; boundary="x"\n\n--x\n'
        "Content-Type: message/delivery-status\n\nReporting-MTA: dns; mail.example.org\n\n"
        "Final-Recipient: rfc822; anna@example.org\nDiagnostic-Code: smtp; 552 mailbox is\n full\n\n--x--\n"
    )
    assert read_mail(data.encode()).text.endswith(
        "Final-Recipient: rfc822; anna@example.org\nDiagnostic-Code: smtp; 552 mailbox is full"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ('text/plain; name="Fr\xf6sche.txt"', "Frösche.txt"),
        ('text/plain; name="=?utf-8?q?Fr=C3=B6sche.txt?="', "Frösche.txt"),
        ("text/plain; name*=utf-8''Fr%C3%B6sche.txt", "Frösche.txt"),
        ("text/plain; name*0=Fro; name*1=sche.txt", "Frosche.txt"),
        (r'text/plain; name="C:\TEMP\a.txt"', "a.txt"),
        ("text/x-unheard-of", "attachment.txt"),
        ("image/jpg", "attachment.jpg"),
        ("application/x-unheard-of", "attachment.bin"),
    ],
)
def test_names_of_attachments(kind: str, name: str) -> None:
    data = f'{HEADERS}Content-Type: multipart/mixed; boundary="x"\n\n--x\nContent-Type: {kind}\n\nabc\n--x--\n'
    for encoding in ("latin-1", "utf-8"):
        (member,) = read_mail(data.encode(encoding)).members
        assert member.name == name


def test_bytes_that_are_not_ascii_in_odd_places() -> None:
    data = (
        f'{HEADERS}Content-Type: multipart/mixed; boundary="x"\n\n--x\n'
        "Content-Type: message/delivery-status\n\nReporting-MTA: Köln\n\n--x\n"
        "Content-Type: message/rfc822\n\n"
        'Subject: Grüße\nContent-Type: multipart/mixed; boundary="ü"\n\n--ü\n\nDer Text.\n--ü--\n--x--\n'
    )
    for encoding in ("utf-8", "latin-1"):
        mail = read_mail(data.encode(encoding))
        assert mail.text.endswith("Reporting-MTA: Köln")
        (member,) = mail.members
        assert member.name == "Grüße.eml"
        inner = read_mail(member.data)
        assert inner.title == "Grüße"
        assert "Der Text." in inner.text


def test_a_mark_or_blank_lines_before_the_headers() -> None:
    for before in (b"\xef\xbb\xbf", b"\r\n", b"\n\n"):
        assert read_mail(before + HEADERS.encode() + b"\nText\n").title == "The boiler"


@pytest.mark.parametrize(
    ("note", "is_shown"),
    [
        ("This message is in HTML. Please use a program that can display HTML mail.", False),
        ("To view this message, use an HTML compatible viewer!", False),
        ("", False),
        ("The boiler is repaired. The HTML page is on the wiki.", True),
    ],
)
def test_html_is_read_where_the_plain_text_only_asks_for_it(note: str, is_shown: bool) -> None:
    pytest.importorskip("lxml")
    mail = message(note)
    mail.add_alternative("<p>The <b>rich</b> text.</p>", subtype="html")
    mail.add_alternative("BEGIN:VCALENDAR\nEND:VCALENDAR\n", subtype="calendar")
    text = read_mail(mail.as_bytes()).text
    assert text.endswith(note if is_shown else "The rich text.")


def test_base64_of_pgp_is_no_text() -> None:
    armour = "".join(f"{base64.b64encode(bytes(range(40))).decode()}\n" for _ in range(5))
    signed = (
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nThe boiler is repaired.\n"
        f"-----BEGIN PGP SIGNATURE-----\n\n{armour}-----END PGP SIGNATURE-----\nGoodbye.\n"
    )
    mail = read_mail(f"{HEADERS}\n{signed}".encode())
    assert mail.text.endswith("The boiler is repaired.\n\nGoodbye.")
    assert "AAEC" not in mail.text
    assert mail.problems == []
    for end in ("-----END PGP MESSAGE-----\n", ""):
        mail = read_mail(
            f"{HEADERS}\nHello.\n-----BEGIN PGP MESSAGE-----\n\n{armour}{end}".encode()
        )
        assert mail.text.endswith("Hello.")
        assert mail.problems == ["encrypted"]


def test_a_uuencoded_file_in_the_text_is_an_attachment() -> None:
    data = b"Forty packets of marigold.\n" * 5
    lines = [
        binascii.b2a_uu(data[start : start + 45]).decode() for start in range(0, len(data), 45)
    ]
    encoded = f"begin 644 seeds.txt\n{''.join(lines)}`\nend\n"
    mail = read_mail(f"{HEADERS}\nHere it is.\n\n{encoded}\nAnna\n".encode())
    assert mail.text.endswith("Here it is.\n\n\n\nAnna")
    assert [(member.name, member.data) for member in mail.members] == [("seeds.txt", data)]
    prose = "begin 644 things\nand end none\nend"
    assert read_mail(f"{HEADERS}\n{prose}\n".encode()).text.endswith(prose)


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


OUTLOOK = {
    0x0037: "Über die Heizung",
    0x1000: "The boiler is repaired.\r\n",
    0x0C1A: "Anna Berg",
    0x0C1F: "/O=EXAMPLE/OU=EXCHANGE/CN=RECIPIENTS/CN=BERG",
    0x001A: "IPM.Note",
}
PEOPLE = (
    {0x3001: "'office@example.org'", 0x39FE: "office@example.org", 0x0C15: 1},
    {0x3001: "Kim Lee", 0x39FE: "kim@example.org", 0x0C15: 2},
    {0x3001: "Kim Lee", 0x39FE: "kim@example.org", 0x0C15: 2},
)


def test_a_message_of_outlook() -> None:
    pytest.importorskip("oxmsg")
    inner = outlook_tree(
        OUTLOOK | {0x0037: "Zweite Mail", 0x1000: "The inner text. Grüße"},
        PEOPLE,
        [{0x3705: 1, 0x3701: b"deep", 0x3707: "tief.txt"}],
        header_size=24,
    )
    attachments = [
        {0x3705: 1, 0x3701: b"Forty packets of marigold.", 0x3707: "Süßes.txt"},
        {0x3705: 1, 0x3701: b"a,b\n", 0x3704: "SHORT.CSV"},
        {0x3701: b"no method"},
        {0x3705: 5, 0x3701: inner},
        {0x3705: 4, 0x3707: "link.txt"},
        {0x3705: 2**31 - 1},
    ]
    parts = {
        part.member: part
        for part in read_file_parts(
            "a.msg", compound_file(outlook_tree(OUTLOOK, PEOPLE, attachments))
        )
    }
    mail = parts[""].extracted
    assert mail.title == "Über die Heizung"
    assert mail.text.endswith("The boiler is repaired.")
    assert mail.metadata == {
        "from": "Anna Berg",
        "to": ["office@example.org"],
        "cc": ["Kim Lee <kim@example.org>"],
    }
    assert mail.problems == [f"attachment {number} is a link or an object" for number in (5, 6)]
    assert set(parts) == {
        *("", "Süßes.txt", "SHORT.CSV", "attachment-3.bin"),
        *("Zweite Mail.eml", "Zweite Mail.eml/tief.txt"),
    }
    assert parts["Zweite Mail.eml"].extracted.text.endswith("The inner text. Grüße")
    assert parts["Zweite Mail.eml"].extracted.metadata["cc"] == ["Kim Lee <kim@example.org>"]
    assert parts["Zweite Mail.eml/tief.txt"].extracted.text == "deep"


@pytest.mark.parametrize(
    ("values", "text", "problem"),
    [
        ({0x1013: "<p>Grüße <b>aus</b> Köln".encode(), 0x3FDE: 65001}, "Grüße aus Köln", ""),
        ({0x1013: "<p>Grüße".encode("cp1252"), 0x3FDE: 1252}, "Grüße", ""),
        ({0x1009: b"LZFu"}, "", "its text is only in Rich Text; save it as HTML or plain text"),
    ],
)
def test_texts_of_outlook(values: dict, text: str, problem: str) -> None:
    pytest.importorskip("oxmsg")
    pytest.importorskip("lxml")
    plain = {key: value for key, value in OUTLOOK.items() if key != 0x1000}
    mail = read_outlook(compound_file(outlook_tree(plain | values)))
    assert mail.text.removeprefix("From: Anna Berg").strip() == text
    assert list(mail.problems) == [problem] * bool(problem)


def test_a_damaged_attachment_of_outlook_leaves_the_message() -> None:
    pytest.importorskip("oxmsg")
    tree = dict(outlook_tree(OUTLOOK, PEOPLE))
    tree["__attach_version1.0_#00000000"] = {"__substg1.0_37010102": b"abc"}
    tree["__recip_version1.0_#00000000"] = {"__substg1.0_3001001F": b"abc"}
    mail = read_outlook(compound_file(tree))
    assert mail.text.endswith("The boiler is repaired.")
    assert mail.problems == ["attachment 1 is damaged"]
    assert "to" not in mail.metadata


def test_signed_and_encrypted_messages_of_outlook() -> None:
    pytest.importorskip("oxmsg")
    signed = outlook_tree(
        OUTLOOK | {0x001A: "IPM.Note.SMIME.MultipartSigned"},
        attachments=[{0x3705: 1, 0x3701: message().as_bytes(), 0x3707: "smime.p7m"}],
    )
    (member,) = read_outlook(compound_file(signed)).members
    assert member.name == "signed.eml"
    encrypted = outlook_tree(
        {0x001A: "IPM.Note.SMIME"},
        attachments=[{0x3705: 1, 0x3701: bytes(range(256)), 0x3707: "smime.p7m"}],
    )
    assert read_outlook(compound_file(encrypted)).problems == ["encrypted"]


def test_a_msg_file_that_is_a_plain_message_or_none() -> None:
    assert read_outlook(HEADERS.encode() + b"\nText\n").title == "The boiler"
    with pytest.raises(Unreadable, match="not a message of Outlook"):
        read_outlook(b"abc")


@pytest.mark.parametrize(
    ("parameter", "problem"),
    [
        ("; smime-type=enveloped-data", "encrypted"),
        ("; smime-type=signed-data; name=smime.p7m", "signed in a form that hides its text"),
        ("; name=smime.p7m", "encrypted, or signed in a form that hides its text"),
    ],
)
def test_text_inside_of_smime_is_named(parameter: str, problem: str) -> None:
    data = f"{HEADERS}Content-Type: application/x-pkcs7-mime{parameter}\nContent-Transfer-Encoding: base64\n\nMIAG\n"
    mail = read_mail(data.encode())
    assert mail.problems == [problem]
    assert mail.members == []
    assert "MIAG" not in mail.text


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
    "a paragraph of a million lines": b"From: a@b\nContent-Type: text/plain; format=flowed\n\n"
    + b"a \n" * 1_000_000,
    "brackets": b"From: a@b\nTo: " + b"(" * 60_000 + b"\n\ntext\n",
    "many parts": b'From: a@b\nContent-Type: multipart/mixed; boundary="x"\n\n'
    + b"--x\n\na\n" * 20_000,
    "many attachments of one name": b'From: a@b\nContent-Type: multipart/mixed; boundary="x"\n\n'
    + b"--x\nContent-Type: image/png; name=a.png\n\na\n" * 20_000,
    "many parameters": b"From: a@b\nContent-Type: text/plain" + b"; a*0=b" * 60_000 + b"\n\ntext\n",
    "boundaries that are none": b'From: a@b\nContent-Type: multipart/mixed; boundary="x"\n\n'
    + b"--y\nContent-Type: multipart/mixed; boundary=z\n\n" * 3_000,
    "encoded words that do not end": b"From: a@b\nSubject: "
    + b"=?utf-8?q?x" * 60_000
    + b"\n\ntext\n",
    "armour without an end": b"From: a@b\n\n" + b"-----BEGIN PGP SIGNATURE-----\n" * 60_000,
    "files without an end": b"From: a@b\n\n" + b"begin 644 a\nM1234\n" * 60_000,
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
