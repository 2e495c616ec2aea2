"""The clients for threads and for asyncio have the same methods."""

import inspect

from specdec.client import AsyncClient, Client


def test_both_clients_have_the_same_methods_parameters_and_texts() -> None:
    names = {name for name in dir(Client) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncClient) if not name.startswith("_")}
    for name in names:
        ours, theirs = (getattr(client, name) for client in (Client, AsyncClient))
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
        first, second = (str(inspect.getdoc(method)).partition(".")[0] for method in (ours, theirs))
        assert first == second
