"""The token ids that end a generation: those named in the files of a model folder, and the template's end of a turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.engine.folder import read_json
from specdec.errors import ModelRefused

_FILES = ("generation_config.json", "config.json")
_MARK = "\u241fanswer\u241f"


def end_token_ids(path: Path, otherwise: int | list[int] | None, tokenizer: Any, vocab_size: int) -> frozenset[int]:
    """The union of the end ids in generation settings, configuration, tokenizer and chat template.

    Args:
        path: the model folder.
        otherwise: the architecture's default, for folders that name no id.
        tokenizer: a Hugging Face tokenizer.
        vocab_size: ids from this one on are left out, because they are never drawn.

    Raises:
        ModelRefused: a file cannot be read, or has a value that is not an id or a list of ids.
    """
    named = {*named_end_ids(path, tokenizer), *_ids(end_of_turn(tokenizer))}
    return frozenset(each for each in named or _ids(otherwise) if 0 <= each < vocab_size)


def named_end_ids(path: Path, tokenizer: Any) -> frozenset[int]:
    """The end ids in generation settings, configuration and tokenizer; raises ModelRefused as `end_token_ids`."""
    return frozenset((*_of_files(path), *_ids(tokenizer.eos_token_id)))


def end_of_turn(tokenizer: Any) -> int | None:
    """The added token that the chat template puts after an answer; None if there is none.

    The template is code of the model's folder, so it may fail or refuse this conversation.
    """
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        text = str(tokenizer.apply_chat_template(talk, tokenize=False))
    except Exception:  # noqa: BLE001 - a template that raises any exception names no end
        return None
    _, answer, rest = text.rpartition(_MARK)
    added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    found = [name for name in added if answer and _is_control(name) and rest.lstrip().startswith(name)]
    return added[max(found, key=len)] if found else None


def _is_control(name: str) -> bool:
    """Whether an added token is more than a run of spaces or a word."""
    return not (name.isspace() or name.isalnum())


def _of_files(path: Path) -> Iterator[int]:
    for name in _FILES:
        content = read_json(path / name) if (path / name).is_file() else {}
        nested = content.get("text_config")
        for each in (content, nested if isinstance(nested, dict) else {}):
            found = each.get("eos_token_id")
            try:
                yield from _ids(found)
            except TypeError:
                raise ModelRefused(f"{path}: {name}: eos_token_id is {found!r}, not an id or a list of them") from None


def _ids(value: int | list[int] | None) -> list[int]:
    """The ids of one source; raises TypeError for any other value."""
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if not all(type(each) is int for each in ids):
        raise TypeError("not an id")
    return ids
