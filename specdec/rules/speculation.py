"""Speculation options of a request, and the origin of its tokens: frozen values, validated on construction."""

from dataclasses import dataclass
from enum import StrEnum

from specdec.errors import FieldInvalid
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.sampling.params import check_range

MAX_NODES = 64
"""Most nodes of a tree: on a device, the ancestors of each node are a word with one bit for each node."""
MAX_DEPTH = 32
"""Most nodes on a path."""
MAX_DRAFTERS = 4
"""Most drafters of one tree."""


class Mode(StrEnum):
    """Verification rule of drafts."""

    OFF = "off"
    REJECTION = "rejection"
    BLOCK = "block"
    COUPLED = "coupled"


class Origin(StrEnum):
    """Origin of a committed token."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


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
    """Names of the drafters. Each builds its own tree for every round, and the trees are judged as one. Empty selects
    the request's one drafter."""

    def __post_init__(self) -> None:
        _check_count("nodes", self.nodes, MAX_NODES)
        _check_count("width", self.width, MAX_NODES)
        _check_count("depth", self.depth, MAX_DEPTH)
        if len(self.drafters) > min(self.nodes, MAX_DRAFTERS):
            most = min(self.nodes, MAX_DRAFTERS)
            raise _invalid("drafters", f"has at most {most} names for {self.nodes} nodes, got {len(self.drafters)}")
        if len(set(self.drafters)) != len(self.drafters) or "" in self.drafters:
            raise _invalid("drafters", "must be different names, none of them empty")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation options of one request.

    Raises:
        FieldInvalid: a field is out of range, lenience is below 1 in a mode other than rejection, or a tree is combined
            with an option for chains only.
    """

    mode: Mode = Mode.REJECTION
    gamma: int | None = None
    """Tokens to draft in each round; None lets the policy choose."""
    lenience: float = 1.0
    """ℓ: a draft is kept with probability min(1, p/(ℓ·q)). 1 is exact; less is lossy and for mode rejection only."""
    drafter: str = ""
    """Name of the drafter or draft source, as known to the verifier; empty lets the verifier choose."""
    prediction: tuple[int, ...] = ()
    """The output that the caller expects; drafts come from it before any other source is asked."""
    detail: bool = False
    """Whether every round reports the evidence for its verdict; does not change the tokens."""
    policy: GammaPolicy = AUTO
    """Policy for the draft length, and the condition that ends a draft early."""
    tree: TreeOptions | None = None
    """Shape of draft trees; None drafts chains."""

    @property
    def lossy(self) -> bool:
        """Whether the distribution of the output may differ from the target's."""
        return self.lenience < 1.0

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma < 0:
            raise FieldInvalid(f"gamma must be at least 0, got {self.gamma}", "speculation.gamma")
        if self.gamma is not None and self.policy.policy is not PolicyKind.AUTO:
            raise FieldInvalid(f"policy {self.policy.policy} chooses the length: leave gamma out", "speculation.gamma")
        check_range("speculation.lenience", self.lenience, 0.0, 1.0, open_low=True)
        if self.lenience != 1.0 and self.mode is not Mode.REJECTION:
            raise FieldInvalid(
                f"lenience is for mode {Mode.REJECTION}: mode {self.mode} allows none", "speculation.lenience"
            )
        if self.tree is not None:
            self._check_tree()

    def _check_tree(self) -> None:
        """Raise FieldInvalid for an option that cannot be combined with a tree."""
        if self.mode not in (Mode.REJECTION, Mode.COUPLED):
            raise FieldInvalid(f"trees are for modes rejection and coupled, not {self.mode}", "speculation.tree")
        if self.gamma is not None or self.policy != AUTO:
            raise FieldInvalid("gamma is the length of chains: leave it out with a tree", "speculation.gamma")
        if self.lossy:
            raise FieldInvalid("trees are judged without lenience: leave one of them out", "speculation.lenience")
        if self.drafter and self.tree and self.tree.drafters:
            raise FieldInvalid("name drafters in the tree or beside it, not both", "speculation.tree.drafters")
        if self.prediction:
            raise FieldInvalid("a prediction is drafted as a chain: leave it or the tree out", "speculation.tree")


def _check_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise _invalid(name, f"must be in 1..{most}, got {value}")


def _invalid(name: str, problem: str) -> FieldInvalid:
    field = f"speculation.tree.{name}"
    return FieldInvalid(f"{field} {problem}", field)
