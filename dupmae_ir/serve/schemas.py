"""The values of the API: requests and responses, as they stand in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from dupmae_ir.index.format.texts import MOST_COLUMNS

Mode = Literal["hybrid", "dense", "impact"]
MODES_TEXT = (
    "rank by meaning (dense), by words (impact), or by the sum of both (hybrid, the default)"
)
Name = Annotated[str, Field(max_length=200)]
Docid = Annotated[str, Field(min_length=1, max_length=32766)]
PathDocid = Annotated[str, Field(min_length=1, max_length=1000)]
"""A document's id in an address, whose length is limited."""
Text = Annotated[str, Field(min_length=1)]
FILTERS = (
    'condition on metadata: NAME =, !=, <, <=, > or >= VALUE; NAME in ("a", "b"); NAME contains "part"; '
    'NAME like "*.md"; NAME under "folder"; NAME is missing; joined by and, or, not and parentheses. Files have path, '
    'type, title, heading, page and modified: path under "notes" and type = "pdf"'
)
"""The language of filters, for schemas."""
Condition = Annotated[str, Field(min_length=1, max_length=10_000, description=FILTERS)]
Value = str | int | float | bool | list[str | int | float | bool]
"""A value of a document's metadata."""
MOST_IDS = 100_000
MAX_FILE = 100_000
"""Characters of a file that one call returns."""


class Asked(BaseModel):
    """Base of the requests: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Restriction(Asked):
    """Which index, and which of its documents."""

    index: Name | None = Field(None, description="name of the index; without it, the first")


class SelectedRequest(Restriction):
    """A restriction to some documents; lists and certificates are those of a collection of these alone."""

    within: list[Docid] | None = Field(
        None,
        max_length=MOST_IDS,
        description="ids of the documents to search; unknown ones are ignored",
    )
    filter: Condition | None = Field(None, description=FILTERS)


class SearchRequest(SelectedRequest):
    """Queries, and what to return for each hit."""

    query: Text | Annotated[list[Text], Field(min_length=1)] = Field(
        description="one query, or several"
    )
    mode: Mode | None = Field(None, description=MODES_TEXT)
    hits: int = Field(10, ge=1, description="hits per query")
    texts: bool = Field(False, description="return title, text and metadata of each hit")
    explain: bool = Field(False, description="return the shares of each hit's score")
    terms: int = Field(
        10, ge=0, le=1024, description="with `explain`: strongest matched words of each hit"
    )


class EncodeRequest(Restriction):
    """Texts to encode."""

    texts: list[Text] = Field(min_length=1, description="texts to encode")
    kind: Literal["query", "document"] = Field(
        "query", description="encode as queries or as documents"
    )
    vectors: bool = Field(True, description="return the dense vectors")


class ExplainRequest(Restriction):
    """A query and the documents whose scores to explain."""

    query: Text
    docids: list[Docid] = Field(min_length=1, max_length=1000)


class NewDocument(Asked):
    """A document to write."""

    docid: PathDocid
    title: str = ""
    text: str
    metadata: dict[
        Annotated[str, Field(min_length=1, max_length=200)],
        str | int | Annotated[float, Field(allow_inf_nan=False)] | bool,
    ] = Field(default_factory=dict, max_length=MOST_COLUMNS)


class WriteRequest(Asked):
    """Documents to add."""

    documents: list[NewDocument] = Field(min_length=1, max_length=1000)
    replace: bool = Field(
        True, description="replace documents with the same ids; false: refuse them"
    )


class DeleteRequest(Asked):
    """Documents to delete."""

    docids: list[PathDocid] = Field(min_length=1, max_length=1000)
    ignore_unknown: bool = Field(False, description="ignore ids that the index does not contain")


class Term(BaseModel):
    """A matched word, all its index terms together, and its contribution, in the unit of the score."""

    term: str = Field(description="the word, as the query has it")
    share: float = Field(description="a summand of `impact`")
    expansion: bool = Field(description="the word is not in the query or not in the text")
    text_words: list[str] = Field(description="the words of the text that match it")


class Shares(BaseModel):
    """The composition of a score."""

    dense: float | None = Field(
        None, description="what the meaning adds (inner product of vectors)"
    )
    impact: float | None = Field(None, description="what the words add (inner product of weights)")
    bm25: float | None = Field(None, description="BM25 score, where a BM25 index joins the sum")
    weights: tuple[float, float, float] = Field(
        (1, 1, 1), description="of dense, impact and bm25 in the sum"
    )
    cls_share: float | None = Field(
        None, description="part of the positive scores that the meaning adds, 0 to 1"
    )
    matched_terms: int = Field(0, description="number of matched words")
    terms: list[Term] = Field(default_factory=list, description="matched words, strongest first")


class StoredText(BaseModel):
    """A document as the index stores it."""

    docid: str
    title: str
    text: str
    metadata: dict[str, Value] = Field(default_factory=dict)


class InFile(BaseModel):
    """Where a passage of a file is; all null for a document that is of no file."""

    path: str | None = Field(None, description="the file")
    member: str | None = Field(None, description="the file inside it, such as an attachment")
    page: int | None = Field(None, description="page of a PDF, from 1")
    slide: int | None = Field(None, description="slide of a presentation, from 1")
    sheet: str | None = Field(None, description="sheet of a workbook")
    row: int | None = Field(None, description="first row of the passage in its sheet, from 1")
    time: str | None = Field(None, description="time of a subtitle, in hours, minutes and seconds")
    heading: str | None = Field(None, description="the nearest heading above the passage")


class FileText(BaseModel):
    """The text of a file."""

    path: str
    text: str
    passages: int
    next_start: int | None = Field(None, description="where the rest begins; null at the end")


class SearchHit(InFile):
    """One hit."""

    rank: int
    docid: str
    score: float
    language: str | None = Field(
        None, description="language of the text, in English; null in an index of one language"
    )
    explanation: Shares | None = None
    document: StoredText | None = Field(
        None, description="null where not asked for, or where the index stores no texts"
    )


class Certificate(BaseModel):
    """The evidence that a list is the exact top k: no other document scores as much as the last hit."""

    exact: bool
    why_not: str | None = Field(None, description="why the list is not certified")
    assumes: str | None = Field(
        None, description="what a certified list takes for granted; null if all of it was checked"
    )
    kth: float | None = Field(None, description="score of the last hit")
    bound: float | None = Field(
        None, description="upper bound on every other document's score; null if none is left"
    )
    scored: int = Field(description="documents whose score was computed exactly")
    depth_dense: int | None = Field(None, description="length of the dense candidate list")
    depth_impact: int | None = Field(None, description="length of the impact candidate list")
    depth_bm25: int | None = Field(None, description="length of the BM25 candidate list")
    depth_sum: int | None = Field(
        None, description="length of the list of an engine that ranks by the sum"
    )
    reranked: int | None = Field(
        None,
        description="first hits, ordered by a reranker's scores; all other fields are about the candidates",
    )
    rerank_seconds: float | None = Field(None, description="time of the reranker")


class QueryResult(BaseModel):
    """The answer to one query. The hits come last, since they are written one by one."""

    query: str
    certificate: Certificate
    hits: list[SearchHit]


class IndexState(BaseModel):
    """Which state of which index an answer comes from."""

    index: str
    index_id: str = Field(description="changes with the contents of the index")
    generation: int = Field(
        description="counts the states of the index that this server has opened, from 1"
    )


class StateFields(TypedDict):
    """The fields of :class:`IndexState`."""

    index: str
    index_id: str
    generation: int


class SearchResponse(IndexState):
    """The answers to all queries of a request, from one state of the index."""

    mode: Mode
    results: list[QueryResult]


class WeightedTerm(BaseModel):
    """A term and its weight."""

    term: str
    weight: float


class Encoding(BaseModel):
    """The representation of one text."""

    text: str
    vector: list[float] | None = Field(None, description="the dense vector")
    terms: list[WeightedTerm] | None = Field(None, description="the term weights, strongest first")


class EncodeResponse(IndexState):
    """The representations of all texts of a request."""

    encodings: list[Encoding]


class Explained(Shares):
    """One document's score and its composition."""

    docid: str
    score: float


class ExplainResponse(IndexState):
    """The composition of each document's score."""

    query: str
    documents: list[Explained]


class DocumentResponse(IndexState):
    """One document, and, if asked for, the passages of its file around it, itself included."""

    document: StoredText
    passages: list[StoredText] = Field(default_factory=list)


class FileResponse(IndexState, FileText):
    """A file."""


class ChangeResponse(IndexState):
    """What a change did. The index that answers from now on is the changed one."""

    documents: int
    added: int
    updated: int
    unchanged: int
    deleted: int


class IndexInfo(IndexState):
    """One index."""

    documents: int = Field(description="documents, or passages of files")
    files: int | None = Field(
        description="files that the passages are of; null for other collections"
    )
    modes: list[Mode]
    dimensions: int | None = Field(description="of the dense vectors")
    scale: float | None = Field(description="impact scale")
    encoder: str
    language: str | None = Field(description="language of word weights with stems")
    reading: float | None = Field(
        description="how often vectors find a passage by another part of it, 0 to 1; null for English, not measured"
    )
    impact_search: str | None = Field(description="how impacts are searched")
    missing: str | None = Field(
        description="what a search cannot find yet, because encode is still reading it; null for a complete index"
    )
    texts: bool = Field(description="whether the index stores titles and texts")
    metadata: list[str] = Field(description="names that a filter can use")
    opened: float = Field(description="seconds since the epoch")


def index_size(index: IndexInfo) -> str:
    """The passages and files of an index, or its documents."""
    size = f"{index.documents:,} documents"
    if index.files is not None:
        size = f"{index.documents:,} passages of {index.files:,} files"
    return f"{size}; {index.missing}" if index.missing else size


class IndexList(BaseModel):
    """All indexes; the first is the default."""

    indexes: list[IndexInfo]


class ReloadResult(BaseModel):
    """What a reload changed."""

    changes: list[ReloadChange]


class ReloadChange(BaseModel):
    """One index that was opened again, removed, or could not be opened (the server's log has the reason)."""

    index: str
    what: Literal["opened", "removed", "failed"]


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"]
    version: str


class Ready(BaseModel):
    """Whether the server takes requests, and how many queries wait."""

    status: Literal["ready", "busy", "stopping"]
    indexes: int
    waiting: int


class Problem(BaseModel):
    """Every error."""

    detail: str


class WrongField(BaseModel):
    """One field of a request and what is wrong with it."""

    loc: list[str | int]
    msg: str
    type: str


class WrongRequest(BaseModel):
    """A request that does not have the documented form."""

    detail: list[WrongField]


ReloadResult.model_rebuild()
