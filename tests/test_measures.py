from __future__ import annotations

import pytest

from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.measures import FAMILIES, Measure, parse_measures


@pytest.mark.parametrize(
    ("text", "measure", "flags"),
    [
        ("nDCG@10", Measure("nDCG", 10), "-c -m ndcg_cut.10"),
        ("nDCG", Measure("nDCG"), "-c -m ndcg"),
        ("MRR@10", Measure("MRR", 10, 1), "-c -M 10 -m recip_rank"),
        ("RR(rel=2)@10", Measure("RR", 10, 2), "-c -l 2 -M 10 -m recip_rank"),
        ("AP(rel=2)@100", Measure("AP", 100, 2), "-c -l 2 -m map_cut.100"),
        ("MAP", Measure("MAP", None, 1), "-c -m map"),
        ("R@1000", Measure("R", 1000, 1), "-c -m recall.1000"),
        ("P@5", Measure("P", 5, 1), "-c -m P.5"),
        ("Success@1", Measure("Success", 1, 1), "-c -m success.1"),
        ("IPrec@0.1", Measure("IPrec", 0.1, 1), "-c -m iprec_at_recall.0.10"),
        ("Judged@10", Measure("Judged", 10), None),
        ("NumRet", Measure("NumRet"), "-c -m num_ret"),
        ("NumRet(rel=1)", Measure("NumRet", None, 1), "-c -m num_rel_ret"),
        ("Bpref", Measure("Bpref", None, 1), "-c -m bpref"),
    ],
)
def test_a_name_its_meaning_and_back(text, measure, flags):
    assert parse_measures([text]) == (measure,)
    assert str(measure) == text
    assert measure.trec_flags() == flags


@pytest.mark.parametrize(
    ("trec", "ours"),
    [
        ("ndcg_cut.10", ["nDCG@10"]),
        ("ndcg_cut_5,10", ["nDCG@5", "nDCG@10"]),
        ("recall.100", ["R@100"]),
        ("map_cut_100", ["MAP@100"]),
        ("P_5,10", ["P@5", "P@10"]),
        ("recip_rank", ["MRR"]),
        ("judged.10", ["Judged@10"]),
        ("iprec_at_recall_0.10", ["IPrec@0.1"]),
        ("num_rel_ret", ["NumRet(rel=1)"]),
        ("bpref", ["Bpref"]),
        ("map", ["MAP"]),
        ("set_map", ["SetAP"]),
        ("success.1", ["Success@1"]),
        ("infAP", ["infAP"]),
        ("Rprec", ["Rprec"]),
    ],
)
def test_trec_evals_own_spellings(trec, ours):
    assert [str(m) for m in parse_measures([trec])] == ours


def test_every_family_reads_back_and_ir_measures_knows_it():
    from ir_measures import judged, pytrec_eval

    for name, family in FAMILIES.items():
        spellings = [name] if family.trec else []
        spellings += [f"{name}@{'0.5' if name == 'IPrec' else 7}"] if family.trec_cut else []
        for measure in parse_measures(spellings):
            assert parse_measures([str(measure)]) == (measure,)
            provider = judged if name == "Judged" else pytrec_eval
            assert provider.supports(measure.in_ir_measures())
            if (trec := measure.trec_name) is not None:
                assert parse_measures([trec])[0].in_ir_measures() == measure.in_ir_measures()


def test_relevance_level_holds_where_none_is_named():
    wanted = ["MAP", "AP(rel=3)", "nDCG@10", "R@5", "NumRet", "num_rel_ret"]
    assert [str(m) for m in parse_measures(wanted, rel_level=2)] == [
        "MAP(rel=2)",
        "AP(rel=3)",
        "nDCG@10",
        "R(rel=2)@5",
        "NumRet",
        "NumRet(rel=2)",
    ]


def test_duplicates_are_asked_once():
    assert parse_measures(["nDCG@10", "ndcg_cut.10", Measure("nDCG", 10)]) == (Measure("nDCG", 10),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndgc@10", "no measure named 'ndgc@10'.*Did you mean 'nDCG@10'"),
        ("nDGC@10", "Did you mean 'nDCG@10'"),
        ("recal_10", "Did you mean 'R@10'"),
        ("XYZ@10", "no measure named 'XYZ@10'; known: nDCG, MRR"),
        ("gm_map", "no measure named"),
    ],
)
def test_unknown_names_are_suggested(text, message):
    with pytest.raises(UnknownName, match=message):
        parse_measures([text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("R", "needs a cutoff, as in R@10"),
        ("IPrec", r"as in IPrec@0\.1"),
        ("Rprec@10", "Rprec has no cutoff"),
        ("nDCG@0", "integer of at least 1"),
        ("nDCG@", "integer of at least 1"),
        ("nDCG@ten", "integer of at least 1"),
        ("IPrec@1.5", "recall from 0 to 1"),
        ("nDCG(rel=2)@10", "nDCG has no relevance level"),
        ("AP(level=2)", "only parameter is rel"),
        ("AP(rel=0)", "grade of at least 1"),
        ("AP(rel=x)", "grade of at least 1"),
        ("AP(rel=2", "is not a measure"),
        ("", "is not a measure"),
    ],
)
def test_misuse_is_explained(text, message):
    with pytest.raises(UsageError, match=message):
        parse_measures([text])


def test_all_mistakes_in_one_line():
    with pytest.raises(UsageError, match=r"needs a cutoff.*; .*no cutoff") as e:
        parse_measures(["R", "nDCG@10", "Rprec@3"])
    assert "\n" not in str(e.value)
    with pytest.raises(UsageError, match="no measure given"):
        parse_measures([])
