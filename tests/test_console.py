"""Output of commands that take long."""

from __future__ import annotations

import time

from dupmae_ir import console


def test_a_job_that_shows_nothing_says_on_a_terminal_that_it_works(monkeypatch, capsys):
    monkeypatch.setattr(console, "SILENCE", 0.2)
    for terminal, quiet, lines in ((True, False, True), (True, True, False), (False, False, False)):
        monkeypatch.setattr(console, "_on_terminal", lambda shown=terminal: shown)
        with console.never_silent("dupmae-ir encode", quiet):
            time.sleep(0.6)
        assert ("dupmae-ir encode: working, 0 s" in capsys.readouterr().err) is lines


def test_a_job_that_shows_something_is_left_alone(monkeypatch, capsys):
    monkeypatch.setattr(console, "_on_terminal", lambda: True)
    monkeypatch.setattr(console, "SILENCE", 0.8)
    with console.never_silent("dupmae-ir encode"):
        for _ in range(12):
            console.say("read")
            time.sleep(0.1)
    assert set(capsys.readouterr().err.split("\n")) == {"read", ""}
