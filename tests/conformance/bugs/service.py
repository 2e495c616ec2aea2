"""Bugs in the code around the rules: KV, the cut of a round, the vocabulary, and text that spans rounds."""

from collections.abc import Callable, Set
from typing import Any

import pytest

from gateway.text.detokenizer import Decode
from gateway.text.output import held_length
from specdec.engine import NativeEngine, loader
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round, Speedup
from tests.conformance.bugs.bug import Bug, Law, everywhere
from verifier_service.app import load_engine
from verifier_service.backends.batch_plan import Outcome
from verifier_service.passes.conclude import AskedRound, Cut, cut
from verifier_service.passes.sequence import Sequence

Plant = Callable[[pytest.MonkeyPatch], None]
SLACK = 16
"""Extra positions of KV for a session, so that a missing rollback does not exhaust its capacity."""


def rolled_back(length: Callable[[int, int], int], load: Callable[[Any], NativeEngine] = load_engine) -> Plant:
    """Cut the KV of engines that `load` loads, by default the target's, to `length(held, wanted)` tokens."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def planted(settings: Any) -> NativeEngine:
            engine = load(settings)
            truncate, admit, real = engine.truncate, engine.admit, engine.length
            untold: dict[str, int] = {}

            def told(session: str) -> int:
                return real(session) + untold.get(session, 0)

            def cut_to(session: str, wanted: int) -> None:
                held = told(session)
                truncate(session, max(real(session) - held + length(held, wanted), 0))
                untold[session] = wanted - real(session)

            engine.truncate, engine.length = cut_to, told  # type: ignore[method-assign]
            engine.admit = lambda session, limit, *rest: admit(session, limit + SLACK, *rest)  # type: ignore[method-assign]
            return engine

        everywhere(patch, load, planted)

    return plant


kv_one_short = rolled_back(lambda held, wanted: min(wanted, held) - (wanted >= held))
"""After a full acceptance the target has no KV for the last draft, and the next token takes its position."""

kv_never_rolled_back = rolled_back(lambda held, wanted: held)
"""Later tokens attend to rejected drafts."""

kv_cut_from_the_end = rolled_back(lambda held, wanted: len(range(held)[: -(held - wanted)]))
"""`[:-0]`: dropping the last 0 positions drops all of them."""

rejected_position_read = rolled_back(lambda held, wanted: min(wanted + 1, held))
"""One rejected position stays readable after the committed ones."""


def padding_unmasked(patch: pytest.MonkeyPatch) -> None:
    """The padding rows of the model's matrix count as ids."""
    patch.setattr(loader, "_vocab_size", lambda path, ids, rows: rows)


def ends_overlooked(patch: pytest.MonkeyPatch) -> None:
    """An end token inside the accepted drafts does not end the round."""
    everywhere(patch, cut, lambda committed, room, stop_ids: cut(committed, room, frozenset()))


def counted_before_the_cut(patch: pytest.MonkeyPatch) -> None:
    """Accepted drafts after the end token are counted."""

    told = AskedRound.reported

    def planted(asked: AskedRound, kept: Cut, outcome: Outcome, speedup: Speedup, cached: int) -> Round:
        return told(asked, kept, outcome, speedup, cached)._replace(accepted=outcome.verdict.accepted)

    patch.setattr(AskedRound, "reported", planted)


def limit_before_end(patch: pytest.MonkeyPatch) -> None:
    """A round that reaches the limit is not searched for an earlier end token."""

    def planted(committed: tuple[int, ...], room: int, stop_ids: Set[int]) -> Cut:
        found = cut(committed, room, stop_ids)
        return found._replace(finish=FinishReason.LENGTH) if len(committed) >= room else found

    everywhere(patch, cut, planted)


def room_overshot(patch: pytest.MonkeyPatch) -> None:
    """γ ignores the room left in the sequence."""
    patch.setattr(Sequence, "_next_gamma", lambda sequence: sequence._gamma.gamma())


def stops_within_a_round(patch: pytest.MonkeyPatch) -> None:
    """Text is shown although the next round could complete a stop string that begins at its end."""
    everywhere(patch, held_length, lambda text, stops: 0)


def half_characters(patch: pytest.MonkeyPatch) -> None:
    """Text is shown although its last character is incomplete."""
    patch.setattr(Decode, "characters", lambda decode, data, final: (data.decode(errors="replace"), b""))


BUGS = (
    Bug("target KV one short after full acceptance", Law.KV, kv_one_short, ("served rejection, γ = 1",)),
    Bug("KV of rejected drafts kept", Law.KV, kv_never_rolled_back, ("served rejection", "served coupling")),
    Bug("KV cut by a count from the end", Law.KV, kv_cut_from_the_end, ("served rejection, γ = 1",)),
    Bug("one rejected position readable", Law.KV, rejected_position_read, ("served rejection",)),
    Bug("padded ids unmasked", Law.VOCABULARY, padding_unmasked, ("greedy identity, llama",)),
    Bug("end token inside a draft overlooked", Law.CUT, ends_overlooked, ("cuts of a round", "served rejection")),
    Bug("counted before the cut", Law.CUT, counted_before_the_cut, ("cuts of a round",)),
    Bug("limit wins over an earlier end", Law.CUT, limit_before_end, ("cuts of a round",)),
    Bug("γ past the room left", Law.CUT, room_overshot, ("room of the last round",)),
    Bug("stop string over two rounds missed", Law.CUT, stops_within_a_round, ("texts over rounds",)),
    Bug("half a character shown", Law.CUT, half_characters, ("texts over rounds",)),
)
