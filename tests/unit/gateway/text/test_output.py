"""Committed tokens become text that may be shown."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import Decode, Detokenizer
from gateway.text.output import OutputText, OutputToken
from specdec.rules.speculation import Origin
from tests.support.gateway_fakes import EOS, ByteTokenizer, logprobs


def make(stops: Sequence[str] = (), min_tokens: int = 0) -> OutputText:
    return OutputText(Detokenizer(ByteTokenizer().decode), stops, min_tokens)


def plain(tokens: Sequence[int]) -> list[Origin]:
    return [Origin.PLAIN] * len(tokens)


def text(tokens: Sequence[OutputToken]) -> str:
    return "".join(token.text for token in tokens)


def taken(output: OutputText, data: bytes) -> str:
    return text(output.take(data, plain(data)))


def test_without_stops_everything_is_released_at_once() -> None:
    assert taken(make(), b"abc") == "abc"


def test_tokens_of_a_character_are_released_together() -> None:
    output = make()
    first, second = "😀".encode()[:2], "😀".encode()[2:]
    assert output.take(first, plain(first)) == ()
    assert [token.text for token in output.take(second, plain(second))] == ["", "", "", "😀"]


def test_a_token_keeps_its_logprobs_through_holding_back_and_cutting() -> None:
    output = make(["STOP"])
    data = "aé STOPx".encode()
    scores = [logprobs(token, 2) for token in data]
    released = [
        token
        for start in range(0, len(data), 3)
        for token in output.take(data[start : start + 3], plain(data[start : start + 3]), scores[start : start + 3])
    ]
    assert [(token.id, token.logprobs) for token in released] == list(zip(data, scores, strict=True))[:-1]


def test_a_stop_across_rounds_is_cut_where_it_begins() -> None:
    output = make(["STOP"])
    assert taken(output, b"abcS") == "abc"
    assert output.tail == "S"
    assert taken(output, b"TO") == ""
    end = output.take(b"Pxyz", plain(b"Pxyz"))
    assert (text(end), output.length, output.stop) == ("", len(b"abcSTOP"), "STOP")
    assert [token.id for token in end] == list(b"STOP")


def test_a_false_alarm_is_released() -> None:
    output = make(["STOP"])
    taken(output, b"ST")
    assert taken(output, b"X") == "STX"


def of_words(*words: str, special: Mapping[int, str] = MappingProxyType({})) -> Decode:
    return Decode(lambda token, first: words[token], special)


def test_the_tokens_of_a_stop_inside_a_token_keep_the_text_before_it() -> None:
    output = OutputText(Detokenizer(of_words("one two", " three")), ["e t", "thr"])
    end = output.take([0, 1], plain([0, 1]))
    assert end == (OutputToken(0, "on", Origin.PLAIN),)
    assert (output.length, output.stop) == (1, "e t")


CHAT = of_words("hello", "", "user", "", " more", special={1: "<|im_start|>", 3: "<|im_end|>"})


@pytest.mark.parametrize(
    ("stops", "tokens", "shown", "stop"),
    [
        (["<|im_end|>"], [0, 3, 4], "hello", "<|im_end|>"),
        (["<|im_start|>user"], [0, 1, 2, 4], "hello", "<|im_start|>user"),
        (["<|im_start|>user"], [0, 1, 0, 4], "hellohello more", ""),
        (["lo<|im_start|>us"], [0, 1, 2], "hel", "lo<|im_start|>us"),
        (["hellouser"], [4, 0, 1, 2], " more", "hellouser"),
        (["<|im_start|><|im_end|>"], [0, 1, 1, 3], "hello", "<|im_start|><|im_end|>"),
        (["im_start", "hello<|", "|>user"], [0, 1, 2], "hellouser", ""),
        (["<|im_end|><"], [0, 3, 1, 4], "hello more", ""),
        (["o<|im_end|>x", "l<|im_end|> m"], [0, 3, 0, 3, 4], "hellohello more", ""),
        (["o<|im_end|> m"], [0, 3, 0, 3, 4], "hellohell", "o<|im_end|> m"),
        (["<|other|>"], [0, 1, 2, 3], "hellouser", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_special_token_is_a_stop_string_under_its_name(
    stops: list[str], tokens: list[int], shown: str, stop: str, size: int
) -> None:
    output, released = OutputText(Detokenizer(CHAT), stops), list[OutputToken]()
    while output.length < len(tokens) and not output.stop:
        part = tokens[output.length : output.length + size]
        released += output.take(part, plain(part))
    released += () if output.stop else output.finish()
    assert (text(released), output.stop) == (shown, stop)
    assert [token.id for token in released] == tokens[: output.length]


@pytest.mark.parametrize(
    ("words", "stops", "kept"),
    [
        (("one", "ST", "OP"), ["STOP"], 1),
        (("one S", "TO", "P"), ["STOP"], 1),
        (("one", "ST", "OP."), ["STOP"], 1),
        (("ST", "OP"), ["STOP"], 0),
        (("one STOP",), ["STOP"], 1),
        (("one", "", "STOP"), ["STOP"], 2),
        (("one", "", "STOP"), ["<end>STOP"], 1),
        (("one", "ST"), ["STOP"], 2),
    ],
)
def test_the_tokens_of_a_stop_string_are_its_own(words: tuple[str, ...], stops: list[str], kept: int) -> None:
    special = {token: "<end>" for token, word in enumerate(words) if not word}
    output = OutputText(Detokenizer(of_words(*words, special=special)), stops)
    for token in range(len(words)):
        output.take([token], plain([token]))
    output.finish()
    assert output.kept == kept
    assert output.length == len(words)


@pytest.mark.parametrize(
    ("stops", "tokens", "shown"),
    [
        (["lo u"], [0, 2, 4], "hello u"),
        (["<|im_end|>"], [0, 3, 4], "hello"),
        (["more"], [0, 4], "hello more"),
        (["xyz"], [0, 4], "hello more"),
    ],
)
def test_a_stop_string_may_be_shown(stops: list[str], tokens: list[int], shown: str) -> None:
    words = of_words("hello", "", " user", "", " more", special={3: "<|im_end|>"})
    output = OutputText(Detokenizer(words), stops, shows_stop=True)
    released = [token for each in tokens if not output.stop for token in output.take([each], plain([each]))]
    assert text([*released, *(() if output.stop else output.finish())]) == shown
    assert output.kept == output.length


def test_half_a_character_with_which_a_stop_string_begins_is_its_own() -> None:
    output = make(["éé!"])
    for token in "aéé!".encode():
        output.take([token], plain([token]))
    assert (output.stop, output.length, output.kept) == ("éé!", 6, 1)


def test_what_was_held_is_released_at_the_end() -> None:
    output = make(["STOP"])
    taken(output, b"abST")
    assert text(output.finish()) == "ST"
    assert output.tail == ""


def test_half_a_character_at_the_end_is_shown_as_none() -> None:
    output = make()
    taken(output, b"a" + "é".encode()[:1])
    end = output.finish()
    assert (text(end), [token.id for token in end]) == ("\ufffd", [0xC3])


def test_stop_strings_are_not_looked_for_before_min_tokens() -> None:
    output = make(["ab"], min_tokens=3)
    assert taken(output, b"abx") == "abx"
    end = output.take(b"yab", plain(b"yab"))
    assert (text(end), output.stop) == ("y", "ab")


def test_the_end_token_has_no_text_and_is_not_held() -> None:
    output = make()
    end = output.take([97, EOS], plain([97, EOS]))
    assert [(token.id, token.text) for token in end] == [(97, "a"), (EOS, "")]


@given(
    whole=st.text("abé😀", max_size=30),
    stops=st.lists(st.text("abé😀", min_size=1, max_size=4), max_size=3),
    size=st.integers(1, 7),
)
def test_any_text_in_any_rounds_is_cut_at_the_first_stop(whole: str, stops: list[str], size: int) -> None:
    data, output = whole.encode(), make(stops)
    shown, tokens, start = "", [], 0
    while start < len(data) and not output.stop:
        part = data[start : start + size]
        released = output.take(part, plain(part))
        shown += text(released)
        tokens += [token.id for token in released]
        start = output.length
        assert shown + output.tail == whole[: len(shown + output.tail)]
    if not output.stop:
        end = output.finish()
        shown, tokens = shown + text(end), tokens + [token.id for token in end]
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in stops if s in whole]
    assert shown == (whole[: min(ends)[1]] if ends else whole)
    assert tokens == list(data[:start])
