"""The fingerprint that shows whether two services use the same tokenizer."""

import hashlib
from collections.abc import Mapping


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 in hex over the (id, token) pairs, those of added tokens included, in the order of ids.

    Padding rows of the model's matrix do not count.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}:{len(token)}:{token}\n".encode())
    return digest.hexdigest()
