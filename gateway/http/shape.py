"""How the answer to a generation is written, in a form that can be kept with it for whoever resumes it."""

from dataclasses import dataclass

from gateway.http.logprobs import Piece
from gateway.http.writers import ChatWriter, CompletionWriter, Form, Writer
from gateway.turns.events import Started


@dataclass(frozen=True, slots=True)
class Shape:
    """What a caller wants to see of a generation."""

    chat: bool = False
    include_usage: bool = False
    """Whether a stream ends with a chunk of counts."""
    token_ids: bool = False

    def writer(self, started: Started, piece: Piece) -> Writer:
        """Writes one answer of this shape; `piece` tells the bytes of a token."""
        kind = ChatWriter if self.chat else CompletionWriter
        return kind(started, Form(piece, self.include_usage, self.token_ids))

    def text(self) -> str:
        """For `parse`."""
        return " ".join(["openai", *(name for name in self.__slots__ if getattr(self, name))])

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """The shape of that text; what came through another door is a completion with its token ids."""
        if not text:
            return cls(token_ids=True)
        return cls(**{name: True for name in text.split() if name in cls.__slots__})
