from collections.abc import Iterator

import pytest

from tests.unit.verifier_service.vllm.remote_pair import Pair, served


@pytest.fixture
def pair() -> Iterator[Pair]:
    with served() as made:
        yield made
