"""DPR's answer accuracy: the share of queries with an answer in one of the first k passages."""

from dupmae_ir.eval.answers.accuracy import accuracy, first_ranks, read_answers

__all__ = ["accuracy", "first_ranks", "read_answers"]
