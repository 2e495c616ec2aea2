"""A base class for stand-ins of a Redis client that serve as their own pipeline."""

from typing import Self


class OwnPipeline:
    """A client that is also the result of `client.pipeline(transaction=False)`."""

    def pipeline(self, transaction: bool) -> Self:
        assert not transaction
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
