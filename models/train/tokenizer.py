"""The demo pair's tokenizer: a byte-level BPE trained on the corpus, shared by target and drafter."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 2048

# A code model reads instructions as comments. Every system and user line becomes a comment; assistant turns stay code.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- message['content'] + '\n' -}}"
    "{%- else -%}"
    "{%- for line in message['content'].split('\n') -%}"
    "{{- ('# ' + line).rstrip() + '\n' -}}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
)


def train_tokenizer(texts: Iterable[str], context: int, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Train the BPE on `texts`. Id 0 is `<

    endoftext

    >` (bos, eos and pad), which encoding never adds by itself.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return _wrap(bpe, context)


def _wrap(bpe: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
