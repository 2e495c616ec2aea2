"""Placement of new sessions by the prefix of their prompt, so that the verifier chosen has its keys and values.

A prefix is the chain of its block hashes, as in the verifiers' prefix caches. This gateway remembers the verifiers of
the blocks that it placed lately. A prompt goes to a verifier of its longest known prefix. Without one, the hash of its
first blocks ranks the verifiers, so that gateways that do not know each other choose alike.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from specdec.rules.blocks import BLOCK_TOKENS, chain, root

LONGEST = 4096
"""Number of leading tokens whose blocks are hashed and remembered. Longer prompts that agree so far count as equal."""
_FIRST = 4
"""Number of leading blocks whose hash ranks the verifiers."""
_HOLDERS = 4
"""Maximum number of verifiers remembered for one block."""

Prefix = Sequence[bytes]
"""Hashes of the leading whole blocks of a prompt, in order."""


def prefix_of(tokens: Sequence[int], fingerprint: str, domain: str) -> Prefix:
    """Return the prefix of a prompt. It differs between models and between domains that share nothing.

    The last block of a prompt is left out if it ends the prompt: at least one token is always computed.
    """
    whole = max(0, len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return chain(root(fingerprint, domain), tokens[: min(whole, LONGEST)])


def ranking_key(prefix: Prefix, session: str) -> str:
    """Return the key that ranks verifiers: the first blocks of a prompt, or its session if it has no whole block."""
    return prefix[min(len(prefix), _FIRST) - 1].hex() if prefix else session


class PrefixMemory:
    """The verifiers of the blocks that were placed lately, least recently used ones dropped."""

    def __init__(self, size: int = 65_536) -> None:
        """Create an empty memory of at most `size` blocks; one takes about 400 bytes."""
        self._size = size
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def note(self, prefix: Prefix, verifier: str) -> None:
        """Record that a verifier, by its discovery key, computes the blocks of a prefix."""
        for block in reversed(prefix):  # the first blocks are shared most, and so dropped last
            holders = self._holders.pop(block, ())
            others = tuple(each for each in holders if each != verifier)
            self._holders[block] = (verifier, *others[: _HOLDERS - 1])
        while len(self._holders) > self._size:
            self._holders.popitem(last=False)

    def choice(self, prefix: Prefix, loads: Mapping[str, int], bound: float) -> str | None:
        """Return the verifier with the longest known prefix whose load is below the bound; None without one.

        Of several, the one with the least load is returned.
        """
        for holders in self._known(prefix):
            found = [each for each in holders if loads.get(each, bound) < bound]
            if found:
                return min(found, key=lambda each: loads[each])
        return None

    def _known(self, prefix: Prefix) -> Iterator[tuple[str, ...]]:
        """Yield the verifiers of the known blocks, from the longest prefix on."""
        for block in reversed(prefix):
            if (holders := self._holders.get(block)) is not None:
                yield holders
