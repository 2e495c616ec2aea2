"""Choice of a session's draft sources: sources in this process, a drafter, or both, from the request or settings."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from specdec.planning.gamma import FixedGamma
from specdec.planning.gamma_policy import PolicyKind
from specdec.rules.speculation import MAX_NODES, Mode, TreeOptions
from specdec.sources.maker import SourceKind, SourceMaker, usual_price
from specdec.sources.sampled import IN_VERIFIER, CountSampling
from specdec.sources.suffix import GuessRates, GuessTerms
from specdec.wire.generation import GenerationCall
from specdec.wire.session import TreePlan
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts
from verifier_service.drafts.head_drafts import HEAD, HeadDrafts
from verifier_service.drafts.joined_drafts import JoinedDrafts
from verifier_service.drafts.link import temperature_key
from verifier_service.drafts.local_drafts import LocalDrafts, LocalSource
from verifier_service.drafts.local_gamma import LocalAcceptance, LocalGamma, SourceWorth
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.session_drafts import RemoteDrafts
from verifier_service.speculation.controller import BatchSpeculation

HYBRID = "hybrid"
"""Kind that asks sources of this process first, and a drafter if none of them has a draft."""
_HYBRID_SOURCES = (SourceKind.SUFFIX,)
"""Sources of `hybrid` if the settings name none."""
_KINDS = ("model", "counts", "random", HYBRID)
"""Kinds that a request may always name. Its rounds are plain while no such drafter is connected."""
_LEAST_PRICE = 0.05
"""Least price of a draft. Below it, learned probabilities of rarely accepted guesses are unreliable."""


class DraftSources:
    """Creates the drafts of each session."""

    def __init__(
        self, settings: VerifierSettings, pool: DrafterPool, speculation: BatchSpeculation, vocab_size: int
    ) -> None:
        """Create the factory; `vocab_size` is the size of the target's vocabulary."""
        self._vocab_size = vocab_size
        self._settings = settings
        self._pool = pool
        self._speculation = speculation
        self._maker = SourceMaker(settings.sources)
        self._acceptance = LocalAcceptance()
        self._worths: dict[str, SourceWorth] = defaultdict(lambda: SourceWorth(self._price))
        """Worth of each source at about one temperature."""
        self._rates: dict[str, GuessRates] = defaultdict(GuessRates)
        """Guess rates by the same keys, for sources that estimate the probability of their guesses."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that a request may give as its drafter.

        A gateway refuses other names. The verifier does not: a session with an unknown name decodes plainly, as when
        its drafter is lost. So a generation that moves to this process before its drafter connects does not fail.
        """
        heads = set() if self._settings.head is None and self._settings.drafter_head is None else {HEAD}
        return tuple(sorted({*_KINDS, *SourceKind} | heads | self._pool.names()))

    def drafts(self, call: GenerationCall, limit: int, gamma: int | None) -> Drafts:
        """Create the drafts of a session.

        Args:
            call: generation call of the session.
            limit: length that the sequence may reach, in tokens.
            gamma: fixed draft length; None if each source chooses its own.
        """
        tree = call.speculation.tree
        if tree is None or not tree.drafters:
            return self._of(call.speculation.drafter or self._settings.drafter, call, limit, gamma)
        share = tree.nodes // len(tree.drafters)
        calls = (replace(call, session_id=f"{call.session_id}+{place}") for place in range(len(tree.drafters)))
        named = zip(tree.drafters, calls, strict=True)
        return JoinedDrafts([self._of(name, each, limit, share, at) for at, (name, each) in enumerate(named)])

    def asks_drafters(self, call: GenerationCall) -> bool:
        """Whether a remote drafter may draft for the session."""
        tree = call.speculation.tree
        joined = tree is not None and bool(tree.drafters)
        return joined or (call.speculation.drafter or self._settings.drafter) not in set(SourceKind)

    def _of(self, name: str, call: GenerationCall, limit: int, gamma: int | None, place: int = 0) -> Drafts:
        """Create the drafts of the named sources; `place` is the index among the drafters of the session's trees."""
        tree = call.speculation.tree
        local = self._local(name)
        drafter: Drafts | None = None
        if self._has_head(name, call):
            source = temperature_key(HEAD, call.sampling.temperature)
            forks = self._forks(call, gamma)
            drafter = HeadDrafts(source, lambda: forks and self._speculation.second_pays(source))
        elif name not in set(SourceKind):
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
        length = len(call.tokens)
        return LocalDrafts(sources, tokens, limit - length, call.speculation.mode, drafter, length)

    def _has_head(self, name: str, call: GenerationCall) -> bool:
        """Whether the target's head drafts for a session, whose source has this name. It makes no trees by request.

        The process of vLLM has no grammars, so there a head drafts for sessions without one.
        """
        unmasked = self._settings.backend == "vllm" and call.sampling.grammar is not None
        wanted = name in ("", HEAD, HYBRID) and call.speculation.tree is None
        return self._settings.head is not None and wanted and not unmasked

    def _forks(self, call: GenerationCall, gamma: int | None) -> bool:
        """Whether the head may draft two tokens for one position of a session: only if the batch chooses γ, and where
        trees can be judged, masked and reported.
        """
        asked = call.speculation
        chain = gamma is not None or asked.lossy or asked.detail or asked.mode is Mode.BLOCK
        own = asked.policy.policy is not PolicyKind.AUTO or call.sampling.grammar is not None
        return not (chain or own) and self._settings.backend == "native"

    def _local(self, name: str) -> Sequence[SourceKind]:
        """Return the sources of this process that a name selects."""
        own = tuple(kind for kind in self._settings.local if isinstance(kind, SourceKind))
        if name in set(SourceKind):
            return (SourceKind(name),)
        if name == HYBRID:
            return own or _HYBRID_SOURCES
        return () if name else own

    def _remote(self, call: GenerationCall, limit: int, gamma: int | None) -> RemoteDrafts:
        judged = gamma is None and call.speculation.policy.policy is PolicyKind.AUTO
        patience = self._speculation.patience if judged else None
        features = self._settings.drafter_head is not None
        drafting = self._settings.drafting
        return RemoteDrafts(call, limit, self._vocab_size, self._pool, drafting, patience, features=features)

    def _trees(self, call: GenerationCall, limit: int, tree: TreeOptions, place: int) -> RemoteDrafts:
        """Create trees of a drafter that draws with random numbers of its own within the session."""
        plan = TreePlan(tree.width, tree.depth, tree.replacement, place * MAX_NODES)
        return RemoteDrafts(call, limit, self._vocab_size, self._pool, self._settings.drafting, plan=plan)

    def _source(self, kind: SourceKind, call: GenerationCall, known: int, gamma: int | None) -> LocalSource:
        prompt = max(0, known - (len(call.tokens) - call.prompt_len))
        name = _named(kind, call)
        terms = GuessTerms(self._price if gamma is None else usual_price, self._rates[name])
        source = self._maker.make(kind, call.cache_salt, known, prompt, call.speculation.prediction, terms)
        worth = self._worths[name] if gamma is None else None
        samples = self._settings.sources.sampled and call.speculation.tree is None
        sampling = CountSampling.of(call.sampling, call.speculation.mode, IN_VERIFIER) if samples else None
        return LocalSource(kind.value, source, self._controller(kind, gamma, call), worth, sampling)

    def _price(self) -> float:
        """Return the current cost of one drafted token to the batch, in committed tokens."""
        return max(self._speculation.report().price, _LEAST_PRICE)

    def _controller(self, kind: SourceKind, gamma: int | None, call: GenerationCall) -> FixedGamma | LocalGamma:
        if gamma is not None:
            return FixedGamma(gamma)
        name, most = _named(kind, call), call.speculation.policy.most(self._settings.gamma_max)
        if kind is SourceKind.SUFFIX:  # the source itself ends a draft that no longer pays
            return FixedGamma(most)
        beta, ends_itself = lambda: self._speculation.report().beta, kind is SourceKind.PREDICTION
        return LocalGamma(self._acceptance, name, beta, most, ends_itself=ends_itself)

    def _reads(self, kind: SourceKind, call: GenerationCall, gamma: int | None) -> bool:
        """Whether a source reads for the session."""
        if gamma is not None or kind is not SourceKind.SUFFIX:
            return True
        return self._worths[_named(kind, call)].reads(self._speculation.report().goodput)


def _named(kind: SourceKind, call: GenerationCall) -> str:
    """Return the key of the estimates: the source and an approximate temperature."""
    return temperature_key(kind.value, call.sampling.temperature)
