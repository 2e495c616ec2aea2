"""The whole training of a head, from the target's folder to the head's folder and its card."""

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ByteSize
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.heads.checkpoint import features_name, load_head
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.heads.headed import HeadedEngine, target_of
from specdec.engine.native import CheckedModel, NativeEngine, load_checked
from specdec.errors import ConfigError, ModelRefused
from specdec.training import answers, checkpoint, compute, evaluate, loop, prompts
from specdec.training.answers import KEPT
from specdec.training.heads.folder import HeadFacts, export_head, initial_head, render, usual_taps
from specdec.training.heads.rollout import HeadAlpha, alpha_of, batch_of, loss_of, places_of
from specdec.training.heads.texts import TargetText
from specdec.training.heads.token_file import load_tokens, save_tokens
from specdec.training.heads.writer import HeadData, HeadPlan, TextWriter
from specdec.training.optimizer import Schedule, build_optimizers
from specdec.training.step_cost import StepCost
from specdec.training.weights import check_target, read_config

TEXTS = "texts.npz"
"""File of the texts in the folder of a head, for `HeadPlan.data` of another training."""
ROWS = 8
"""Texts of a step."""
RATE, WARMUP, DECAY_SHARE = 5e-3, 20, 0.5
_HELD_OUT = 24
"""Most prompts of each domain that measure a head without questions of its own."""
_HELD_OUT_SEED = 2**31
"""Seed of the built-in ones, far from those of the taught ones."""
_LONGEST = 1024 + 256
"""Most tokens of a text before the answer, with room to round the memory of its keys and values up."""
_COMPILED = 100_000
"""Tokens from which compiling the target takes less time than it saves."""
_TRIAL_BYTES, _TRIALS = 2**28, 20


def train_head(plan: HeadPlan) -> Mapping[str, HeadAlpha]:
    """Train, or resume training, a head; write its folder with the card, and return α by domain.

    Raises:
        ConfigError: the target cannot have a head, a file cannot be used, the disk is too small, or the state is of
            another plan.
    """
    config = read_config(plan.target)
    check_target(config, 1)
    data, machine = _data(plan), compute.choose("auto", plan.threads, compiled=plan.tokens >= _COMPILED)
    _check_disk(plan, config)
    hashed = [hashlib.sha256(file.read_bytes()).hexdigest() for file in plan.prompts] or "built-in"
    checkpoint.claim(plan.state, plan.target, {"prompts": hashed, "seed": plan.seed, "kind": "head"})
    teacher = answers.load_teacher(plan.target)
    dtype = str(machine.dtype).removeprefix("torch.")
    model = load_checked(
        plan.target,
        dtype=dtype,
        device=machine.device.type,
        threads=plan.threads,
        compiled=machine.compiled,
        taps=usual_taps,
    )
    if data.stored.texts and data.stored.tokenizer != model.facts.tokenizer_hash:
        raise ConfigError(f"--data {plan.data}: the texts are of a target with another tokenizer")
    memory = model.layout.token_bytes * answers.ROWS * (_LONGEST + answers.NEW_TOKENS)
    writer = TextWriter(plan, data, teacher, NativeEngine.of(model, memory))
    taught, asked = writer.taught(), writer.asked()
    vocabulary = model.decoder.config.vocab_size
    start = None if plan.start is None else _start(plan.start, model)
    if start is None or start.ids is None:
        ids = answers.ranked_ids(((text.ids, text.log_probs) for text in taught), vocabulary, plan.draft_ids)
    else:
        ids = start.ids
    ids = ids.to(machine.device)
    head = initial_head(teacher.model, model.decoder, ids, plan.seed)
    if start is not None:
        _continue(head, start)
    steps = max(1, round(plan.epochs * len(taught) / ROWS))
    _fit(plan, head, ids, taught, steps, machine)
    found = {name: alpha_of(head, ids, *texts) for name, texts in asked.items()}
    export_head(head, ids, plan.target.name, plan.out)
    save_tokens(plan.out / TEXTS, taught, writer.batches, model.facts.tokenizer_hash)
    named = "".join(f" --prompts {file.name}" for file in plan.prompts)
    named += "" if plan.data is None else f" --data {plan.data.name}"
    named += "" if plan.start is None else f" --start {plan.start.name}"
    options = f"--tokens {plan.tokens} --draft-ids {plan.draft_ids} --epochs {plan.epochs:g} --seed {plan.seed}"
    facts = HeadFacts(
        target=plan.target.name,
        taps=head.taps,
        ids=(len(ids), vocabulary),
        prompts=data.about,
        alphas=found,
        cost=_cost(plan),
        tokens=sum(text.written for text in taught),
        steps=(steps, ROWS),
        command=f"specdec train head --target {plan.target.name}{named} {options}",
    )
    (plan.out / "README.md").write_text(render(facts), encoding="utf-8")
    return found


def _start(folder: Path, model: CheckedModel) -> Eagle3Head:
    """Load the head that the training starts from."""
    decoder = model.decoder
    try:
        return load_head(folder, target_of(decoder, torch.float32, decoder.config.num_hidden_layers))
    except ModelRefused as error:
        raise ConfigError(f"--start {error}") from error


def _continue(head: Eagle3Head, start: Eagle3Head) -> None:
    """Give a head the weights of another, which must be of the kind that is trained here."""
    same = (head.config.fc_norm, head.config.norm_output) == (start.config.fc_norm, start.config.norm_output)
    shapes, given = ({name: each.shape for name, each in one.state_dict().items()} for one in (head, start))
    if not same or head.taps != start.taps or shapes != given:
        raise ConfigError("--start: the head has other options than those that are trained")
    head.load_state_dict(start.state_dict())


def _data(plan: HeadPlan) -> HeadData:
    stored = load_tokens(plan.data)
    files = {file: prompts.read_prompts(file, "--prompts") for file in plan.prompts}
    if plan.questions:
        asked = evaluate.questions(plan.questions)
    elif files:
        asked = {file.stem: own.held_out[:_HELD_OUT] for file, own in files.items()}
    else:
        kinds = ("passages", "topics", "sums")
        texts = prompts.prompts(_HELD_OUT * len(kinds), _HELD_OUT_SEED + plan.seed)
        asked = {name: texts[place :: len(kinds)] for place, name in enumerate(kinds)}
    if not files:
        return HeadData(
            prompts.prompts, asked, "built-in prompts and to messages that the target wrote", own=True, stored=stored
        )
    together = prompts.OwnPrompts(tuple(text for own in files.values() for text in own.taught), ())
    about = "prompts of " + ", ".join(f"`{file.name}`" for file in plan.prompts)
    return HeadData(together.draw, asked, about, own=False, stored=stored)


def _check_disk(plan: HeadPlan, config: Any) -> None:
    """Refuse a plan whose own tokens cannot fit; the length of their prompts is not known yet."""
    taps = len(usual_taps(config.num_hidden_layers))
    needed = ByteSize(plan.tokens * (2 * taps * config.hidden_size + 6 * KEPT))
    if needed > plan.disk:
        raise ConfigError(
            f"--disk {ByteSize(plan.disk).human_readable()} is too little: {plan.tokens} tokens with their states take "
            f"at least {needed.human_readable()}"
        )


def _fit(
    plan: HeadPlan, head: Eagle3Head, ids: Tensor, taught: Sequence[TargetText], steps: int, machine: compute.Compute
) -> None:
    places = places_of(ids, head.config.layer.vocab_size)

    def loss(step: int) -> Tensor:
        batch = batch_of(chosen(taught, step, plan.seed), machine.device)
        with machine.autocast():
            return loss_of(head, batch, places, step / steps)

    tokens = hashlib.sha256(torch.cat([text.tokens for text in taught]).numpy().tobytes()).hexdigest()[:16]
    started = "" if plan.start is None else f"-{features_name(plan.start, '')[-16:]}"
    kept = plan.state / f"head-{tokens}-{len(ids)}-{steps}{started}.pt"
    run = loop.Run("head", Schedule(steps, WARMUP, DECAY_SHARE), ROWS * answers.NEW_TOKENS, kept)
    loop.train(run, head, build_optimizers(head, RATE, machine.dtype), loss)


def chosen(texts: Sequence[TargetText], step: int, seed: int) -> list[TargetText]:
    """Return the texts of a step: of like length, to reduce padding, in a seeded order; each once per epoch."""
    parts = max(1, len(texts) // ROWS)
    epoch, place = divmod(step, parts)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    noise = (torch.rand(len(texts), generator=generator) * 30).tolist()
    order = sorted(range(len(texts)), key=lambda row: texts[row].begin + noise[row])
    part = int(torch.randperm(parts, generator=generator)[place])
    return [texts[row] for row in order[part * ROWS : (part + 1) * ROWS]]


def _cost(plan: HeadPlan) -> StepCost:
    """Time steps of the written head and passes of its target over one token, as a verifier without compilation."""
    engine = HeadedEngine.load(
        plan.out, plan.target, kv_bytes=_TRIAL_BYTES, wide_threads=None, dtype="float32", device="cpu", threads=None
    )
    head, passes = engine.head.step_seconds(), []
    if not engine.admit("target", _TRIALS) or not engine.reserve("target", _TRIALS):
        raise MemoryError("no memory for the keys and values of a trial")
    for _ in range(_TRIALS):
        started = time.perf_counter()
        engine.forward([Chunk("target", [0], 1)])
        passes.append(time.perf_counter() - started)
    return StepCost(1000 * statistics.median(passes), 1000 * head)
