"""Sources inside the verifier: choice of the source, learning of a drafter beside them, and the reported names."""

import asyncio
from collections.abc import Sequence

import pytest

from specdec.planning.gamma import FixedGamma
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import MAX_WEIGHT, NO_DRAFT
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import Fallback, GenerationCall
from tests.support.gateway_fakes import until
from tests.unit.verifier_service.drafts.proposing import proposed
from tests.unit.verifier_service.verifier_fakes import make_call, make_metrics, make_speculation, point_mass
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.link import DrafterLink
from verifier_service.drafts.local_drafts import LocalDrafts, LocalSource
from verifier_service.drafts.local_gamma import SourceWorth
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.session_drafts import RemoteDrafts
from verifier_service.drafts.sources import DraftSources
from verifier_service.speculation.controller import BatchSpeculation


class Written:
    """A source whose guesses a test writes."""

    def __init__(self, *guesses: int) -> None:
        self.guesses = list(guesses)
        self.seen: list[int] = []

    def read(self, tokens: Sequence[int]) -> None:
        self.seen += tokens

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        return self.guesses[:most]


class Drafter(Drafts):
    """A drafter that records its calls."""

    def __init__(self) -> None:
        self.commits: list[tuple[tuple[int, ...], int, int]] = []
        self.distrusted = self.closed = False

    def proposal(self) -> Proposal:
        return Proposal(point_mass(9), drafter="model")

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        self.commits.append((tuple(tokens), judged, gamma))

    def distrust(self) -> None:
        self.distrusted = True

    def close(self) -> None:
        self.closed = True


class Watched:
    """A controller that always drafts four tokens and records its observations."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def gamma(self) -> int:
        return 4

    def observe(self, drafted: int, accepted: int) -> None:
        self.seen.append((drafted, accepted))


def of(source: Written, drafter: Drafter | None = None, mode: Mode = Mode.REJECTION, room: int = 50) -> LocalDrafts:
    local = LocalSource("ngram", source, FixedGamma(4))
    return LocalDrafts([local], (1, 2, 3), room, mode, drafter)


async def begun(drafts: LocalDrafts) -> LocalDrafts:
    drafts.begin(0)
    await asyncio.sleep(0.01)
    return drafts


async def test_a_source_with_an_answer_drafts_point_masses_and_is_asked_alone() -> None:
    drafts = await begun(of(Written(5, 6, 7, 8, 9), Drafter()))
    proposal = await proposed(drafts, 2)
    assert (proposal.draft.tokens, proposal.drafter, proposal.local) == ((5, 6, 7, 8), "ngram", True)
    assert [(each.ids.tolist(), each.weights.tolist()) for each in proposal.draft.probs] == [
        ([token], [MAX_WEIGHT]) for token in (5, 6, 7, 8)
    ]


async def test_coupled_drafts_carry_no_distribution() -> None:
    drafts = await begun(of(Written(5), mode=Mode.COUPLED))
    assert (await proposed(drafts, 1)).draft.probs == ()


async def test_a_source_without_an_answer_leaves_the_round_to_the_drafter() -> None:
    asked = await proposed(await begun(of(Written(), Drafter())), 2)
    assert (asked.draft.tokens, asked.drafter, asked.local) == ((9,), "model", False)
    alone = await proposed(await begun(of(Written())), 2)
    assert (alone.draft, alone.fallback) == (NO_DRAFT, Fallback.NO_MATCH)


async def test_a_draft_never_passes_the_room_left() -> None:
    drafts = await begun(of(Written(5, 6, 7), room=3))
    assert (await proposed(drafts, 4)).draft.tokens == (5, 6)
    drafts.commit((5, 6), judged=2, gamma=4)
    assert (await proposed(drafts, 4)).draft == NO_DRAFT


@pytest.mark.parametrize(("gamma", "reason"), [(0, Fallback.NOT_WORTH_IT), (2, Fallback.NO_MATCH)])
async def test_a_round_without_a_draft_says_whether_one_was_wanted(gamma: int, reason: Fallback) -> None:
    local = LocalSource("ngram", Written(), FixedGamma(gamma))
    drafts = await begun(LocalDrafts([local], (1, 2, 3), 50, Mode.REJECTION, None))
    assert (await proposed(drafts, 2)).fallback is reason


async def test_a_drafter_is_told_what_was_judged_of_its_own_drafts_alone() -> None:
    source, drafter = Written(5), Drafter()
    drafts = await begun(of(source, drafter))
    await proposed(drafts, 2)
    drafts.commit((5, 4), judged=1, gamma=2)
    source.guesses = []
    await proposed(drafts, 2)
    drafts.commit((9, 8), judged=1, gamma=2)
    assert drafter.commits == [((5, 4), 0, 2), ((9, 8), 1, 2)]
    assert source.seen == [1, 2, 3, 5, 4, 9, 8]


async def test_forced_tokens_after_a_draft_do_not_count_for_its_source() -> None:
    gamma = Watched()
    drafts = await begun(LocalDrafts([LocalSource("ngram", Written(5, 6), gamma)], (1, 2, 3), 50, Mode.REJECTION, None))
    await proposed(drafts, 2)
    drafts.commit((5, 6, 7, 8, 9), judged=4, gamma=2)
    assert gamma.seen == [(2, 2)]


async def test_a_short_prompt_is_read_before_the_first_round() -> None:
    drafts = of(Written(5))
    drafts.begin(0)
    assert (await proposed(drafts, 2)).draft.tokens == (5,)


async def test_while_a_long_prompt_is_read_no_source_is_asked() -> None:
    source, prompt = Written(5), range(1000)
    drafts = LocalDrafts([LocalSource("ngram", source, FixedGamma(4))], prompt, 50, Mode.REJECTION, None)
    drafts.begin(0)
    assert (await proposed(drafts, 2)).draft == NO_DRAFT
    drafts.commit((4,), judged=0, gamma=2)
    await until(lambda: source.seen == [*prompt, 4])
    await asyncio.sleep(0)  # the reading task ends after its last piece
    assert (await proposed(drafts, 2)).draft.tokens == (5,)
    drafts.commit((6,), judged=0, gamma=2)
    assert source.seen == [*prompt, 4, 6]


async def test_a_draft_that_cannot_be_verified_ends_its_source_and_no_other() -> None:
    drafter = Drafter()
    drafts = await begun(of(Written(5), drafter))
    await proposed(drafts, 2)
    assert drafts.guesses
    drafts.distrust()
    assert not drafter.distrusted
    assert not drafts.guesses
    assert (await proposed(drafts, 2)).drafter == "model"
    drafts.distrust()
    assert drafter.distrusted


async def test_a_weak_source_is_likely_to_guess_only_after_a_recent_success() -> None:
    source, worth = Written(), SourceWorth(lambda: 0.5)
    sources = [LocalSource("suffix", source, FixedGamma(4), worth)]
    drafts = await begun(LocalDrafts(sources, (1, 2, 3), 5000, Mode.REJECTION, None))
    guesses = list[bool]()
    for _ in range(1000):
        await proposed(drafts, 0)
        guesses.append(drafts.guesses)
        drafts.commit((4,), judged=0, gamma=0)
    assert guesses[0]
    assert not guesses[-1]
    source.guesses = [5]
    await proposed(drafts, 0)
    assert drafts.guesses


async def test_a_source_of_a_fixed_draft_length_is_always_likely_to_guess() -> None:
    drafts = await begun(of(Written(), room=5000))
    for _ in range(1000):
        await proposed(drafts, 0)
        drafts.commit((4,), judged=0, gamma=0)
    assert drafts.guesses


async def test_the_end_reaches_the_drafter() -> None:
    drafter = Drafter()
    (await begun(of(Written(), drafter))).close()
    assert drafter.closed


def sources(**settings: object) -> DraftSources:
    link = DrafterLink("d:1", 1.0, make_metrics())
    link.connected("small", 0.001, "counts")
    given = {"model": {"path": "m"}, **settings}
    return DraftSources(VerifierSettings.load(None, given), DrafterPool([link]), make_speculation(), 100)


def test_the_names_are_those_of_sources_and_of_what_each_drafter_is() -> None:
    assert {"ngram", "prompt_lookup", "suffix", "prediction", "hybrid", "model", "counts", "small", "d:1"} <= {
        *sources().names
    }


async def test_a_name_that_nobody_has_yet_leaves_rounds_plain() -> None:
    drafts = sources().drafts(make_call(speculation=Speculation(drafter="moved")), 20, None)
    drafts.begin(2)
    assert (await proposed(drafts, 2)).fallback is Fallback.UNAVAILABLE


@pytest.mark.parametrize(
    ("name", "settings", "kinds", "drafter"),
    [
        ("", {}, None, True),
        ("", {"local": ["ngram"]}, ["ngram"], True),
        ("", {"drafter": "suffix"}, ["suffix"], False),
        ("ngram", {}, ["ngram"], False),
        ("small", {"local": ["ngram"]}, None, True),
        ("hybrid", {}, ["suffix"], True),
        ("hybrid", {"local": ["prompt_lookup", "ngram"]}, ["prompt_lookup", "ngram"], True),
    ],
)
def test_a_name_says_which_sources_are_asked_and_whether_a_drafter_is(
    name: str, settings: dict[str, object], kinds: list[str] | None, drafter: bool
) -> None:
    made = sources(**settings).drafts(make_call(speculation=Speculation(drafter=name)), 20, None)
    if kinds is None:
        assert isinstance(made, RemoteDrafts)
        return
    assert isinstance(made, LocalDrafts)
    assert [each.kind for each in made._sources] == kinds
    assert isinstance(made._drafter, RemoteDrafts) is drafter


async def test_what_brings_less_than_it_costs_drafts_for_one_session_in_eight() -> None:
    made = sources(drafter="suffix")
    for temperature, read in ((1.0, 2), (0.0, 16)):
        call = make_call(speculation=Speculation(), sampling=SamplingParams(temperature=temperature))
        taught = made.drafts(call, 20, None)
        assert isinstance(taught, LocalDrafts)
        for _ in range(5000):
            taught._sources[0].observe(4, 0 if temperature else 4)
        each = [made.drafts(call, 20, None) for _ in range(16)]
        assert sum(bool(one._sources) for one in each if isinstance(one, LocalDrafts)) == read
        fixed = made.drafts(call, 20, 4)
        assert isinstance(fixed, LocalDrafts)
        assert fixed._sources
    without = made.drafts(make_call(speculation=Speculation(), sampling=SamplingParams(temperature=1.0)), 20, None)
    without.begin(0)
    assert (await proposed(without, 0)).fallback is Fallback.NOT_WORTH_IT


@pytest.mark.parametrize(("gamma", "drafted"), [(None, 0), (4, 4)])
async def test_a_draft_length_that_is_fixed_is_kept_whatever_a_pass_costs(
    monkeypatch: pytest.MonkeyPatch, gamma: int | None, drafted: int
) -> None:
    made = sources(drafter="suffix")
    monkeypatch.setattr(made, "_price", lambda: 1.1)
    call = make_call(tokens=(*range(10),) * 4, prompt_len=40, speculation=Speculation())
    drafts = made.drafts(call, 60, gamma)
    assert isinstance(drafts, LocalDrafts)
    assert len((await proposed(await begun(drafts), 0)).draft.tokens) == drafted


def test_a_prediction_is_drafted_from_first_whatever_drafts() -> None:
    for name in ("", "ngram", "small"):
        call = make_call(speculation=Speculation(drafter=name, prediction=(7, 8)))
        made = sources().drafts(call, 20, None)
        assert isinstance(made, LocalDrafts)
        assert made._sources[0].kind == "prediction"


@pytest.mark.parametrize(
    ("call", "gamma", "settings", "forks"),
    [
        (make_call(), None, {}, True),
        (make_call(speculation=Speculation(Mode.COUPLED)), None, {}, True),
        (make_call(speculation=Speculation(Mode.BLOCK)), None, {}, False),
        (make_call(speculation=Speculation(detail=True)), None, {}, False),
        (make_call(speculation=Speculation(lenience=0.5)), None, {}, False),
        (make_call(speculation=Speculation(policy=GammaPolicy(PolicyKind.OPTIMAL))), None, {}, False),
        (make_call(sampling=SamplingParams(grammar=Grammar(GrammarKind.REGEX, "a+"))), None, {}, False),
        (make_call(), 2, {}, False),
        (make_call(), None, {"backend": "vllm"}, False),
    ],
)
async def test_a_head_makes_second_drafts_where_trees_can_be_judged_and_reported(
    call: GenerationCall, gamma: int | None, settings: dict[str, object], forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchSpeculation, "second_pays", lambda self, source: source.startswith("head"))
    drafts = sources(head="h", **settings).drafts(call, 20, gamma)
    assert (await proposed(drafts, 2)).fallback is Fallback.FIRST_ROUND
    drafts.commit((4,), judged=0, gamma=2)
    proposal = await proposed(drafts, 2)
    assert (proposal.head, proposal.siblings) == (2, forks)
    assert not (await proposed(drafts, 0)).siblings
