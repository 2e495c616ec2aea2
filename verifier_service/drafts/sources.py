"""What drafts for a session: sources in this process, a drafter, or both, as the request or the settings name it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from specdec.planning.gamma import FixedGamma
from specdec.planning.gamma_policy import PolicyKind
from specdec.rules.speculation import MAX_NODES, TreeOptions
from specdec.sources.maker import SourceKind, SourceMaker, usual_price
from specdec.sources.suffix import GuessRates, GuessTerms
from specdec.wire.generation import GenerationCall
from specdec.wire.session import TreePlan
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts
from verifier_service.drafts.joined_drafts import JoinedDrafts
from verifier_service.drafts.link import at_about
from verifier_service.drafts.local_drafts import LocalDrafts, LocalSource
from verifier_service.drafts.local_gamma import LocalAcceptance, LocalGamma, SourceWorth
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.session_drafts import RemoteDrafts
from verifier_service.speculation.controller import BatchSpeculation

HYBRID = "hybrid"
"""Asks sources of this process first, and a drafter where they have no answer."""
_HYBRID_SOURCES = (SourceKind.SUFFIX,)
"""The sources of `hybrid` where the settings name none."""
_KINDS = ("model", "counts", "random", HYBRID)
"""Kinds that a request may name whether or not such a drafter is connected now: when none is, its rounds are plain."""
_LEAST_PRICE = 0.05
"""Least price of a draft: of what is hardly ever accepted, a chance that was learnt says little."""


class DraftSources:
    """Makes the drafts of each session."""

    def __init__(
        self, settings: VerifierSettings, pool: DrafterPool, speculation: BatchSpeculation, vocab_size: int
    ) -> None:
        """`vocab_size` is that of the target."""
        self._vocab_size = vocab_size
        self._settings = settings
        self._pool = pool
        self._speculation = speculation
        self._maker = SourceMaker(settings.sources)
        self._acceptance = LocalAcceptance()
        self._worths: dict[str, SourceWorth] = defaultdict(lambda: SourceWorth(self._price))
        """Of each source at about one temperature."""
        self._rates: dict[str, GuessRates] = defaultdict(GuessRates)
        """The same, of sources that know how likely their guesses are."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a request may name as its drafter.

        A gateway refuses other names. Here a name of nobody leaves its rounds plain, as when a drafter is lost: a
        generation that moves to this process must not fail because its drafter has not been met yet.
        """
        return tuple(sorted({*_KINDS, *SourceKind} | self._pool.names()))

    def drafts(self, call: GenerationCall, limit: int, gamma: int | None) -> Drafts:
        """The drafts of a session.

        Args:
            limit: tokens that the sequence may reach.
            gamma: a draft length that is fixed; None where each source chooses its own.
        """
        tree = call.speculation.tree
        if tree is None or not tree.drafters:
            return self._of(call.speculation.drafter or self._settings.drafter, call, limit, gamma)
        share = tree.nodes // len(tree.drafters)
        calls = (replace(call, session_id=f"{call.session_id}+{place}") for place in range(len(tree.drafters)))
        named = zip(tree.drafters, calls, strict=True)
        return JoinedDrafts([self._of(name, each, limit, share, at) for at, (name, each) in enumerate(named)])

    def asks_drafters(self, call: GenerationCall) -> bool:
        """Whether a drafter may draft for the session."""
        tree = call.speculation.tree
        joined = tree is not None and bool(tree.drafters)
        return joined or (call.speculation.drafter or self._settings.drafter) not in set(SourceKind)

    def _of(self, name: str, call: GenerationCall, limit: int, gamma: int | None, place: int = 0) -> Drafts:
        """The drafts of what has the name; `place` is its number among the drafters of the session's trees."""
        tree = call.speculation.tree
        local = self._local(name)
        drafter: Drafts | None = None
        if name not in set(SourceKind):
            asked = replace(call.speculation, drafter="" if name == HYBRID else name, tree=None)
            named = replace(call, speculation=asked)
            drafter = self._remote(named, limit, gamma) if tree is None else self._trees(named, limit, tree, place)
        if call.speculation.prediction:
            local = (SourceKind.PREDICTION, *(kind for kind in local if kind is not SourceKind.PREDICTION))
        if drafter is not None and not local:
            return drafter
        tokens = call.tokens[-2 * self._settings.sources.window :]
        most = gamma if tree is None or gamma is None else min(gamma, tree.depth)
        sources = [self._source(kind, call, len(tokens), most) for kind in local if self._reads(kind, call, most)]
        return LocalDrafts(sources, tokens, limit - len(call.tokens), call.speculation.mode, drafter)

    def _local(self, name: str) -> Sequence[SourceKind]:
        """The sources of this process that a name stands for."""
        if name in set(SourceKind):
            return (SourceKind(name),)
        if name == HYBRID:
            return self._settings.local or _HYBRID_SOURCES
        return () if name else self._settings.local

    def _remote(self, call: GenerationCall, limit: int, gamma: int | None) -> RemoteDrafts:
        judged = gamma is None and call.speculation.policy.policy is PolicyKind.AUTO
        patience = self._speculation.patience if judged else None
        return RemoteDrafts(call, limit, self._vocab_size, self._pool, self._settings.drafting, patience)

    def _trees(self, call: GenerationCall, limit: int, tree: TreeOptions, place: int) -> RemoteDrafts:
        """Trees of a drafter, which draws by numbers that no other drafter of the session draws by."""
        plan = TreePlan(tree.width, tree.depth, tree.replacement, place * MAX_NODES)
        return RemoteDrafts(call, limit, self._vocab_size, self._pool, self._settings.drafting, plan=plan)

    def _source(self, kind: SourceKind, call: GenerationCall, known: int, gamma: int | None) -> LocalSource:
        prompt = max(0, known - (len(call.tokens) - call.prompt_len))
        name = _named(kind, call)
        terms = GuessTerms(self._price if gamma is None else usual_price, self._rates[name])
        source = self._maker.make(kind, call.cache_salt, known, prompt, call.speculation.prediction, terms)
        worth = self._worths[name] if gamma is None else None
        return LocalSource(kind.value, source, self._controller(kind, gamma, call), worth)

    def _price(self) -> float:
        """What one drafted token costs the batch now, in tokens that are committed."""
        return max(self._speculation.report().price, _LEAST_PRICE)

    def _controller(self, kind: SourceKind, gamma: int | None, call: GenerationCall) -> FixedGamma | LocalGamma:
        if gamma is not None:
            return FixedGamma(gamma)
        name, most = _named(kind, call), call.speculation.policy.most(self._settings.gamma_max)
        if kind is SourceKind.SUFFIX:  # its drafts end by themselves where they would cost more than they bring
            return FixedGamma(most)
        beta, ends_itself = lambda: self._speculation.report().beta, kind is SourceKind.PREDICTION
        return LocalGamma(self._acceptance, name, beta, most, ends_itself=ends_itself)

    def _reads(self, kind: SourceKind, call: GenerationCall, gamma: int | None) -> bool:
        """Whether a source is to read for the session."""
        if gamma is not None or kind is not SourceKind.SUFFIX:
            return True
        return self._worths[_named(kind, call)].reads(self._speculation.report().goodput)


def _named(kind: SourceKind, call: GenerationCall) -> str:
    """Names what is judged together: a source at about the same temperature."""
    return at_about(kind.value, call.sampling.temperature)
