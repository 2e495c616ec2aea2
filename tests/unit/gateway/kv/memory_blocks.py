"""A store of KV blocks in memory."""

from collections.abc import Sequence

from specdec.errors import SessionStoreDown


class MemoryBlocks:
    """A BlockStore in memory."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.down = False
        self.touched: list[tuple[str, int]] = []

    async def sizes(self, keys: Sequence[str]) -> list[int]:
        if self.down:
            raise SessionStoreDown("down")
        return [len(self.blocks.get(key, b"")) for key in keys]

    async def get(self, key: str) -> bytes:
        return self.blocks.get(key, b"")

    async def put(self, domain: str, key: str, value: bytes) -> bool:
        self.blocks[key] = value
        return True

    async def touch(self, domain: str, keys: Sequence[str], sizes: Sequence[int]) -> None:
        self.touched = list(zip(keys, sizes, strict=True))

    async def drop(self, key: str) -> None:
        del self.blocks[key]

    async def is_full(self, domain: str) -> bool:
        return domain == "full"

    async def close(self) -> None: ...
