"""How a request has trees drafted: the bounds of each tree, how siblings are drawn, and by whom."""

from dataclasses import dataclass

from specdec.errors import FieldInvalid

MAX_NODES = 64
"""Most nodes of a tree: what each node sees of its tree is a word of as many bits on a device."""
MAX_DEPTH = 32
"""Most nodes on a path."""
MAX_DRAFTERS = 4
"""Most drafters of one tree."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The trees of one request.

    Raises:
        FieldInvalid: a field is out of range.
    """

    nodes: int
    """Most drafted tokens in a round."""
    width: int
    """Most children of a node that one drafter proposes."""
    depth: int
    """Most drafted tokens on a path."""
    replacement: bool = False
    """Whether siblings are drawn independently; without it, none is drawn twice."""
    drafters: tuple[str, ...] = ()
    """Names of what drafts: each makes a tree of its own for every round, and the trees are judged as one. Empty is the
    request's one drafter."""

    def __post_init__(self) -> None:
        _check("nodes", self.nodes, MAX_NODES)
        _check("width", self.width, MAX_NODES)
        _check("depth", self.depth, MAX_DEPTH)
        if len(self.drafters) > min(self.nodes, MAX_DRAFTERS):
            most = min(self.nodes, MAX_DRAFTERS)
            raise _invalid("drafters", f"has at most {most} names for {self.nodes} nodes, got {len(self.drafters)}")
        if len(set(self.drafters)) != len(self.drafters) or "" in self.drafters:
            raise _invalid("drafters", "must be different names, none of them empty")


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise _invalid(name, f"must be in 1..{most}, got {value}")


def _invalid(name: str, problem: str) -> FieldInvalid:
    field = f"speculation.tree.{name}"
    return FieldInvalid(f"{field} {problem}", field)
