"""Tiny tokenizers that divide the same text differently, made when needed."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(merges: Sequence[str], special: Sequence[str], alphabet: Sequence[str] = ALPHABET) -> Tokenizer:
    """Make a byte-level BPE tokenizer: special tokens first, then bytes, then the merges, each given as `left right`.

    A space is written as in `Ġ`.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    words = [*special, *alphabet, *(left + right for left, right in pairs)]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    return tokenizer


def sentence_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Make a tokenizer like that of Llama 2: a start token, byte tokens, and pieces with `▁` for a space."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"<0x{value:02X}>" for value in range(256)), *pieces]
    merges = [(piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece))]
    known = [pair for pair in merges if pair[0] in words and pair[1] in words]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, known, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    return tokenizer


def word_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Make a tokenizer like that of BERT: a piece starting with `##` continues the word before it."""
    special = ["[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: index for index, word in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    return tokenizer


def likely_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Make a unigram tokenizer with byte tokens that drops the spaces of the first piece."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"<0x{value:02X}>" for value in range(256)), *pieces]
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    return tokenizer


def fast(tokenizer: Tokenizer, end: str) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer as transformers loads it from a model's folder; `end` is the end token."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
