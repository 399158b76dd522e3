"""Index terms in other languages than English."""

from __future__ import annotations

import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.models.analyzer import stem_spans, stems_and_parts
from dupmae_ir.models.checkpoints.model_config import read_config
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.languages import LANGUAGES, OTHER, Analyzer, is_letter
from dupmae_ir.models.names import embedded_folder

TEXTS = {
    "en": "The boiler shows an error if there is no water in the pipe, and it does not start again.",
    "de": "Die Heizung zeigt einen Fehler an, wenn kein Wasser in der Leitung ist, und startet nicht mehr.",
    "fr": "La chaudière affiche une erreur lorsqu'il n'y a pas d'eau dans le tuyau, et elle ne démarre plus.",
    "es": "La caldera muestra un error cuando no hay agua en la tubería, y no arranca otra vez.",
    "pt": "A caldeira mostra um erro quando não há água no tubo, e não arranca outra vez.",
    "it": "La caldaia mostra un errore quando non c'è acqua nel tubo, e non si avvia di nuovo.",
    "nl": "De ketel geeft een fout aan als er geen water in de leiding is, en start niet meer.",
    "sv": "Pannan visar ett fel när det inte finns vatten i röret, och den startar inte igen.",
    "pl": "Kocioł pokazuje błąd, gdy nie ma wody w rurze, i nie uruchamia się ponownie.",
    "vi": "Nồi hơi báo lỗi khi không có nước trong ống, và nó sẽ không khởi động lại.",
    "tr": "Kazan, boruda su olmadığı için bir hata gösterir ve daha sonra çalışmaz.",
    "ru": "Котёл показывает ошибку, когда в трубе нет воды, и больше не включается.",
    "uk": "Котел показує помилку, коли в трубі немає води, і більше не вмикається.",
    "ar": "تعرض الغلاية خطأ إذا لم يكن هناك ماء في الأنبوب",
    "fa": "وقتی آب در لوله نباشد دیگ خطا نشان می‌دهد و دوباره روشن نمی‌شود",
    "hi": "पाइप में पानी नहीं होने पर बॉयलर एक त्रुटि दिखाता है और फिर से चालू नहीं होता है",
    "el": "Ο λέβητας δείχνει σφάλμα όταν δεν υπάρχει νερό στον σωλήνα",
    "he": "הדוד מציג שגיאה כאשר אין מים בצינור",
    "zh": "管道里没有水时，锅炉会显示错误，并且不会再次启动。",
    "ja": "配管に水がないと、ボイラーはエラーを表示し、再び起動しません。",
    "ko": "배관에 물이 없으면 보일러가 오류를 표시하고 다시 시작되지 않습니다.",
    "th": "หม้อไอน้ำแสดงข้อผิดพลาดเมื่อไม่มีน้ำในท่อ",
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("de", "Die Häuser der Städte", ["haus", "stadt"]),
        ("fr", "l'eau des rivières, aujourd'hui", ["eau", "rivi", "aujourd'hui"]),
        ("ru", "расторгнуть аренду квартиры", ["расторгнут", "аренд", "квартир"]),
        ("tr", "Ankara'nın ILIK suyu", ["ankar", "ılık", "su"]),
        ("el", "Σωλήνας ΣΩΛΗΝΑΣ", ["σωλην", "σωλην"]),
        ("hi", "पाइप में पानी नहीं", ["पाइप", "पान"]),
        ("zh", "北京大学 2026 abc 我", ["北京", "京大", "大学", "2026", "abc", "我"]),
        ("ja", "ボイラーは", ["ボイ", "イラ", "ラー", "ーは"]),
        ("ko", "서울 ABC대학교", ["서울", "abc", "대학", "학교"]),
        ("th", "น้ำในท่อ", None),
        ("pl", "Kotły i woda", ["kotł", "wod"]),
        ("vi", "nước trong ống", ["nước", "ống"]),
        ("other", "Ndege za Air-Tanzania 🚀", ["ndege", "za", "air", "tanzania", "🚀"]),
        (
            "de",
            "threading.Thread.join in HTTPError",
            ["threading.thread.join", "threading", "thread", "join"],
        ),
    ],
)
def test_terms_of_a_language(language, text, terms):
    analyzer = Analyzer(language)
    found = analyzer.terms(text)
    if terms is None:
        assert len(found) > 3
        assert min(len(term) for term in found) == 3
    else:
        assert found[: len(terms)] == terms
    spans = analyzer.spans(text)
    assert [term for term, _, _ in spans] == found
    assert all(text[start:end].strip() for _, start, end in spans)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_reads_every_script(language):
    """Whatever the text, terms are not empty, and lie where they say."""
    text = " ".join(TEXTS.values()) + " ' ’ \ufeff\u200d a\u0301 ＡＢＣ ｶﾀｶﾅ 👩‍👩‍👧 " + "x" * 600
    analyzer = Analyzer(language)
    for term, start, end in analyzer.spans(text):
        assert term
        assert 0 <= start < end <= len(text)
        assert end - start <= 255


def test_english_is_the_analyzer_of_the_embedded_model():
    text = "The readers of itertools.groupby are Waiting; 北京大学 привет"
    assert Analyzer("en").terms(text) == stems_and_parts(text)
    assert Analyzer("en").spans(text) == stem_spans(text, with_parts=True)


def test_an_unknown_language_is_refused_and_letters_are_no_words():
    with pytest.raises(
        UsageError, match=r"`language` must be auto or one of ar, .*got 'dee'\. Did you mean 'de'\?"
    ):
        Analyzer("dee")
    assert [is_letter(text) for text in ("а", "", "水", "ab")] == [True, True, False, False]


def test_a_chinese_text_is_half_as_long_as_its_pairs():
    """At twice the average number of stems a pair that occurs once has the weight of an average text, 1 / (1 + k1)."""
    folder = embedded_folder()
    settings = read_config(folder).lexical
    lexicon = Lexicon.load(folder / "lexicon.safetensors", settings, 0, "zh")
    text = "".join(chr(0x4E00 + n) for n in range(2 * settings.average_stems + 1))
    weights = set(lexicon.document("", text).values())
    assert round(settings.document_scale / (1 + settings.k1)) / settings.document_scale in weights
    assert len(weights) <= 2  # of two pairs in one bucket


def test_function_words_of_a_query_are_left_out_where_texts_keep_them():
    other = Analyzer(OTHER)
    german = Analyzer("de")
    english = Analyzer()
    assert english.query_terms("How do I hide what others have?") == ["hide"]
    assert english.terms("How do I hide what others have?") == [
        "how",
        "do",
        "i",
        "hide",
        "what",
        "other",
        "have",
    ]
    assert english.query_terms("What will be, will be") == ["what"]
    # The words of a language mean nothing in texts of another one.
    assert other.query_terms("Wie kündige ich die Wohnung?", "de") == ["kündige", "wohnung"]
    assert other.query_terms("Où est le quai du train ?", "fr") == ["quai", "train"]
    assert other.query_terms("How do bees die in the cold?", "en") == ["bees", "die", "cold"]
    assert other.query_terms("to be or not to be", "en") == ["to", "be", "or", "not", "to", "be"]
    assert english.query_terms("Wie kündige ich die Wohnung?", "de") == ["kündige", "wohnung"]
    assert german.query_terms("How does the Haus look?", "en") == ["haus", "look"]
    assert german.query_terms("Wie kündige ich die Wohnung?", "de") == german.terms(
        "Wie kündige ich die Wohnung?"
    )
    assert other.query_terms("Wie kündige ich?") == ["wie", "kündige", "ich"]
