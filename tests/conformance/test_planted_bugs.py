"""Negative controls: each known way to break exactness is planted in the real code, and the named checks must fail.

A check measures one number, which must be out of bounds with the bug and within bounds without it. The table at the end
of the run lists which check caught which bug, and the measured numbers.
"""

from collections import Counter
from functools import cache

import pytest

from tests.conformance.bugs import (
    drafts,
    dropped,
    grammars,
    guesses,
    laws,
    lookup,
    noise,
    passes,
    pushed,
    rows,
    service,
    translated,
    verdicts,
)
from tests.conformance.bugs import kept as kept_bugs
from tests.conformance.bugs import trees as tree_bugs
from tests.conformance.bugs.bug import Bug, Law
from tests.conformance.checks import drafted, edges, engine, exact, failing, grouped, sampled, served, simulated
from tests.conformance.checks import kept as kept_checks
from tests.conformance.checks import translated as translated_checks
from tests.conformance.checks import trees as tree_checks
from tests.conformance.checks.check import Check
from tests.conformance.notes import Note

PLANTED = (
    drafts,
    dropped,
    pushed,
    lookup,
    guesses,
    verdicts,
    rows,
    grammars,
    noise,
    laws,
    passes,
    service,
    kept_bugs,
    translated,
    tree_bugs,
)
MEASURED = (
    exact,
    sampled,
    simulated,
    edges,
    failing,
    grouped,
    engine,
    kept_checks,
    served,
    drafted,
    translated_checks,
    tree_checks,
)
BUGS = tuple(bug for bugs in PLANTED for bug in bugs.BUGS)
CHECKS = {check.name: check for checks in MEASURED for check in checks.CHECKS}
TITLE = "planted bugs, and the checks that caught them"


def _param(check: Check, *others: Bug) -> object:
    marks = [pytest.mark.integration] if check.crosses_a_border else []
    return pytest.param(*others, check, id=" | ".join([*map(str, others), check.name]), marks=marks)


CAUGHT = [_param(CHECKS[name], bug) for bug in BUGS for name in bug.caught_by]
HARMLESS = [_param(CHECKS[name], bug) for bug in BUGS for name in bug.harmless_to]


@cache
def sound(check: Check) -> float:
    """Return the check's number without any bug."""
    return check.measure()


@pytest.mark.parametrize("check", [_param(check) for check in CHECKS.values()])
def test_sound_code_passes(check: Check) -> None:
    assert check.passes(sound(check))


@pytest.mark.parametrize(("bug", "check"), CAUGHT)
def test_a_planted_bug_is_caught(bug: Bug, check: Check, monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    assert check.passes(sound(check))
    bug.plant(monkeypatch)
    found = check.search()
    caught = not check.passes(found)
    note(TITLE, f"{bug.name:46} {'' if caught else 'NOT '}caught by {check.name:28} {check.kind} = {found:.1e}")
    assert caught


@pytest.mark.parametrize(("bug", "check"), HARMLESS)
def test_a_bug_of_the_drafter_alone_leaves_the_law(
    bug: Bug, check: Check, monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    bug.plant(monkeypatch)
    found = check.measure()
    note(TITLE, f"{bug.name:46} harmless to {check.name:26} {check.kind} = {found:.1e}")
    assert check.passes(found)


def test_every_law_has_a_bug_and_every_bug_a_check() -> None:
    assert {bug.law for bug in BUGS} == set(Law)
    used = Counter(name for bug in BUGS for name in bug.caught_by)
    assert set(used) <= set(CHECKS)
    assert all(bug.caught_by or bug.harmless_to for bug in BUGS)
    assert len({bug.name for bug in BUGS}) == len(BUGS)
