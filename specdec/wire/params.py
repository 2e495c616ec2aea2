"""Translation of sampling parameters, modes, token origins and finish reasons to and from protobuf."""

from specdec.errors import FieldInvalid
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.protos.common.v1 import common_pb2 as pb
from specdec.rules.speculation import Mode, Origin, TreeOptions
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.codec import Codec, EnumCodec, Pair, each, optional

_MODES = EnumCodec[Mode | None](Mode, pb.VerificationMode.DESCRIPTOR, unknown=None)
ORIGIN = EnumCodec[Origin](Origin, pb.TokenOrigin.DESCRIPTOR, unknown=Origin.PLAIN)
FINISH = EnumCodec[FinishReason | None](FinishReason, pb.FinishReason.DESCRIPTOR, unknown=None)
"""None means that the generation is still running."""
_KINDS = EnumCodec[GrammarKind | None](GrammarKind, pb.GrammarKind.DESCRIPTOR, unknown=None)


def grammar_to_pb(grammar: Grammar | None) -> pb.Grammar | None:
    if grammar is None:
        return None
    return pb.Grammar(
        kind=_KINDS.to_pb(grammar.kind),
        text=grammar.text,
        digest=grammar.digest,
        behind=grammar.behind,
        budget=grammar.budget,
    )


def grammar_from_pb(message: pb.Grammar) -> Grammar | None:
    """Return the grammar of a message; None for an empty message, which is an unset field.

    Raises:
        FieldInvalid: the kind is not known here, or the digest is of another grammar.
    """
    if not message.ByteSize():
        return None
    kind = _KINDS.from_pb(message.kind)
    if kind is None:
        raise FieldInvalid(f"unknown kind of grammar {message.kind}", "sampling.grammar")
    budget = message.budget if message.HasField("budget") else None
    grammar = Grammar(kind, message.text, message.behind, budget)
    if grammar.digest != message.digest:
        raise FieldInvalid("the grammar is not the one that its digest was made of", "sampling.grammar")
    return grammar


def _word_to_pb(word: tuple[int, ...]) -> pb.TokenSequence:
    return pb.TokenSequence(token_ids=word)


def _word_from_pb(message: pb.TokenSequence) -> tuple[int, ...]:
    return tuple(message.token_ids)


SAMPLING = Codec(
    SamplingParams,
    pb.SamplingParams,
    bad_words=each(Pair(_word_to_pb, _word_from_pb)),
    grammar=Pair(grammar_to_pb, grammar_from_pb),
)
"""All fields are sent. A field out of range raises FieldInvalid."""

GAMMA_POLICY = Codec(
    GammaPolicy,
    pb.GammaPolicy,
    policy=EnumCodec[PolicyKind](PolicyKind, pb.GammaPolicyKind.DESCRIPTOR, unknown=PolicyKind.AUTO),
)

mode_to_pb = _MODES.to_pb
origin_to_pb, origin_from_pb = ORIGIN.to_pb, ORIGIN.from_pb
finish_to_pb, finish_from_pb = FINISH.to_pb, FINISH.from_pb
sampling_to_pb, sampling_from_pb = SAMPLING.to_pb, SAMPLING.from_pb
_TREE = Codec(TreeOptions, pb.TreeOptions)
TREE = optional(_TREE)
tree_from_pb = _TREE.from_pb


def mode_from_pb(number: int) -> Mode:
    """Return the mode with a protobuf number.

    Raises:
        FieldInvalid: no mode is set, or the number is not known.
    """
    mode = _MODES.from_pb(number)
    if mode is None:
        raise FieldInvalid(f"unknown verification mode {number}", "speculation.mode")
    return mode


MODE = Pair(mode_to_pb, mode_from_pb)
