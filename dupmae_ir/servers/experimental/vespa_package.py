"""The application package of a collection in Vespa: schemas, services, and the limits of its queries.

The schema of a collection has the [CLS] vector as a dense tensor, the impacts as a weighted set, and one rank profile
for each kind of list. The first phase of ``hybrid`` is the sum of DupMAE, Eq. 12, over every document that matches.
Load records are documents of a schema of their own.
"""

from __future__ import annotations

from dupmae_ir.servers.protocol import Spec

RECORDS = "dupmae_ir_collections"
DEEPEST = 100_000

_SERVICES = """<?xml version="1.0" encoding="utf-8" ?>
<services version="1.0">
    <container id="default" version="1.0">
        <search />
        <document-processing />
        <document-api />
    </container>
    <content id="dupmae_ir" version="1.0">
        <min-redundancy>1</min-redundancy>
        <documents>
            <document type="{name}" mode="index" />
            <document type="{records}" mode="index" />
        </documents>
    </content>
</services>
"""
_PROFILE = f"""<query-profile id="default">
    <field name="maxHits">{DEEPEST}</field>
</query-profile>
"""
_RECORDS_SCHEMA = f"""schema {RECORDS} {{
    document {RECORDS} {{
        field record type string {{
            indexing: summary
        }}
    }}
}}
"""
_SCHEMA = """schema {name} {{
    document {name} {{
        struct named_number {{
            field named type string {{}}
            field number type double {{}}
        }}
        field docid type string {{
            indexing: attribute | summary
        }}
        field fingerprint type string {{
            indexing: summary
        }}
        field title type string {{
            indexing: summary
        }}
        field text type string {{
            indexing: summary
        }}
        field metadata type string {{
            indexing: summary
        }}
        field facts type array<string> {{
            indexing: attribute
            attribute: fast-search
            match: word
            rank: filter
        }}
        field numbers type array<named_number> {{
            indexing: summary
            struct-field named {{
                indexing: attribute
                attribute: fast-search
            }}
            struct-field number {{
                indexing: attribute
            }}
        }}
{fields}    }}
    document-summary ids {{
        summary docid {{}}
    }}
{profiles}}}
"""
_CLS = """        field cls type tensor<float>(x[{dim}]) {{
            indexing: {indexing}
            attribute {{
                distance-metric: dotproduct
            }}
        }}
"""
_OT = """        field ot type weightedset<int> {
            indexing: attribute
            attribute: fast-search
        }
"""
_RANK_PROFILE = """    rank-profile {name} {{
{inputs}        first-phase {{
            expression: {expression}
        }}
    }}
"""
_DENSE, _IMPACT = "sum(query(q) * attribute(cls))", "dotProduct(ot,r)"


def application(name: str, spec: Spec, approximate: bool) -> dict[str, str]:
    """The files of the package by their paths. ``approximate``: with an HNSW index of the vectors."""
    return {
        "services.xml": _SERVICES.format(name=name, records=RECORDS),
        f"schemas/{name}.sd": schema(name, spec, approximate),
        f"schemas/{RECORDS}.sd": _RECORDS_SCHEMA,
        "search/query-profiles/default.xml": _PROFILE,
    }


def schema(name: str, spec: Spec, approximate: bool) -> str:
    """The schema of a collection. Its rank profiles are named after the kinds of lists."""
    indexing = "attribute | index" if approximate else "attribute"
    fields = _CLS.format(dim=spec.dim, indexing=indexing) if spec.dim else ""
    vector = {"q": f"tensor<float>(x[{spec.dim}])"}
    profiles = _rank_profile("dense", _DENSE, vector) if spec.dim else ""
    if spec.terms:
        fields += _OT
        profiles += _rank_profile("impact", "rawScore(ot)", {})
    if spec.dim and spec.terms:
        weights = {"dense_weight": "double", "impact_weight": "double"}
        total = f"query(dense_weight) * {_DENSE} + query(impact_weight) * {_IMPACT}"
        profiles += _rank_profile("hybrid", total, vector | weights)
    return _SCHEMA.format(name=name, fields=fields, profiles=profiles)


def _rank_profile(name: str, expression: str, inputs: dict[str, str]) -> str:
    lines = "".join(f"            query({key}) {kind}\n" for key, kind in inputs.items())
    block = f"        inputs {{\n{lines}        }}\n" if inputs else ""
    return _RANK_PROFILE.format(name=name, expression=expression, inputs=block)
