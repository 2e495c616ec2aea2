"""Encrypts the values of blocks: who reads the store's memory learns nothing, and a value that was changed is found."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
"""Bytes of the nonce in front of each value; it is random, so one key serves for up to 2**32 values."""


class BlockCipher:
    """AES-256-GCM, which binds a value to the name it is stored under."""

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        self._aead = AESGCM(key)

    def encrypt(self, name: str, value: bytes) -> bytes:
        """What is stored under a name in place of a value."""
        nonce = os.urandom(_NONCE)
        return nonce + self._aead.encrypt(nonce, value, name.encode())

    def decrypt(self, name: str, stored: bytes) -> bytes:
        """The value; empty when what is stored was not made for this name with this key."""
        try:
            return self._aead.decrypt(stored[:_NONCE], stored[_NONCE:], name.encode())
        except (InvalidTag, ValueError):
            return b""
