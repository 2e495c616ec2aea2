"""The reference engine: any Hugging Face model whose cache can be cropped, one sequence at a time.

It calls the model like `generate` of transformers, with transformers' own cache and masks. That is slow and obviously
correct, so the other engines are tested against it. An encoder-decoder encodes the prompt with its encoder and computes
the tokens after the prompt with its decoder. A sequence is a prompt and its output, as for any engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from specdec.engine.batch import Chunk, pack
from specdec.engine.kv.pool import KvMemory
from specdec.engine.loader import ModelFacts, load_plain_model
from specdec.engine.model_check import TOLERANCE
from specdec.errors import InternalError, ModelRefused

_CHECKED = 11
"""Number of tokens of the sequence that is checked at load time."""
_PROMPT = 4
"""Length of its prompt, in tokens."""


@dataclass(slots=True)
class _Sequence:
    """One admitted sequence."""

    limit: int
    prompt_len: int = 1
    tokens: list[int] = field(default_factory=list)
    """The computed tokens."""
    cache: Any = None
    """Cache of transformers; None before the first pass."""
    encoded: Any = None
    """Output of the encoder for the prompt."""

    def decoded(self, length: int) -> int:
        """Number of decoder positions for the first `length` tokens; the first stands for the prompt's last token."""
        return max(0, length - self.prompt_len + 1)


class ReferenceEngine:
    """A loaded model and the caches of its sequences: an `Engine`, and a `PromptReader`."""

    def __init__(self, model: Any, facts: ModelFacts, kv_bytes: int, device: torch.device) -> None:
        """Wrap a transformers model in evaluation mode; `kv_bytes` limits the tokens of all sequences together.

        Raises:
            ModelRefused: the model's state cannot be cropped, or passes with a cache differ from passes without one.
        """
        self._model = model
        self.facts = facts
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.vocab_size = facts.vocab_size
        self.context_length = facts.context_length
        self.tokenizer_hash = facts.tokenizer_hash
        self.device = device
        if getattr(model, "_is_stateful", False):
            raise ModelRefused(f"{facts.name}: {model.config.model_type} has recurrent state, which cannot be cropped")
        self._sequences: dict[str, _Sequence] = {}
        self._budget, self._token_bytes = kv_bytes, _token_bytes(model)
        _check(self)

    @classmethod
    def load(
        cls, path: Path, *, dtype: str, device: str, kv_bytes: int, threads: int | None, allow_pickle: bool = False
    ) -> Self:
        """Load a local model folder.

        Args:
            path: a Hugging Face model folder of a decoder or an encoder-decoder.
            dtype: "float32", "bfloat16" or "float16".
            device: a PyTorch device, or "auto" for the accelerator if there is one.
            kv_bytes: budget for the keys and values of all sequences together, in bytes.
            threads: number of PyTorch threads in this process; None does not change it.
            allow_pickle: whether to load pickles, which can run code of their author, if there are no safetensors.

        Raises:
            ModelRefused: the folder cannot be served; the message says why.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        model, facts, found = load_plain_model(path, dtype, device, allow_pickle=allow_pickle)
        return cls(model, facts, kv_bytes, found)

    @property
    def memory(self) -> KvMemory:
        """The memory of all sequences, in bytes."""
        live = sum(len(each.tokens) for each in self._sequences.values()) * self._token_bytes
        return KvMemory(self._budget, live, 0)

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits an empty engine and the model's context."""
        return 0 < limit <= min(self._budget // self._token_bytes, self.context_length)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Admit a sequence; nothing is shared between sequences."""
        if session in self._sequences:
            raise InternalError(f"session {session} is admitted already")
        if not self.can_ever_admit(limit) or not self._fits(len(tokens)):
            return False
        self._sequences[session] = _Sequence(limit)
        return True

    def read_prompt(self, session: str, prompt_len: int) -> None:
        """Set the length of the sequence's prompt, before any token is computed."""
        sequence = self._sequence(session)
        if sequence.prompt_len != prompt_len:
            self._sequences[session] = _Sequence(sequence.limit, prompt_len)

    def reserve(self, session: str, length: int) -> bool:
        """Whether there is memory for the first `length` tokens of a sequence."""
        sequence = self._sequence(session)
        if length > sequence.limit:
            raise InternalError(f"session {session} is over its limit of {sequence.limit} tokens")
        return self._fits(length - len(sequence.tokens))

    def release(self, session: str) -> None:
        """End the sequence."""
        del self._sequences[session]

    def length(self, session: str) -> int:
        """Number of computed tokens of the sequence."""
        return len(self._sequence(session).tokens)

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` computed tokens and crop the cache to them."""
        sequence = self._sequence(session)
        if not 0 <= length <= len(sequence.tokens):
            raise InternalError(f"session {session} has {len(sequence.tokens)} tokens, not {length}")
        self._crop(sequence, length)
        del sequence.tokens[length:]

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run the chunks one after the other; on any error no length changes.

        Raises:
            InternalError: a chunk is malformed or a tree, its session is unknown, or it wants logits within the prompt
                of an encoder-decoder.
        """
        before = [(each.session, self.length(each.session)) for each in chunks]
        if any(tree is not None for tree in pack(chunks, [length for _, length in before], self.vocab_size).trees):
            raise InternalError("the reference engine computes no trees")
        rows: list[Tensor] = []
        try:
            for chunk in chunks:
                rows.append(self._run(self._sequence(chunk.session), chunk))
        except BaseException:
            for session, length in before[: len(rows)]:
                self.truncate(session, length)
            if len(rows) < len(before):  # the cache is in an unknown state after a failed pass
                self._sequence(before[len(rows)][0]).cache = None
            raise
        return torch.cat([torch.empty(0, self.vocab_size, device=self.device), *rows])

    @torch.inference_mode()
    def plain_logits(self, tokens: Sequence[int], prompt_len: int) -> Tensor:
        """Logits after each token from the last prompt token on, by one pass without a cache [N, vocab_size]."""
        row = torch.tensor([list(tokens)], device=self.device)
        if not self.encoder_decoder:
            logits = self._model(input_ids=row, use_cache=False).logits[0, prompt_len - 1 :]
        else:
            inputs = torch.cat([row.new_tensor([[self._start]]), row[:, prompt_len:]], dim=1)
            logits = self._model(input_ids=row[:, :prompt_len], decoder_input_ids=inputs, use_cache=False).logits[0]
        return self._valid(logits)

    @property
    def _start(self) -> int:
        """The first input id of an encoder-decoder's decoder."""
        return int(self._model.config.decoder_start_token_id)

    @torch.inference_mode()
    def _run(self, sequence: _Sequence, chunk: Chunk) -> Tensor:
        """Compute a chunk of a sequence. Return its logits [chunk.logits, vocab_size]."""
        known = len(sequence.tokens) if sequence.cache is not None else 0
        tokens = [*sequence.tokens, *chunk.tokens]
        compute = self._decode if self.encoder_decoder else self._extend
        logits = compute(sequence, tokens, known)
        if len(logits) < chunk.logits:
            raise InternalError(f"session {chunk.session}: an encoder gives no logits within the prompt")
        sequence.tokens = tokens
        return self._valid(logits[len(logits) - chunk.logits :])

    def _extend(self, sequence: _Sequence, tokens: list[int], known: int) -> Tensor:
        """Logits of a decoder after each of tokens[known:]."""
        cache = DynamicCache() if sequence.cache is None else sequence.cache
        row = torch.tensor([tokens[known:]], device=self.device)
        sequence.cache = cache
        logits: Tensor = self._model(input_ids=row, past_key_values=cache, use_cache=True).logits[0]
        return logits

    def _decode(self, sequence: _Sequence, tokens: list[int], known: int) -> Tensor:
        """Logits of an encoder-decoder after each of tokens[known:], from the last prompt token on."""
        first = max(known, sequence.prompt_len - 1)
        if first >= len(tokens):
            return torch.empty(0, self._model.config.vocab_size, device=self.device)
        prompt = torch.tensor([tokens[: sequence.prompt_len]], device=self.device)
        if sequence.cache is None:
            sequence.encoded = self._model.get_encoder()(input_ids=prompt)
            sequence.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        ids = [
            self._start if place == sequence.prompt_len - 1 else tokens[place] for place in range(first, len(tokens))
        ]
        logits: Tensor = self._model(
            encoder_outputs=sequence.encoded,
            decoder_input_ids=torch.tensor([ids], device=self.device),
            past_key_values=sequence.cache,
            use_cache=True,
        ).logits[0]
        return logits

    def _crop(self, sequence: _Sequence, length: int) -> None:
        """Crop the cache to the first `length` tokens."""
        known, kept = len(sequence.tokens), length
        if self.encoder_decoder:
            known, kept = sequence.decoded(known), sequence.decoded(length)
        if kept == 0:
            sequence.cache = sequence.encoded = None
        elif kept < known and sequence.cache is not None:
            sequence.cache.crop(kept - known)

    def _sequence(self, session: str) -> _Sequence:
        try:
            return self._sequences[session]
        except KeyError:
            raise InternalError(f"session {session} is not admitted") from None

    def _fits(self, more: int) -> bool:
        tokens = sum(len(each.tokens) for each in self._sequences.values())
        return (tokens + more) * self._token_bytes <= self._budget

    def _valid(self, logits: Tensor) -> Tensor:
        return logits[:, : self.vocab_size].float()


def _token_bytes(model: Any) -> int:
    """Upper bound of the bytes of one token's keys and values: two vectors of the hidden size in every layer."""
    config = model.config.get_text_config(decoder=True)
    layers = getattr(config, "decoder_layers", None) or config.num_hidden_layers
    return int(2 * layers * config.hidden_size * next(model.parameters()).element_size())


def _check(engine: ReferenceEngine) -> None:
    """Compare passes with a cache, in pieces and with a rollback, with one pass without a cache.

    Raises:
        ModelRefused: the logits differ, or a trial pass fails.
    """
    size = engine.vocab_size
    tokens = [(3 + 7919 * index * index) % size for index in range(_CHECKED)]
    name = engine.facts.name
    try:
        plain = engine.plain_logits(tokens, _PROMPT)
        cached = _in_pieces(engine, tokens)
    except ModelRefused:
        raise
    except Exception as error:  # a model of any kind may fail in any way
        raise ModelRefused(f"{name}: a trial pass fails: {error}") from error
    distance = float((cached - plain).norm() / plain.norm().clamp_min(1e-9))
    allowed = TOLERANCE[next(iter(engine._model.parameters())).dtype]
    if not distance <= allowed:
        raise ModelRefused(
            f"{name}: passes with a cache differ from plain ones by {distance:.1e}, allowed is {allowed:.0e}"
        )


def _in_pieces(engine: ReferenceEngine, tokens: list[int]) -> Tensor:
    """Logits from the last prompt token on, from passes over pieces, with a draft rolled back."""
    trial = "trial"
    engine._sequences[trial] = _Sequence(len(tokens) + 2, _PROMPT)
    try:
        rows = [engine.forward([Chunk(trial, tokens[:_PROMPT], logits=1)])]
        rows.append(engine.forward([Chunk(trial, tokens[_PROMPT : _PROMPT + 3], logits=3)]))
        engine.forward([Chunk(trial, [0, 1], logits=2)])  # a draft that is rejected
        engine.truncate(trial, _PROMPT + 3)
        rows.append(engine.forward([Chunk(trial, tokens[_PROMPT + 3 :], logits=len(tokens) - _PROMPT - 3)]))
        return torch.cat(rows)
    finally:
        engine.release(trial)
