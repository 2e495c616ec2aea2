"""A tree grows level by level at the most valuable nodes, within its bounds, for exactly one prefix."""

from dataclasses import replace

import pytest

from drafter_service.sessions.tree_growth import TreeFamily, TreeGrowth
from drafter_service.sessions.tree_session import TreeSession
from specdec.rules.draft import point_mass
from specdec.rules.prefix import PrefixHash
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import ROOT, TreeDraft
from specdec.wire.session import DraftEnd, TreePlan
from tests.support.drafter_fakes import OPEN, commit

PLAN = TreePlan(width=2, depth=3)


def family(*tokens: int, weights: tuple[float, ...] = (0.6, 0.3)) -> TreeFamily:
    return TreeFamily(tokens, point_mass(tokens[0]) if tokens else None, weights)


def session(nodes: int = 5, **changes: object) -> TreeSession:
    return TreeSession("k", replace(OPEN, gamma=nodes, tree=PLAN, **changes), PLAN, 64)  # type: ignore[arg-type]


def test_each_level_gets_an_equal_share_for_the_children_worth_most() -> None:
    growth = TreeGrowth(PLAN, 6)
    assert growth.widths([(0.6, 0.3)]) == [2]
    growth.add([family(4, 5)])
    assert growth.widths([(0.5, 0.4), (0.9, 0.1)]) == [1, 1]  # 0.30 and 0.27, before 0.24 and 0.03
    assert growth.widths([(0.5, 0.5), (0.5, 0.5)]) == [2, 0]
    growth.add([family(6, 7), family()])
    assert (growth.tree.parents, growth.tokens) == ((ROOT, ROOT, 0, 0), [4, 5, 6, 7])
    assert (growth.frontier, growth.rows, growth.level) == ((2, 3), 2, 2)
    assert [growth.path(node) for node in (ROOT, 1, 3)] == [[], [5], [4, 7]]
    growth.add([family(8), family(9)])
    assert growth.complete


def test_a_tree_is_not_wider_than_its_nodes_and_its_bounds() -> None:
    assert TreeGrowth(TreePlan(9, 1), 3).widths([(0.4, 0.3, 0.2, 0.1)]) == [3]
    assert TreeGrowth(TreePlan(2, 1), 3).widths([(0.4, 0.3, 0.2)]) == [2]
    assert TreeGrowth(PLAN, 6).widths([(1.0, 0.0)]) == [1]
    assert TreeGrowth(PLAN, 0).complete


def test_a_token_that_was_drawn_twice_is_gone_on_from_once() -> None:
    """Both copies would be continued by the same random numbers, so the second would not be an independent draw."""
    growth = TreeGrowth(PLAN, 6)
    growth.add([family(4, 4)])
    assert growth.frontier == (0,)
    assert growth.rows == 2


def test_a_draft_has_the_q_of_each_family_and_none_without_draws() -> None:
    growth = TreeGrowth(PLAN, 6)
    growth.add([family(4, 5)])
    assert [law is not None for law in growth.draft().probs] == [True, False, False]
    growth = TreeGrowth(PLAN, 6)
    growth.add([replace(family(4, 5), law=None)])
    assert growth.draft().probs == ()


def test_a_whole_tree_is_sent_once_for_exactly_the_committed_tokens() -> None:
    one = session(nodes=2)
    assert one.wants_draft(16)
    assert one.verifier_waits
    assert one.take_unsent() is None or not one.is_due(16)
    one.growth.add([family(4)])
    one.growth.add([family(5)])
    assert one.is_due(16)
    sent = one.take_unsent()
    assert sent is not None
    assert isinstance(sent.draft, TreeDraft)
    assert (sent.base_len, sent.prefix_hash) == (3, PrefixHash((1, 2, 3)).value)
    assert sent.draft.tokens == (4, 5)
    assert one.take_unsent() is None
    assert not one.take_end()


def test_a_commit_begins_the_next_tree_and_says_what_stays_computed() -> None:
    one = session(nodes=2)
    one.growth.add([family(4)])
    assert one.commit(commit(3, 4, 9, gamma=7)) == 3
    assert (len(one), one.branches, one.drafted) == (5, 0, 0)
    assert one.growth.widths([(0.6, 0.3)]) == [2]
    assert one.wants_draft(0)


def test_a_session_that_can_get_nothing_says_so_once() -> None:
    one = session(nodes=2)
    one.stop_drafting()
    assert one.is_due(0)
    assert one.take_end() == DraftEnd("s", 1, 3, PrefixHash((1, 2, 3)).value)
    assert one.take_end() is None
    assert session(max_len=3).take_end()


def test_a_chain_instead_of_a_tree_is_dropped_at_the_commit() -> None:
    one = session(nodes=5)
    assert one.wanted(16) == PLAN.depth
    for token in (4, 5):
        one.extend(token, point_mass(token))
        assert not one.is_due(16)
    one.stop_drafting()
    sent = one.take_unsent()
    assert sent is not None
    assert sent.draft.tokens == (4, 5)
    assert one.commit(commit(3, 4, gamma=5)) == 4
    assert one.tokens_from(0) == [1, 2, 3, 4]


@pytest.mark.parametrize(("penalty", "expected"), [(0.0, []), (1.0, [3, 4, 6])])
def test_q_after_a_node_sees_its_own_path(penalty: float, expected: list[int]) -> None:
    one = session(params=SamplingParams(presence_penalty=penalty))
    one.growth.add([family(4, 5)])
    one.growth.add([family(6), family(7)])
    assert list(one.history_at(2).output) == expected
