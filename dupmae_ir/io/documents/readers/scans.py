"""Text of scanned pages and pictures, recognised by RapidOCR, whose models are in its wheel (extra ``ocr``)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable, reason

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_PAGES = 2_000
"""Pages of a file that are recognised: each takes seconds, and a small file can have very many."""
MAX_PIXELS = 40_000_000
"""Pixels of a page: twice those of A4 at 400 dots per inch. A picture with more is refused, a page rendered smaller."""
_MIN_SIDE = 736
"""Pixels of a side to which the detector enlarges a smaller picture; large letters are then found in pieces."""
_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")
_MIN_LINES = 3
"""Lines on each side of a gutter between two columns."""
_MIN_CHARACTERS = 15
"""Characters of a line, on average, in columns of prose; those of a table are shorter, and its rows belong together."""
_MAX_CROSSING = 0.4
"""Share of the lines that may go across a gutter, such as headings above both columns."""


class Line(NamedTuple):
    """A recognised line: its place in pixels from the upper left corner, its text, and the confidence, 0 to 1."""

    left: float
    top: float
    right: float
    bottom: float
    text: str
    confidence: float


class Page(NamedTuple):
    """The text of a page in reading order, and the mean confidence of its lines; 0 for a page without text."""

    text: str
    confidence: float


def recognised_page(pixels: np.ndarray) -> Page:
    """The text of a page: ``pixels`` [height, width, 3] uint8, blue first."""
    result = _engine()(_with_margins(pixels))
    if result.txts is None:
        return Page("", 0.0)
    lines = []
    for corners, text, confidence in zip(result.boxes, result.txts, result.scores, strict=True):
        left, top = corners.min(axis=0).tolist()
        right, bottom = corners.max(axis=0).tolist()
        lines.append(Line(left, top, right, bottom, text, float(confidence)))
    text = without_hyphens("\n".join(_rows(lines)))
    return Page(text, round(fmean(line.confidence for line in lines), 3))


def without_hyphens(text: str) -> str:
    """A text whose words are joined that a line end divides."""
    return _HYPHEN.sub("", text)


def write_page(page: Page, number: int, builder: Builder) -> None:
    """Append a recognised page; its confidence is metadata of its passages."""
    builder.gap("\n\n")
    builder.place({"page": number, "ocr_confidence": page.confidence})
    builder.write(page.text)


def read_picture(data: bytes) -> Extracted:
    """A picture without recognising it: how many pages wait for that."""
    with _opened(data) as picture:
        return Extracted("", waiting_pages=min(getattr(picture, "n_frames", 1), MAX_PAGES))


def recognise_picture(data: bytes) -> Extracted:
    """The text in a picture; a TIFF may have several pages."""
    builder = Builder()
    with _opened(data) as picture:
        for number in range(1, min(getattr(picture, "n_frames", 1), MAX_PAGES) + 1):
            write_page(recognised_page(_frame(picture, number - 1)), number, builder)
    return builder.done()


def _opened(data: bytes) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise Unreadable("not a picture that is known") from None
    except (OSError, ValueError, Image.DecompressionBombError) as e:
        raise Unreadable(f"damaged picture: {reason(e)}") from None
    if picture.width * picture.height > MAX_PIXELS:
        picture.close()
        raise Unreadable(f"more than {MAX_PIXELS:,} pixels")
    return picture


def _frame(picture: Image, number: int) -> np.ndarray:
    """The pixels of a page of a picture, upright as its camera says."""
    import numpy as np
    from PIL import ImageOps

    picture.seek(number)
    if picture.width * picture.height > MAX_PIXELS:
        raise Unreadable(f"more than {MAX_PIXELS:,} pixels")
    upright = ImageOps.exif_transpose(picture)
    # What is transparent is white, as on paper.
    if upright.has_transparency_data:
        from PIL import Image

        colours = upright.convert("RGBA")
        paper = Image.new("RGBA", colours.size, "white")
        paper.alpha_composite(colours)
        upright = paper
    red_first = np.asarray(upright.convert("RGB"))
    return np.ascontiguousarray(red_first[:, :, ::-1])


def _with_margins(pixels: np.ndarray) -> np.ndarray:
    """A page of at least :data:`_MIN_SIDE` pixels a side, with white added on the right and below."""
    import numpy as np

    height, width, _ = pixels.shape
    below = max(0, _MIN_SIDE - height)
    right = max(0, _MIN_SIDE - width)
    return np.pad(pixels, ((0, below), (0, right), (0, 0)), constant_values=255)


@cache
def _engine() -> Any:
    """The recogniser; loading its models takes seconds."""
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            # Turning lines that are upside down changed 4,387 characters of a dense page to 4,360, and helped on none
            # of the scans that were tried.
            "Global.use_cls": False,
            # With two threads a page took as long, and the other core encodes meanwhile.
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _rows(lines: Sequence[Line]) -> Iterator[str]:
    """The text of some lines in reading order: column by column, and what is side by side in a table in one row."""
    gutter = _gutter(lines)
    if gutter is None:
        yield from _joined_rows(lines)
        return
    # Between two lines that go across the gutter, the left column comes before the right one.
    band: list[Line] = []
    for line in sorted(lines, key=_top):
        if line.left < gutter < line.right:
            yield from _columns(band, gutter)
            band = []
            yield line.text
        else:
            band.append(line)
    yield from _columns(band, gutter)


def _columns(lines: Sequence[Line], gutter: float) -> Iterator[str]:
    yield from _rows([line for line in lines if line.right <= gutter])
    yield from _rows([line for line in lines if line.right > gutter])


def _gutter(lines: Sequence[Line]) -> float | None:
    """Where the space between two columns of prose is, in pixels from the left; None without columns."""
    best = None
    fewest_crossing = _MAX_CROSSING * len(lines)
    for candidate in {line.left - 1 for line in lines}:
        left = [line for line in lines if line.right <= candidate]
        right = [line for line in lines if line.left >= candidate]
        crossing = len(lines) - len(left) - len(right)
        if crossing < fewest_crossing and _is_column(left) and _is_column(right):
            fewest_crossing = crossing
            best = candidate
    return best


def _is_column(lines: Sequence[Line]) -> bool:
    if len(lines) < _MIN_LINES:
        return False
    return fmean(len(line.text) for line in lines) >= _MIN_CHARACTERS


def _joined_rows(lines: Sequence[Line]) -> Iterator[str]:
    """From top to bottom; lines whose middles are beside each other are one row."""
    row: list[Line] = []
    for line in sorted(lines, key=_top):
        middle = (line.top + line.bottom) / 2
        if row and not row[0].top <= middle <= row[0].bottom:
            yield _row_text(row)
            row = []
        row.append(line)
    if row:
        yield _row_text(row)


def _row_text(row: Sequence[Line]) -> str:
    return " ".join(line.text for line in sorted(row))


def _top(line: Line) -> float:
    return line.top
