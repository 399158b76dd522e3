"""The pages beside the files of ``dupmae-ir servers files``: the commands that load them."""

from __future__ import annotations

import shlex

_BULK = """# {name} for {title}

Made by `dupmae-ir servers files` from the index `{index}`. Add your credentials to the commands (`--netrc`, or a header
in a file), and run them in this folder:

```sh
URL=http://localhost:9200
put() {{ curl -sS -X PUT "$URL/$1" -H "Content-Type: application/json" --data-binary @"$2"; }}
put {name} index.json
for part in bulk-*.ndjson{gz}; do
  curl -sS "$URL/{name}/_bulk?filter_path=errors,items.*.error" \\
    -H "Content-Type: application/x-ndjson" {encoding}--data-binary @"$part"
done
curl -sS -X POST "$URL/{name}/_refresh"
put dupmae_ir_collections records-index.json
put "dupmae_ir_collections/_doc/{name}?refresh=true" record.json
```

Each `_bulk` must print `"errors":false`. The last two commands let `dupmae-ir` search the collection; the first of them
fails if the index of records exists already, which does not matter. Then:

```sh
dupmae-ir servers load --index {path} --to {kind}://localhost:9200 --collection {name} --verify
dupmae-ir search --index {path} --server {kind}://localhost:9200 --collection {name} --query "..."
```

The first compares every row and repairs what is missing. `query-*.json` are bodies for `POST $URL/{name}/_search`, with
the first document of the index as the query; `ot.N` is number N of the vocabulary.
"""
_FEED = """# {name} for Vespa

Made by `dupmae-ir servers files` from the index `{index}`. With the Vespa CLI, in this folder:

```sh
vespa deploy --wait 300 application
{feed}
vespa feed record.jsonl
```

To add the collection to an application that you have, copy `application/schemas/`, add both document types to its
`services.xml`, and set `maxHits` in the default query profile. Then:

```sh
dupmae-ir servers load --index {path} --to vespa://localhost:8080 --collection {name} --verify
dupmae-ir search --index {path} --server vespa://localhost:8080 --collection {name} --query "..."
```

The first compares every document and repairs what is missing. `query-*.json` are bodies for
`POST http://localhost:8080/search/`, with the first document of the index as the query; a key of `ot` is a number of
the vocabulary, and `query-hybrid.json` ranks by the exact sum.
"""
_TITLES = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch"}


def bulk_guide(kind: str, name: str, index: str, compressed: bool) -> str:
    """The page for OpenSearch or Elasticsearch."""
    return _BULK.format(
        name=name,
        title=_TITLES[kind],
        kind=kind,
        index=index,
        path=shlex.quote(index),
        gz=".gz" if compressed else "",
        encoding='-H "Content-Encoding: gzip" ' if compressed else "",
    )


def feed_guide(name: str, index: str, compressed: bool) -> str:
    """The page for Vespa."""
    feed = "zcat feed-*.jsonl.gz | vespa feed -" if compressed else "vespa feed feed-*.jsonl"
    return _FEED.format(name=name, index=index, path=shlex.quote(index), feed=feed)
