"""Texts over the vocabulary of all bytes, with tags that may be special tokens."""

END = 256
TAGS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("Here: I|think.", "Here (I) answer:"),
]


def ids(text: str, tags: list[str]) -> list[int]:
    found: list[int] = []
    while text:
        tag = next((tag for tag in tags if text.startswith(tag)), "")
        found += [END + 1 + tags.index(tag)] if tag else text[0].encode()
        text = text[len(tag) or 1 :]
    return found


def allowed(mask: bytes | None, token: int) -> bool:
    return mask is not None and bool(mask[token // 8] >> token % 8 & 1)
