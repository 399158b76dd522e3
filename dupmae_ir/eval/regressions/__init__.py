"""Regression tests of retrieval quality: the papers' numbers, and the values this toolkit produced before.

A regression is a TOML file in the folder ``eval``: one system on one collection, or on one family of collections. Its
cases run the toolkit's own commands. Each measured value is compared with the paper and with the last accepted value.

===============  ==================================================================
``cases``        the TOML files, checked and parsed, and the models that cases use
``workspace``    where collections, models, indexes and runs are; downloads and trains
``commands``     the commands of a case
``execute``      runs a case, checks its index and run, and measures it
``verdict``      compares values with the paper and the accepted values
``report``       results as text, Markdown, JSON, JUnit and HTML
``run``          the work of the commands; writes accepted values into the TOML files
===============  ==================================================================
"""
