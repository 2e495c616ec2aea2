"""The detail of a round crosses both hops unchanged, and takes no bytes unless requested."""

from specdec.protos.verifier.v1 import verifier_pb2
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Origin
from specdec.wire.generation import Round, RoundDetail, round_from_pb, round_to_pb
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport, report_from_pb, report_to_pb

JUDGED = (JudgedToken(0.25, 0.5, 0.125, 0.5), JudgedToken(0.0), JudgedToken(1.0, 0.0, 0.0, 0.0))


def test_numbers_that_a_mode_does_not_have_stay_unset_on_the_first_hop() -> None:
    done = Round(base_len=7, detail=RoundDetail(4, "goodput", 0.7, 0.2, 0.001, JUDGED))
    assert round_from_pb(verifier_pb2.GenerateResponse.FromString(round_to_pb(done).SerializeToString())) == done


def test_a_round_without_detail_is_as_long_as_before() -> None:
    done = Round(base_len=7)
    assert round_from_pb(round_to_pb(done)) == done
    assert not round_to_pb(done).HasField("detail")


def test_a_report_passes_to_the_caller() -> None:
    report = RoundReport(
        base_len=7,
        tokens=(ReportedToken(3, "a", Origin.ACCEPTED), ReportedToken(4, "b", Origin.RECOVERED)),
        drafted=(ReportedDraft(3, "a", True, "model", 0.5, 0.25, 0.0, 1.0), ReportedDraft(5, "c", False, "grammar")),
        accepted=1,
        drafter="model",
        fallback="",
        gamma=3,
        gamma_reason="trial",
        alpha=0.5,
        survival=0.25,
        predicted_speedup=2.0,
        measured_speedup=1.5,
        draft_seconds=0.5,
        network_seconds=0.25,
        queue_seconds=0.125,
        pass_seconds=1.0,
    )
    assert report_from_pb(report_to_pb(report)) == report
