"""A base of stand-ins for a Redis client: each is a pipeline of its own."""

from typing import Self


class OwnPipeline:
    """What `client.pipeline(transaction=False)` returns, too."""

    def pipeline(self, transaction: bool) -> Self:
        assert not transaction
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
