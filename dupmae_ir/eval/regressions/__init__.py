"""Regressions: does this toolkit give the paper's number, and does it still give the number it gave before?

A regression is a TOML file of the folder ``eval``: one system on one collection, or on one family of collections.
Its cases are carried out by the toolkit's own commands; what is found is held against the paper and against the
value that was accepted last.
"""
