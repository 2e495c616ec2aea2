"""The token ids that end a generation: all that the files of a model folder name, and the template's end of a turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.engine.folder import read_json
from specdec.errors import ModelRefused

_FILES = ("generation_config.json", "config.json")
_MARK = "\u241fanswer\u241f"


def end_token_ids(path: Path, otherwise: int | list[int] | None, tokenizer: Any, vocab_size: int) -> frozenset[int]:
    """The union of the ids in generation settings, configuration, tokenizer and chat template, where it has tokens.

    Args:
        path: the model folder.
        otherwise: what the architecture has by default; for folders that name no id at all.
        tokenizer: Hugging Face's.
        vocab_size: ids from this one on are left out, for nothing draws them.

    Raises:
        ModelRefused: a file cannot be read, or names something else than ids.
    """
    named = {*_of_files(path), *_ids(tokenizer.eos_token_id), *_ids(end_of_turn(tokenizer))}
    return frozenset(each for each in named or _ids(otherwise) if 0 <= each < vocab_size)


def end_of_turn(tokenizer: Any) -> int | None:
    """The added token that the chat template puts behind an answer; None where there is none.

    The whole template may fail, or refuse this conversation: it is code of the model's folder.
    """
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        text = str(tokenizer.apply_chat_template(talk, tokenize=False))
    except Exception:  # noqa: BLE001 - whatever it raises, it names no end
        return None
    _, answer, behind = text.rpartition(_MARK)
    added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    found = [name for name in added if answer and _is_control(name) and behind.lstrip().startswith(name)]
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
    """The ids of one source; raises TypeError where it has something else."""
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if not all(type(each) is int for each in ids):
        raise TypeError("not an id")
    return ids
