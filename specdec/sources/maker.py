"""Sources by their names, and what those of one process share."""

from collections.abc import Sequence
from enum import StrEnum

from specdec.sources.ngram import Ngram
from specdec.sources.prediction import Prediction
from specdec.sources.prompt_lookup import PromptLookup
from specdec.sources.settings import SourceSettings
from specdec.sources.source import DraftSource
from specdec.sources.suffix import GuessRates, GuessTerms, Suffix, SuffixStore


def usual_price() -> float:
    """What a drafted token is taken to cost where nobody says it, in tokens that are committed."""
    return 0.4


class SourceKind(StrEnum):
    """Sources that need no model."""

    NGRAM = "ngram"
    PROMPT_LOOKUP = "prompt_lookup"
    SUFFIX = "suffix"
    PREDICTION = "prediction"
    """Only for requests that have one."""


class SourceMaker:
    """Makes a source for each sequence of a process; sources of one domain share a store."""

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
        """A source that has read nothing.

        Args:
            domain: whose store it may use.
            known: tokens of the sequence that are not generated here: the prompt, and output that others generated.
            prompt: how many of these are the prompt.
            prediction: the text that `PREDICTION` expects.
            terms: for sources that know how likely their guesses are; None are those of all that are made without.
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
