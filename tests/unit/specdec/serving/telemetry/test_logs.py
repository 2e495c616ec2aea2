"""A log line stays short for any input of a caller."""

from specdec.serving.telemetry.logs import VALUE_BYTES, cut_values


def test_long_texts_are_cut_and_all_else_stays() -> None:
    event = cut_values(None, "info", {"event": "x", "message": "y" * 3_000_000, "seconds": 0.5})
    assert (event["event"], event["seconds"]) == ("x", 0.5)
    assert len(str(event["message"]).encode()) <= VALUE_BYTES
