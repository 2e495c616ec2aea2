"""The fingerprint that shows whether two services use the same tokenizer."""

import hashlib
from collections.abc import Mapping


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 in hex over the (id, token) pairs in the order of ids; padding rows of the model's matrix do not count.

    Args:
        vocabulary: the id of each token, added tokens included.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}:{len(token)}:{token}\n".encode())
    return digest.hexdigest()
