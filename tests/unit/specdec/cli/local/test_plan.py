"""The plan of `specdec up`: arguments of each process, and its prerequisites."""

import socket
from pathlib import Path

import pytest

from specdec.cli.local import plan
from specdec.cli.local.launch import environment_of
from specdec.cli.local.plan import Addresses
from specdec.cli.settings import UpSettings, find_model
from specdec.errors import ConfigError
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sources.counts import COUNTS_FILE

ADDRESSES = Addresses(
    gateway_http=["h:1"],
    gateway=["g:1"],
    drafter=["d:1", "d:2"],
    verifier=["v:1", "v:2"],
    drafter_http=["dh:1", "dh:2"],
    verifier_http=["vh:1", "vh:2"],
)


@pytest.fixture
def settings(tmp_path: Path) -> UpSettings:
    for part in ("target", "drafter"):
        (tmp_path / "pair" / part).mkdir(parents=True)
        (tmp_path / "pair" / part / "config.json").touch()
    return UpSettings(target=tmp_path / "pair/target", drafter=tmp_path / "pair/drafter", drafters=2, verifiers=2)


def test_a_process_starts_after_those_it_connects_to(settings: UpSettings) -> None:
    names = [service.name for service in plan.services(settings, ADDRESSES, "redis://x")]
    assert names == ["drafter-1", "drafter-2", "verifier-1", "verifier-2", "gateway-1"]


def test_verifiers_know_every_drafter_and_gateways_every_verifier(settings: UpSettings) -> None:
    by_name = {service.name: service.config for service in plan.services(settings, ADDRESSES, "redis://x")}
    assert by_name["verifier-2"]["drafters"] == ["d:1", "d:2"]
    assert by_name["gateway-1"]["verifiers"] == ["v:1", "v:2"]
    assert by_name["gateway-1"]["redis_url"] == "redis://x"
    assert by_name["verifier-2"]["address"] == "v:2"
    assert by_name["drafter-2"]["http"] == "dh:2"


def test_gateways_are_told_the_kv_store_or_that_there_is_none(settings: UpSettings) -> None:
    assert plan.services(settings, ADDRESSES, "redis://x", "redis://kv")[-1].config["kv"] == {"redis_url": "redis://kv"}
    without = plan.services(settings, ADDRESSES, "redis://x")[-1]
    assert without.config["kv"] == {"redis_url": ""}
    assert environment_of(without, {"SPECDEC_GATEWAY_KV__REDIS_URL": "redis://y", "SPECDEC_GATEWAY_KV__TTL": "9"}) == {
        "SPECDEC_GATEWAY_KV__TTL": "9"
    }


def test_all_services_share_the_token_whatever_the_environment_says(settings: UpSettings) -> None:
    services = plan.services(settings, ADDRESSES, "redis://x", token="secret")
    assert {service.config["token"] for service in services} == {"secret"}
    assert not environment_of(services[0], {"SPECDEC_DRAFTER_TOKEN": "another"})


def test_only_addresses_that_were_asked_for_are_exact(settings: UpSettings) -> None:
    exact = {each.option: each.exact for each in plan.wanted(settings)}
    assert not exact["--drafter-metrics"]
    assert exact["--http"]
    asked = UpSettings(drafter_metrics="127.0.0.1:8150")
    (metrics,) = [each for each in plan.wanted(asked) if each.option == "--drafter-metrics"]
    assert (metrics.base, metrics.exact) == ("127.0.0.1:8150", True)


def test_a_drafter_that_is_started_later_has_addresses_of_its_own(settings: UpSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        changes = {"drafters": 0, "drafter_address": "127.0.0.1:7001", "drafter_metrics": address}
        alone = settings.model_copy(update=changes)
        alone.model_fields_set.discard("drafter_metrics")  # the default, which may be in use
        addresses = plan.allot(alone)
    later = plan.later_drafter(alone, addresses, "secret")
    assert later.grpc == "127.0.0.1:7001"
    assert later.config["token"] == "secret"
    assert later.http == addresses.drafter_http[0] != address
    assert [each.role for each in plan.services(alone, addresses, "redis://x")].count("drafter") == 0


def test_verifiers_dial_a_drafter_started_later_at_any_free_port(settings: UpSettings) -> None:
    alone = settings.model_copy(update={"drafters": 0, "drafter_address": "127.0.0.1:0"})
    addresses = plan.allot(alone)
    later = plan.later_drafter(alone, addresses, "secret")
    (verifier,) = [each for each in plan.services(alone, addresses, "redis://x") if each.name == "verifier-1"]
    assert verifier.config["drafters"] == [later.grpc]
    assert not later.grpc.endswith(":0")


def test_what_was_not_asked_for_is_left_to_the_services(settings: UpSettings) -> None:
    quiet = plan.services(settings, ADDRESSES, "redis://x")
    chosen = {"gamma": 0, "mode": Mode.BLOCK, "lenience": 0.5, "tree": TreeOptions(8, 2, 4)}
    asked = settings.model_copy(update=chosen)
    loud = plan.services(asked, ADDRESSES, "redis://x")
    assert not chosen.keys() & set(quiet[2].config)
    assert (loud[2].config["lenience"], loud[2].config["tree"]["nodes"]) == (0.5, 8)
    assert (loud[2].config["gamma"], loud[4].config["mode"]) == (0, "block")


def test_a_pair_is_served_under_its_own_name(settings: UpSettings, tmp_path: Path) -> None:
    assert settings.served_name == "pair"
    assert UpSettings(target=tmp_path / "llama").served_name == "llama"
    assert UpSettings(target=tmp_path / "pair/target", served_model_name="mine").served_name == "mine"


def test_a_name_of_the_hub_is_told_how_it_is_fetched(settings: UpSettings) -> None:
    changed = settings.model_copy(update={"target": Path("Qwen/Qwen2.5-0.5B")})
    with pytest.raises(ConfigError, match=r"^--target Qwen/Qwen2\.5-0\.5B: .* hf download Qwen/Qwen2\.5-0\.5B"):
        plan.check_models(changed)


@pytest.mark.parametrize("option", ["target", "drafter"])
def test_a_missing_model_names_its_option(settings: UpSettings, option: str) -> None:
    broken = settings.model_copy(update={option: Path("no/such/folder")})
    with pytest.raises(ConfigError, match=f"no/such.*--{option}"):
        plan.check_models(broken)


def test_a_folder_without_a_model_is_refused(settings: UpSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        plan.check_models(settings.model_copy(update={"target": tmp_path}))


def test_no_drafter_needs_no_drafter_folder(settings: UpSettings) -> None:
    plan.check_models(settings.model_copy(update={"drafter": Path("no/such"), "drafters": 0}))


def test_counts_are_what_a_counts_drafter_needs(settings: UpSettings, tmp_path: Path) -> None:
    counted = settings.model_copy(update={"drafter_kind": "counts", "drafter": tmp_path})
    with pytest.raises(ConfigError, match=r"no counts\.safetensors.*--drafter"):
        plan.check_models(counted)
    (tmp_path / COUNTS_FILE).touch()
    plan.check_models(counted)
    config = plan.services(counted, ADDRESSES, "redis://x")[0].config
    assert (config["kind"], config["model"]["path"]) == ("counts", str(tmp_path))


@pytest.mark.parametrize("kind", ["ngram", "prompt_lookup", "suffix", "random"])
def test_kinds_without_a_model_need_the_target_alone(settings: UpSettings, kind: str) -> None:
    looking = settings.model_copy(update={"drafter_kind": kind, "drafter": Path("no/such")})
    plan.check_models(looking)
    config = plan.services(looking, ADDRESSES, "redis://x")[0].config
    assert (config["kind"], config["model"]["path"]) == (kind, str(settings.target))


def test_verifiers_are_told_their_own_sources_and_what_drafts_by_default(settings: UpSettings) -> None:
    told = settings.model_copy(
        update={"local": "suffix, ngram", "default_drafter": "suffix", "drafter_vocabulary": "translate"}
    )
    config = next(each.config for each in plan.services(told, ADDRESSES, "redis://x") if each.role == "verifier")
    assert (config["local"], config["drafter"]) == (["suffix", "ngram"], "suffix")
    assert config["drafter_vocabulary"] == "translate"


def test_drafters_are_given_the_sources_that_guess_their_drafts(settings: UpSettings) -> None:
    guessing = settings.model_copy(update={"drafter_local": "suffix, ngram"})
    assert plan.services(guessing, ADDRESSES, "redis://x")[0].config["local"] == ["suffix", "ngram"]
    assert "local" not in plan.services(settings, ADDRESSES, "redis://x")[0].config


def test_guesses_are_for_draft_models_alone() -> None:
    with pytest.raises(ConfigError, match="drafter_local is for drafters of kind model, and drafter_kind is hybrid"):
        UpSettings.load(overrides={"drafter_local": "suffix", "drafter_kind": "hybrid"})


def test_verifiers_alone_are_told_the_head(settings: UpSettings, tmp_path: Path) -> None:
    make_head = tmp_path / "head"
    make_head.mkdir()
    (make_head / "config.json").touch()
    told = settings.model_copy(update={"head": make_head, "local": "prompt_lookup,head"})
    plan.check_models(told)
    configs = [each.config for each in plan.services(told, ADDRESSES, "redis://x")]
    assert [config.get("head") for config in configs] == [None, None, str(make_head), str(make_head), None]
    assert configs[2]["local"] == ["prompt_lookup", "head"]
    assert "head" not in next(each.config for each in plan.services(settings, ADDRESSES, "") if each.role == "verifier")


def test_drafters_of_kind_head_get_it_and_verifiers_fuse_for_them(settings: UpSettings, tmp_path: Path) -> None:
    make_head = tmp_path / "head"
    make_head.mkdir()
    (make_head / "config.json").touch()
    told = settings.model_copy(update={"head": make_head, "drafter_kind": "head"})
    plan.check_models(told)
    services = plan.services(told, ADDRESSES, "redis://x")
    drafters, verifiers = ([each.config for each in services if each.role == role] for role in ("drafter", "verifier"))
    assert {(each["kind"], each["head"]) for each in drafters} == {("head", str(make_head))}
    assert {each["model"]["path"] for each in drafters} == {each["model"]["path"] for each in verifiers}
    assert [(each["drafter_head"], "head" in each) for each in verifiers] == [(str(make_head), False)] * 2
    for changes, message in (
        ({"head": None}, "--drafter-kind head needs the folder"),
        ({"local": "head"}, "one of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan.check_models(told.model_copy(update=changes))


def test_a_head_needs_a_folder(settings: UpSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--local head needs the folder"):
        plan.check_models(settings.model_copy(update={"local": "head"}))
    with pytest.raises(ConfigError, match="--head"):
        plan.check_models(settings.model_copy(update={"head": tmp_path / "none"}))


@pytest.mark.parametrize(("given", "drafters"), [({}, 0), ({"drafters": 2}, 2), ({"drafter_kind": "ngram"}, 1)])
def test_a_head_takes_the_place_of_the_usual_drafter(given: dict[str, object], drafters: int) -> None:
    assert UpSettings.load(None, {"head": "folder", **given}).drafters == drafters


def test_a_source_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no source 'grams', there are ngram, prompt_lookup, suffix, head"):
        UpSettings.load(None, {"local": "suffix,grams"})


def test_the_demo_pair_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model(Path("models/demo/target")).name == "target"
    (tmp_path / "models/demo/target").mkdir(parents=True)
    assert find_model(Path("models/demo/target")).resolve().is_relative_to(tmp_path)


def test_the_environment_does_not_overrule_what_the_file_settles(settings: UpSettings) -> None:
    drafter = plan.services(settings, ADDRESSES, "redis://x")[0]
    inherited = {
        "PATH": "/bin",
        "SPECDEC_DRAFTER_ADDRESS": "x:1",
        "SPECDEC_DRAFTER_MODEL__PATH": "/other",
        "specdec_drafter_model__dtype": "bfloat16",
        "SPECDEC_DRAFTER_MODEL__DEVICE": "cpu",
        "SPECDEC_VERIFIER_ADDRESS": "y:1",
    }
    assert sorted(environment_of(drafter, inherited)) == [
        "PATH",
        "SPECDEC_DRAFTER_MODEL__DEVICE",
        "SPECDEC_VERIFIER_ADDRESS",
    ]


def test_gateways_alone_are_told_the_file_of_api_keys(settings: UpSettings, tmp_path: Path) -> None:
    keyed = settings.model_copy(update={"api_keys": tmp_path / "keys"})
    services = plan.services(keyed, ADDRESSES, "redis://x")
    found = {service.role: service.config.get("api_keys") for service in services}
    assert found == {"gateway": str(tmp_path / "keys"), "verifier": None, "drafter": None}


@pytest.mark.parametrize(
    ("chosen", "cores", "verifiers", "expected"), [(None, 8, 1, 2), (None, 2, 2, 1), (None, 1, 1, 1), (6, 2, 1, 6)]
)
def test_a_native_target_has_two_threads_for_prompts_if_processors_allow(
    settings: UpSettings,
    monkeypatch: pytest.MonkeyPatch,
    chosen: int | None,
    cores: int,
    verifiers: int,
    expected: int,
) -> None:
    monkeypatch.setattr(plan, "cores", lambda: cores)
    own = settings.model_copy(update={"wide_threads": chosen, "verifiers": verifiers})
    by_name = {service.name: service.config for service in plan.services(own, ADDRESSES, "redis://x")}
    assert by_name["verifier-1"]["wide_threads"] == expected
    assert "wide_threads" not in by_name["drafter-1"]


def encoder_decoder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"is_encoder_decoder": true}')
    return folder


def test_an_encoder_decoder_runs_on_transformers_without_the_demo_drafter(tmp_path: Path) -> None:
    settings = UpSettings.load(None, {"target": encoder_decoder(tmp_path / "t5")})
    assert (settings.backend, settings.drafters, settings.drafter_kind) == ("transformers", 0, "prompt_lookup")
    plan.check_models(settings)
    config = {each.name: each.config for each in plan.services(settings, ADDRESSES, "redis://x")}["verifier-1"]
    assert config["backend"] == "transformers"
    drafted = UpSettings.load(None, {"target": tmp_path / "t5", "drafter": tmp_path / "t5", "backend": "vllm"})
    assert (drafted.backend, drafted.drafters, drafted.drafter_kind) == ("vllm", 1, "model")


def test_a_draft_model_of_the_other_kind_is_refused_by_name(settings: UpSettings, tmp_path: Path) -> None:
    other = encoder_decoder(tmp_path / "t5")
    with pytest.raises(ConfigError, match=r"drafter is decoder-only, and the target an encoder-decoder"):
        plan.check_models(settings.model_copy(update={"target": other}))
    with pytest.raises(ConfigError, match=r"t5 is an encoder-decoder, and the target decoder-only"):
        plan.check_models(settings.model_copy(update={"drafter": other}))
    plan.check_models(settings.model_copy(update={"target": other, "drafter": other}))
    plan.check_models(settings.model_copy(update={"target": other, "drafter_kind": "random"}))


def test_sampled_sources_are_set_only_where_they_are_wanted(settings: UpSettings) -> None:
    def sources(settings: UpSettings) -> list[object]:
        return [each.config.get("sources") for each in plan.services(settings, ADDRESSES, "redis://x")]

    sampled = {"sampled": True}
    assert sources(settings) == [None] * 5
    assert sources(settings.model_copy(update=sampled)) == [sampled] * 4 + [None]
