"""The file of API keys: format of the lines, access, and reload of a changed file without a restart."""

import hashlib
import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway.callers.caller import ApiKey, PriorityClass, allowed_priority, cache_domain, share_of, tenant_name
from gateway.callers.key_file import KeyFile, parse
from gateway.config import KeyLimitSettings
from gateway.metrics import KeyMetrics
from specdec.errors import ConfigError, KeyRefused, PriorityNotAllowed

KEY = "sk-of-acme"
NOBODY = ApiKey("", "")


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def line(key: str, tenant: str = "acme", options: str = "") -> str:
    return f"{tenant}: sha256:{digest(key)} {options}".rstrip()


def file_of(folder: Path, *lines: str, limits: KeyLimitSettings | None = None) -> KeyFile:
    path = folder / "keys"
    path.write_text("\n".join(lines))
    return KeyFile(path, limits or KeyLimitSettings(), KeyMetrics(CollectorRegistry()))


def test_a_line_names_a_tenant_the_hash_of_a_key_and_its_limits(tmp_path: Path) -> None:
    options = "requests=60 tokens=100000 concurrency=8 priority=priority"
    keys = file_of(tmp_path, "# of production", "", line(KEY, options=options))
    found = keys.key_of([f"Bearer {KEY}"])
    assert found == ApiKey("acme", digest(KEY)[:32], 60, 100_000, 8, PriorityClass.PRIORITY)


def test_a_tenant_s_keys_have_the_default_limits_unless_they_name_others(
    tmp_path: Path,
) -> None:
    keys = file_of(tmp_path, line("one"), line("two", options="requests=5"), limits=KeyLimitSettings(requests=9))
    one, two = (keys.key_of([f"bearer  {key} "]) for key in ("one", "two"))
    assert (one.tenant, one.requests, two.tenant, two.requests) == ("acme", 9, "acme", 5)
    assert one.limited
    assert one.id != two.id


@pytest.mark.parametrize(
    "given",
    [[], ["Bearer"], [f"Basic {KEY}"], [KEY], [f"Bearer {KEY}x"], ["Bearer schl\xfcssel"], [f"Bearer {KEY}"] * 2],
)
def test_every_other_header_is_refused(tmp_path: Path, given: list[str]) -> None:
    with pytest.raises(KeyRefused) as refused:
        file_of(tmp_path, line(KEY)).key_of(given)
    assert KEY not in refused.value.message


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("acme", "tenant: sha256:HEX"),
        ("acme: secret-in-plaintext", "tenant: sha256:HEX"),
        ("acme: sha256:abc", "tenant: sha256:HEX"),
        ("two words: sha256:" + "0" * 64, "tenant: sha256:HEX"),
        (f"acme: sha256:{'0' * 64} requests=0", "requests must be"),
        (f"acme: sha256:{'0' * 64} requests=many", "requests must be"),
        (f"acme: sha256:{'0' * 64} request=1", "an option must be one of requests, tokens, concurrency and priority"),
        (f"acme: sha256:{'0' * 64} priority=first", "priority must be one of flex, default, priority"),
        (line(KEY, "other"), "in an earlier line"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_never_repeated(tmp_path: Path, wrong: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"line 3: .*{why}") as refused:
        file_of(tmp_path, "# keys", line(KEY), wrong)
    assert "plaintext" not in refused.value.message
    assert digest(KEY) not in refused.value.message


def test_a_file_that_lets_nobody_in_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no key"):
        file_of(tmp_path, "# none yet")
    with pytest.raises(ConfigError, match="No such file"):
        KeyFile(tmp_path / "none", KeyLimitSettings(), KeyMetrics(CollectorRegistry()))


def test_a_changed_file_holds_at_once_and_a_wrong_one_never(tmp_path: Path) -> None:
    keys = file_of(tmp_path, line("old"))
    (tmp_path / "keys").write_text(line("old") + "\n" + line("new"))
    keys.look()
    assert keys.key_of(["Bearer old"]).tenant == keys.key_of(["Bearer new"]).tenant
    (tmp_path / "keys").write_text(line("new"))
    keys.look()
    with pytest.raises(KeyRefused):
        keys.key_of(["Bearer old"])
    with capture_logs() as logs:
        for content in ("acme: new-in-plaintext", None):
            (tmp_path / "keys").unlink() if content is None else (tmp_path / "keys").write_text(content)
            keys.look()
            keys.look()
            assert keys.key_of(["Bearer new"])
    assert [event["event"] for event in logs] == ["api_keys_not_read"] * 2, "each mistake is logged once"
    assert "new-in-plaintext" not in json.dumps(logs)
    (tmp_path / "keys").write_text(line("newest"))
    keys.look()
    assert keys.key_of(["Bearer newest"])


def test_a_digest_with_the_same_first_bytes_is_another_key() -> None:
    one, other = digest(KEY), digest(KEY)[:8] + "0" * 56
    parsed = parse(f"a: sha256:{one}\nb: sha256:{other}", Path("keys"), NOBODY)
    assert {key.tenant for key in parsed.values()} == {"a", "b"}


def test_no_user_leads_out_of_the_tenant_of_a_key() -> None:
    acme, other = ApiKey("acme", "1"), ApiKey("other", "2")
    users = ["", "bob", "acme", "key:other", "other user:bob", " user:bob"]
    names = [tenant_name(user, key) for key in (acme, other, None) for user in users]
    assert len({*names}) == len(names)
    assert {share_of(tenant_name(user, acme)) for user in users} == {"key:acme"}
    assert {share_of(tenant_name(user, None)) for user in users if user} == {f"user:{user}" for user in users if user}


def test_users_of_a_tenant_share_its_budget_and_not_what_they_computed() -> None:
    key = ApiKey("acme", "1")
    asked = [(user, salt) for user in ("", "bob", "eve") for salt in ("", "s", "bob")]
    domains = [cache_domain(tenant_name(user, key), salt) for user, salt in asked]
    assert len({*domains}) == len(domains)
    assert len({domain.partition(".")[0] for domain in domains}) == 1


def test_adapters_share_no_domain_and_no_salt_leads_into_one() -> None:
    names = ["", "sql", "law"]
    domains = {cache_domain(tenant, salt, each) for tenant in ("", "user:ann") for salt in ("", "s") for each in names}
    assert len(domains) == 12
    crafted = {cache_domain(tenant, salt) for tenant in ("", "user:ann") for salt in domains | set(names) if salt}
    assert not crafted & domains
    assert cache_domain("user:ann", "s", "sql").startswith(cache_domain("user:ann", "s"))  # one budget


def test_a_class_is_bound_to_its_key() -> None:
    last, first = ApiKey("a", "1", priority=PriorityClass.FLEX), ApiKey("a", "2", priority=PriorityClass.PRIORITY)
    usual = ApiKey("a", "3")
    assert allowed_priority(PriorityClass.DEFAULT, last, "p") is PriorityClass.FLEX
    assert allowed_priority(PriorityClass.PRIORITY, first, "p") is PriorityClass.PRIORITY
    assert allowed_priority(PriorityClass.FLEX, usual, "p") is PriorityClass.FLEX
    assert allowed_priority(PriorityClass.PRIORITY, None, "p") is PriorityClass.PRIORITY
    for key in (last, usual):
        with pytest.raises(PriorityNotAllowed, match="may ask for"):
            allowed_priority(PriorityClass.PRIORITY, key, "service_tier")
