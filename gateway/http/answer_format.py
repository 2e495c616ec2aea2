"""How the answer to a request is written; kept as text with the generation, for whoever resumes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Which answer the caller asked for, and what it shows."""

    chat: bool = False
    """Whether it is a chat completion; otherwise it is a completion."""
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts."""
    token_ids: bool = False
    """Whether token ids are shown beside the text."""

    def text(self) -> str:
        """The format as text, for `parse`."""
        return " ".join(["openai", *(name for name in self.__slots__ if getattr(self, name))])

    @classmethod
    def parse(cls, text: str) -> "AnswerFormat":
        """The format of a text; it is empty for a generation begun over gRPC: a completion with token ids."""
        if not text:
            return cls(token_ids=True)
        return cls(**{name: True for name in text.split() if name in cls.__slots__})
