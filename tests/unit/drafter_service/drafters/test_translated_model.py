"""A draft model with another vocabulary: the tokens it reads, the tokens it may draft, and their distribution."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from drafter_service.drafters.retokenized import Retokenized, Translation
from drafter_service.drafters.sequence_lengths import SequenceLengths
from drafter_service.drafters.translated_model import TranslatedModel
from specdec.engine import Chunk
from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.support.draft_laws import compress
from tests.support.tokenizers_apart import byte_level, sentence_pieces

THEIRS = byte_level(["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or"], ["<end>", "<turn>"])
OURS = byte_level(["l o", "h e", "Ġ w", "l d"], ["<turn>", "<stop>"])
TARGET = ByteTokenizer(THEIRS.to_str(), THEIRS.get_vocab_size(), [0]).vocabulary
DRAFTER = ByteTokenizer(OURS.to_str(), OURS.get_vocab_size(), [1])
WAY = Translation(DRAFTER, TARGET)
END, TURN = 0, 1
TEXT = "hello world, he told héllo"


class Recorder(SequenceLengths):
    """A model that knows its input, and whose logits depend on all of it."""

    def __init__(self, vocab_size: int, context: int = 10_000) -> None:
        super().__init__()
        self.vocab_size, self.context_length, self.tokenizer_hash = vocab_size, context, "drafter"
        self.read: dict[str, list[int]] = {}
        self.room = True

    def can_ever_admit(self, limit: int) -> bool:
        return limit <= self.context_length

    def reserve(self, session: str, length: int) -> bool:
        return self.room

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        rows = []
        for chunk in chunks:
            known = self.read.setdefault(chunk.session, [])
            del known[self.length(chunk.session) :]
            known += chunk.tokens
            self.extend(chunk.session, len(chunk.tokens))
            if chunk.logits:
                generator = torch.Generator().manual_seed(hash(tuple(known)) % 2**31)
                rows.append(torch.randn(self.vocab_size, generator=generator))
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)


def translated(model: Recorder | None = None) -> tuple[Recorder, TranslatedModel]:
    model = model or Recorder(len(DRAFTER.vocabulary.tokens))
    return model, TranslatedModel(model, WAY)


def target_ids(text: str) -> list[int]:
    return list(THEIRS.encode(text).ids)


def own_text(ids: Sequence[int]) -> bytes:
    """Return the text of drafter ids, without special tokens."""
    known = DRAFTER.vocabulary
    return b"".join(known.tokens[each] for each in ids if each not in known.special)


def test_a_text_is_written_as_the_drafters_tokenizer_writes_it() -> None:
    text = Retokenized(WAY)
    text.read(target_ids(TEXT))
    assert text.ids == [*DRAFTER.beginning, *OURS.encode(TEXT).ids]
    assert len(text.ids) != len(target_ids(TEXT))


def test_a_special_token_is_kept_if_the_drafter_has_it_and_else_left_out() -> None:
    text = Retokenized(WAY)
    text.read([END, *target_ids("he"), TURN, *target_ids("llo")])
    turn = OURS.token_to_id("<turn>")
    assert text.ids == [*DRAFTER.beginning, *OURS.encode("he").ids, turn, *OURS.encode("llo").ids]


def test_a_shared_draft_is_read_as_it_was_drafted() -> None:
    text = Retokenized(WAY)
    text.read(target_ids("l"))
    before = list(text.ids)
    assert text.read(target_ids("o")) == len(before)
    assert text.ids == [*before, OURS.token_to_id("o")]
    text.read(target_ids("ok"))
    assert text.ids == [*DRAFTER.beginning, *OURS.encode("look").ids]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_read_and_forgotten_the_drafter_reads_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    ordinary = [index for index in range(len(TARGET.tokens)) if index not in TARGET.special]
    text, tokens = Retokenized(WAY), list[int]()
    for _ in range(60):
        if rng.random() < 0.3:
            del tokens[rng.randrange(len(tokens) + 1) :]
            text.truncate(len(tokens))
        more = [rng.choice(ordinary) for _ in range(rng.choice((1, 1, 2, 7)))]
        before = list(text.ids)
        kept = text.read(more)
        tokens += more
        assert text.ids[:kept] == before[:kept]
        assert len(text) == len(tokens)
        assert own_text(text.ids) == b"".join(TARGET.tokens[each] for each in tokens)
        part = rng.randrange(len(tokens) + 1)
        known = own_text(text.ids[: text.position(part)])
        assert b"".join(TARGET.tokens[each] for each in tokens[:part]).startswith(known)
        assert text.covered(text.position(part)) <= part or not TARGET.tokens[tokens[part]]


def test_only_shared_tokens_have_a_chance_and_q_is_normalised_over_them() -> None:
    model, drafts = translated()
    ids = target_ids(TEXT)
    assert drafts.admit("s", 100, ids)
    logits = drafts.forward([Chunk("s", ids, 1)])
    own = model.read["s"]
    again = Recorder(model.vocab_size)
    again.admit("s", 100)
    full = again.forward([Chunk("s", own, 1)])[0].softmax(0)
    q = probabilities(logits, [SamplingParams()], [History()])[0]
    expected = torch.zeros(len(TARGET.tokens))
    for theirs, mine in WAY.same.items():
        expected[theirs] = full[mine]
    assert 0.01 < expected.sum() < 0.999
    torch.testing.assert_close(q.float(), expected / expected.sum())
    (sent,) = compress(q[None], 1000)
    assert set(sent.ids.tolist()) <= set(WAY.same)


def test_a_sequence_goes_on_as_if_it_had_been_computed_at_once() -> None:
    ids = target_ids(TEXT)
    model, drafts = translated()
    drafts.admit("s", 100, ids[:4])
    drafts.forward([Chunk("s", ids[:2], 0)])
    drafts.forward([Chunk("s", ids[2:4], 1)])
    drafts.forward([Chunk("s", [ids[0]], 1)])
    drafts.truncate("s", 4)
    assert drafts.length("s") == 4
    pieces = drafts.forward([Chunk("s", ids[4:], 1)])
    at_once, other = translated()
    other.admit("s", 100, ids)
    torch.testing.assert_close(pieces, other.forward([Chunk("s", ids, 1)]))
    assert model.read["s"] == at_once.read["s"]


@pytest.mark.parametrize("context", [12, 10_000])
def test_a_sequence_without_room_has_no_distribution_and_the_others_go_on(context: int) -> None:
    model, drafts = translated(Recorder(len(DRAFTER.vocabulary.tokens), context))
    long, short = target_ids(TEXT), target_ids("he")
    assert drafts.admit("long", 11, long[:3])
    assert drafts.admit("short", 8, short)
    model.room = model.context_length == 12
    logits = drafts.forward([Chunk("long", long, 1), Chunk("short", short, 1)])
    assert bool(logits[0].isnan().all())
    assert model.room != bool(logits[1].isnan().all())


def test_vocabularies_of_sentence_pieces_and_bytes_translate_both_ways() -> None:
    pieces = sentence_pieces(["▁", *"helowrdt,", "he", "ll", "▁w", "▁he", "lo"])
    llama = ByteTokenizer(pieces.to_str(), pieces.get_vocab_size(), [2])
    assert llama.beginning == (2,)
    known = {llama.vocabulary.tokens[each] for each in Translation(llama, TARGET).same.values()}
    assert {b"he", b"ll", b" w", b" ", b"\xc3"} <= known
    text = Retokenized(Translation(llama, TARGET))
    text.read(target_ids(TEXT))
    assert b"".join(llama.vocabulary.tokens[each] for each in text.ids[1:]) == TEXT.encode()
