"""What is no text becomes no passage, and is counted and named; what has sentences stays."""

from __future__ import annotations

import base64
import random

import pytest
from support.document_samples import paragraphs

from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.garbage import garbage_kind

RNG = random.Random(20261127)
DATA = RNG.randbytes(1200)
ROWS = range(0, 320, 16)
GARBAGE = {
    "base64": [
        base64.encodebytes(DATA).decode(),
        base64.b64encode(DATA).decode(),
        base64.urlsafe_b64encode(DATA).decode(),
        base64.encodebytes(paragraphs("mail", 20).encode()).decode(),
        f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(DATA).decode()}-----END CERTIFICATE-----",
    ],
    "hexadecimal data": [
        DATA.hex(),
        DATA.hex(" "),
        DATA.hex(" ", 4).upper(),
        "\n".join(
            f"{row:08x}  {DATA[row : row + 16].hex(' ')}  |................|" for row in ROWS
        ),
    ],
    "numbers": [
        "\n".join(f"{i} {RNG.random():.3f} {RNG.gauss(0, 9):.2f}" for i in range(80)),
        "\n".join(f"vector: {RNG.random():.6f}" for _ in range(90)),
        "\n".join(f"{i}\t{RNG.randint(0, 99999)}" for i in range(90)),
    ],
    "minified code": [
        '!function(e,t){"use strict";var n=e[t.expando],r=t.prototype={cache:function(e){return n||(n={},$(e)&&'
        "(e.nodeType?e[this.expando]=t:Object.defineProperty(e,this.expando,{value:t,configurable:!0}))),n}}}(a,b);",
        ".a{color:#fff;margin:0;padding:0}.b{display:none}.c:hover{color:red;border:0}" * 4,
    ],
}
TOWNS = "Bremen Kiel Ulm Jena Trier Celle Husum Emden Fulda Gera Hagen Lindau Mainz Passau".split()  # noqa: SIM905
TEXT = {
    "prose": paragraphs("pump", 12),
    "Chinese": "图书馆每周一闭馆，其余时间从上午九点开放到晚上八点。" * 20,
    "code": "def read(path: str) -> bytes:\n    with open(path, 'rb') as f:\n        return f.read()\n\n"
    * 5,
    "paths": "libs/geometry/index/test/rtree/generated/p2d/rtree_rst_mod_p2d.cpp\n" * 12,
    "Java classes": "AbstractSingletonProxyFactoryBeanFactoryImplementationOfThings\n" * 12,
    "mangled symbols": "_ZNKSt8time_putIwSt19ostreambuf_iteratorIwSt11char_traitsIwEEE6do_putES3_RSt8ios_base\n"
    * 8,
    "digests": "\n".join(f"{RNG.randbytes(32).hex()}  file-{i}.whl" for i in range(12)),
    "numbers of faults": "Corrected: "
    + ", ".join(str(RNG.randint(1000, 99999)) for _ in range(120)),
    "a row of a sheet": "\n".join(
        f"name: Reef {i}; depth: {i}; length: {2 * i}; open: May" for i in range(30)
    ),
    "telephone numbers": "\n".join(
        f"{town}: +49 30 {RNG.randint(10**6, 10**7)}, room {i}" for i, town in enumerate(TOWNS)
    ),
    "a key in a note": f"The key of the door is {base64.b64encode(DATA[:32]).decode()}.",
    "addresses": "https://example.org/docs/reference/search/hybrid?mode=exact&k=10#examples\n" * 10,
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in GARBAGE.items() for text in texts]
)
def test_what_is_no_text(kind: str, text: str) -> None:
    assert garbage_kind(text) == kind


@pytest.mark.parametrize("name", TEXT)
def test_what_is_text(name: str) -> None:
    assert garbage_kind(TEXT[name]) is None


def test_garbage_is_counted_and_named_and_the_rest_of_the_file_stays(tmp_path) -> None:
    encoded = base64.encodebytes(RNG.randbytes(9000)).decode()
    (tmp_path / "report.txt").write_text(
        f"{paragraphs('pump', 20)}\n\n{encoded}\n\n{paragraphs('valve', 20)}\n"
    )
    (tmp_path / "dump.txt").write_text(RNG.randbytes(3000).hex(" "))
    collection = DocumentCollection([str(tmp_path)])
    documents = list(collection)
    assert {document.metadata["path"] for document in documents} == {"report.txt"}
    texts = " ".join(document.text for document in documents)
    assert "pump number 19" in texts
    assert "valve number 19" in texts
    report = collection.report
    assert report is not None
    assert set(report["garbage"]) == {"report.txt", "dump.txt"}
    assert report["garbage"]["dump.txt"].endswith(" of hexadecimal data")
    assert report["garbage"]["report.txt"].endswith(" of base64")
    assert report["garbage_passages"] > 10
    # Ids keep their numbers, so that those after the garbage do not change when it does.
    numbers = [int(document.docid.rpartition("#")[2]) for document in documents]
    assert numbers == sorted(numbers)
