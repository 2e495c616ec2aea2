"""Creation of draft sources by name, and the state that the sources of one process share."""

from collections.abc import Sequence
from enum import StrEnum

from specdec.sources.ngram import Ngram
from specdec.sources.prediction import Prediction
from specdec.sources.prompt_lookup import PromptLookup
from specdec.sources.settings import SourceSettings
from specdec.sources.source import DraftSource
from specdec.sources.suffix import GuessRates, GuessTerms, Suffix, SuffixStore


def usual_price() -> float:
    """Return the default cost of one drafted token, in committed tokens."""
    return 0.4


class SourceKind(StrEnum):
    """Draft sources that need no model."""

    NGRAM = "ngram"
    PROMPT_LOOKUP = "prompt_lookup"
    SUFFIX = "suffix"
    PREDICTION = "prediction"
    """Only for requests with a prediction."""


class SourceMaker:
    """Creates a source for each sequence. Sources of one domain share a store."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._store = SuffixStore(settings.store_tokens, settings.store_domains)
        self._terms = GuessTerms(usual_price, GuessRates())

    def make(
        self,
        kind: SourceKind,
        domain: str,
        known: int,
        prompt: int,
        prediction: Sequence[int] = (),
        terms: GuessTerms | None = None,
    ) -> DraftSource:
        """Return a new source that has read no tokens.

        Args:
            domain: domain whose store the source uses.
            known: number of leading tokens that were not generated here: the prompt, and output of other processes.
            prompt: number of prompt tokens among `known`.
            prediction: predicted output, for `PREDICTION`.
            terms: cost and hit rates for `SUFFIX`; None uses the ones that this maker shares among its sources.
        """
        window = self._settings.window
        match kind:
            case SourceKind.NGRAM:
                return Ngram(window)
            case SourceKind.PROMPT_LOOKUP:
                return PromptLookup(self._settings.lookup_tokens, window)
            case SourceKind.SUFFIX:
                return Suffix(self._store.counts(domain), known, window, terms or self._terms)
            case SourceKind.PREDICTION:
                return Prediction(prediction, prompt)
