"""The fingerprint by which two services know that they speak with the same tokenizer."""

import hashlib
from collections.abc import Mapping


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256, in hex, over the (id, token) pairs in id order; padding rows of the model's matrix do not count.

    Args:
        vocabulary: token to id, added tokens included.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}:{len(token)}:{token}\n".encode())
    return digest.hexdigest()
