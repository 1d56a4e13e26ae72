"""Whatever is done to a table's file, it is refused with file, place and mend, or it says what it says."""

from tests.unit.tuning_table_mutants import everything, judge, saved


def test_thousands_of_mutants_are_refused_with_words_or_hold_what_they_say():
    outcomes, wrong = judge([saved(everything())], 3000, seed=1)
    assert wrong == []
    kinds = {kind for kind, _ in outcomes}
    assert len(kinds) == 12
    assert sum(outcomes.values()) == 3000
    assert {outcome for _, outcome in outcomes} == {"refused", "same", "another"}


def test_the_judge_finds_what_is_wrong_with_a_reader(monkeypatch):
    """A reader that takes the last of two keys, or forgets one, is not passed."""
    monkeypatch.setattr("collectives.tables.table.no_twins", lambda *_: None)
    _, wrong = judge([saved(everything())], 500, seed=1)
    assert {line.partition(":")[0] for line in wrong} >= {"twice"}
