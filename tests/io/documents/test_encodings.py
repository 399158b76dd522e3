"""Files that do not say their encoding: read as they were written, with the guess recorded, or named."""

from __future__ import annotations

import json
import random

import pytest
from support.document_samples import extract

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.readers.encodings import decoded, looks_like_text
from dupmae_ir.io.documents.readers.extracted import Unreadable

TEXTS = {
    "Russian": "Самовар стоит на веранде, а варенье в погребе. Ключ от погреба лежит у садовника под лестницей.",
    "Ukrainian": "Їжак живе під ґанком, а ключі від льоху лежать у шухляді біля вікна.",
    "Greek": "Το κλειδί του κελαριού βρίσκεται κάτω από τη σκάλα, δίπλα στο βαρέλι με το λάδι.",
    "Japanese": "新幹線は東京と大阪の間を走る高速鉄道である。切符は駅の窓口で買える。",
    "Chinese": "图书馆每周一闭馆，其余时间从上午九点开放到晚上八点。",
    "Taiwanese": "圖書館每週一閉館，其餘時間從上午九點開放到晚上八點。",
    "Korean": "도서관은 매주 월요일에 문을 닫으며 나머지 요일에는 오전 아홉 시에 연다.",
    "German": "Der Schlüssel zum Keller hängt über der Tür, und die Größe des Fasses weiß nur der Gärtner.",
    "Polish": "Klucz do piwnicy wisi nad drzwiami, a słoik z miodem stoi na półce obok żółtej łyżki.",
    "Turkish": "Kilerin anahtarı merdivenin altında, zeytinyağı fıçısının yanında asılı duruyor.",
    "Hebrew": "המפתח למרתף תלוי מעל הדלת ליד החבית של השמן והגנן יודע איפה הוא.",
    "Arabic": "مفتاح القبو معلق فوق الباب بجانب برميل الزيت والبستاني يعرف مكانه.",
    "Thai": "กุญแจห้องใต้ดินแขวนอยู่เหนือประตูข้างถังน้ำมัน",
}
ENCODINGS = {
    "Russian": ("cp1251", "koi8-r", "iso8859-5", "cp866", "utf-16-le", "utf-16-be"),
    "Ukrainian": ("cp1251", "koi8-u"),
    "Greek": ("cp1253", "iso8859-7", "utf-16-le"),
    "Japanese": ("shift_jis", "euc_jp", "iso2022_jp", "utf-16-le", "utf-16-be"),
    "Chinese": ("gb18030", "gbk", "utf-16-le", "utf-32-le"),
    "Taiwanese": ("big5",),
    "Korean": ("euc_kr", "iso2022_kr", "utf-16-be"),
    "German": ("cp1252", "iso8859-1", "utf-16-le", "utf-32-be"),
    "Polish": ("cp1250", "iso8859-2"),
    "Turkish": ("cp1254",),
    "Hebrew": ("cp1255", "iso8859-8"),
    "Arabic": ("cp1256", "iso8859-6"),
    "Thai": ("cp874", "utf-16-le", "utf-16-be"),
}
CASES = [(language, encoding) for language, names in ENCODINGS.items() for encoding in names]


@pytest.mark.parametrize(("language", "encoding"), CASES)
def test_a_text_without_a_declaration_is_read_as_it_was_written(
    language: str, encoding: str
) -> None:
    text = f"{TEXTS[language]}\n{TEXTS[language]}\n"
    result = decoded(text.encode(encoding))
    assert result.text == text
    assert result.guess is not None
    assert 0 < result.guess.certainty <= 1
    # The guess names an encoding that gives this text, perhaps under a wider name.
    assert text.encode(encoding).decode(result.guess.encoding) == text


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_what_the_bytes_say_is_no_guess(language: str, encoding: str) -> None:
    assert decoded(TEXTS[language].encode(encoding)) == (TEXTS[language], None)


def test_a_wrong_byte_in_utf_8_does_not_change_the_other_characters() -> None:
    data = (TEXTS["Russian"] * 3).encode() + b"\xff" + TEXTS["Russian"].encode()
    text, guess = decoded(data)
    assert text.startswith(TEXTS["Russian"])
    assert text.count("\ufffd") == 1
    assert guess is not None
    assert guess.encoding == "utf-8"
    assert 0.9 < guess.certainty < 1


def test_the_detector_sees_what_is_not_ascii_at_the_end_of_a_long_file() -> None:
    line = "2024-03-04 10:00:00 the pump runs\n"
    text = line * 30_000 + f"{TEXTS['Russian']}\n" * 2
    assert decoded(text.encode("cp1251")).text == text


def test_a_nul_in_a_cell_is_a_blank(tmp_path) -> None:
    data = b"name,depth\nGull Bank,12\nHerring\0 Deep,340\nLong Reach,9\n"
    _, extracted = extract("reefs.csv", data)
    assert "name: Herring  Deep" in extracted.text or "name: Herring Deep" in extracted.text


def test_a_declaration_is_believed_unless_the_bytes_contradict_it() -> None:
    page = '<html><meta charset="koi8-r"><p>{}</p></html>'.format(TEXTS["Russian"])
    assert decoded(page.encode("koi8-r"), declared=True) == (page, None)
    # Unknown to the reader of plain text, which the detector sees, too.
    assert decoded(page.encode("koi8-r")).text == page
    source = f"# -*- coding: cp1251 -*-\n# {TEXTS['Russian']}\nx = 1\n"
    _, extracted = extract("a.py", source.encode("cp1251"))
    assert (extracted.text, extracted.guess) == (source, None)
    unknown = "<meta charset=klingon><p>caf\u00e9"
    assert decoded(unknown.encode(), declared=True) == (unknown, None)


def test_binary_data_is_no_text() -> None:
    rng = random.Random(3)
    for size in (200, 5_000, 100_000):
        data = rng.randbytes(size)
        assert not looks_like_text(data)
        with pytest.raises(Unreadable, match="binary"):
            decoded(data)


def test_bytes_of_no_encoding_are_named() -> None:
    rng = random.Random(4)
    data = bytes(rng.choice([*range(32, 127), *range(128, 256)]) for _ in range(4_000))
    with pytest.raises(Unreadable, match="save it as UTF-8"):
        decoded(data)


def test_the_guess_is_recorded(tmp_path) -> None:
    (tmp_path / "russian.txt").write_bytes(TEXTS["Russian"].encode("cp1251"))
    (tmp_path / "english.txt").write_text("The key is under the stairs.")
    collection = DocumentCollection([str(tmp_path)])
    by_path = {document.metadata["path"]: document for document in collection}
    assert by_path["russian.txt"].text == TEXTS["Russian"]
    assert by_path["russian.txt"].metadata["encoding"] == "cp1251"
    assert "encoding" not in by_path["english.txt"].metadata
    assert collection.report is not None
    assert list(collection.report["guessed"]) == ["russian.txt"]
    assert collection.report["guessed"]["russian.txt"].startswith("cp1251, ")
    json.dumps(collection.report)
