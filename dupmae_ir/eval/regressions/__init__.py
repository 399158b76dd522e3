"""Regression tests of retrieval quality: the papers' numbers, and the values this toolkit produced before.

A regression is a TOML file in the folder ``eval``: one system on one collection, or on one family of collections. Its
cases run the toolkit's own commands. Each measured value is compared with the paper and with the last accepted value.

===============  ==================================================================
``cases``        the TOML files, checked and parsed, and the models that cases use
``workspace``    where collections, models, indexes and runs are; downloads and trains
``execute``      plans and runs a case's commands, checks its index and run, measures it
``verdict``      compares values with the paper and the accepted values
``report``       results as text, JSON and HTML
``run``          the work of the commands
``tiny``         the synthetic collection and model of tier tiny
===============  ==================================================================

``tools/accept_cases.py`` writes measured values into the TOML files as accepted ones.
"""
