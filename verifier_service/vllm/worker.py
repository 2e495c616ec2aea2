"""Subclass of vLLM's workers that replaces their sampler by our judge. vLLM itself is not patched."""

import platform
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import embedding as embedding_of
from typing_extensions import override
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.gpu_worker import Worker

from specdec.engine.cpu.draw import draw_by_operator
from specdec.engine.heads.checkpoint import HeadTarget
from specdec.errors import ModelRefused
from verifier_service.vllm.batch import ROWS, VERDICTS, Judged, PassRows
from verifier_service.vllm.head.states import STATES, TAPS, PassStates
from verifier_service.vllm.interfaces import check_interfaces
from verifier_service.vllm.judge import Lines, judge, tokens_of
from verifier_service.vllm.kv_connector import BlockConnector
from verifier_service.vllm.packed_products import register

_Base: Any = Worker
if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    _Base = CPUWorker


class NoProposals:
    """Proposer that proposes nothing: the scheduler takes drafts from the rows. vLLM drafts only if one is named."""

    def __init__(self, vllm_config: Any) -> None:
        """Accept vLLM's configuration, which is not used."""

    def load_model(self, target: Any) -> None:
        """Ignore the target's parts, which vLLM offers to every proposer."""

    def propose(self, sampled: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return an empty draft for each row."""
        return [[] for _ in sampled]


class JudgingWorker(_Base):
    """Worker for this platform. The first rank judges the drafts and broadcasts the tokens to the others."""

    @override
    def init_device(self) -> None:
        check_interfaces()
        draw_by_operator()
        register()  # the engine may run in another process
        super().init_device()
        self._batch = PassRows()
        self._judged: dict[str, Judged] = {}
        self.model_runner._sample = self._sample
        self._speculative = self.model_runner.speculative_config
        self._taps: tuple[int, ...] = tuple(self.vllm_config.additional_config.get(TAPS, ()))

    @override
    def load_model(self, **options: Any) -> None:
        super().load_model(**options)
        if not self._taps:
            return
        model = self.model_runner.get_model()
        if not supports_eagle3(model) or not hasattr(model.model, "embed_tokens"):
            raise ModelRefused(f"head: vllm hands out no hidden states or no embedding of {type(model).__name__}")
        model.set_aux_hidden_state_layers(self._taps)
        self.model_runner.use_aux_hidden_state_outputs = True

    def head_target(self) -> HeadTarget:
        """Return the parts of the target that a head in this process shares."""
        model, config = self.model_runner.get_model(), self.model_config.hf_text_config
        embedding = model.model.embed_tokens.weight
        return HeadTarget(
            rows=config.vocab_size,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            dtype=self.model_config.dtype,
            device=embedding.device,
            embed=partial(embedding_of, weight=embedding),
            output=lambda: model.lm_head.weight[: config.vocab_size],
        )

    def kv_layout(self) -> tuple[int, str] | None:
        """Return the bytes of an exchanged block in this rank, and what their meaning depends on; None without such."""
        connector = get_kv_transfer_group() if has_kv_transfer_group() else None
        if not isinstance(connector, BlockConnector) or connector.copies is None:
            return None
        on = current_platform.device_type
        if current_platform.is_cpu():  # its attention packs keys for the instructions of the processor
            amx = torch.cpu._is_amx_tile_supported()
            on = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {amx}"
        return connector.copies.block_bytes, f"{connector.copies.layout} {on}"

    @override
    def execute_model(self, scheduler_output: Any) -> Any:
        self._batch = getattr(scheduler_output, ROWS, PassRows())
        # With a speculative config, the runner prepares for drafts and requests new ones even in passes without drafts.
        drafted = bool(scheduler_output.scheduled_spec_decode_tokens)
        self.model_runner.speculative_config = self._speculative if drafted else None
        return super().execute_model(scheduler_output)

    @override
    def sample_tokens(self, grammar_output: Any) -> Any:
        self._judged = {}
        states = self._states()
        output = super().sample_tokens(grammar_output)
        if self._judged:
            setattr(output, VERDICTS, self._judged)
        if states is not None:
            setattr(output, STATES, states)
        return output

    def _states(self) -> PassStates | None:
        """Return the tapped states of the pass whose tokens are sampled next; None if there are none."""
        passed = self.model_runner.execute_model_state
        if passed is None or not self._taps:
            return None
        requests, counts = self.model_runner.input_batch.req_ids, passed.scheduler_output.num_scheduled_tokens
        starts = accumulate((counts[request] for request in requests), initial=0)
        place = {layer: index for index, layer in enumerate(sorted(set(self._taps)))}  # the order of vLLM
        layers = [passed.aux_hidden_states[place[tap]] for tap in self._taps]
        return PassStates(layers, dict(zip(requests, starts, strict=False)))

    @override
    def take_draft_token_ids(self) -> None:
        """Return no drafts. Those of the runner would be placeholders."""

    def _sample(self, logits: torch.Tensor, metadata: Any) -> SamplerOutput:
        """Replace the runner's method. Each request has one row of logits more than it has drafts."""
        requests = self.model_runner.input_batch.req_ids
        counts = [0] * len(requests) if metadata is None else list(metadata.num_draft_tokens)
        drafts = [] if metadata is None else metadata.draft_token_ids.tolist()
        lines = Lines(requests, counts, drafts)
        group = get_tp_group()
        if group.rank_in_group == 0:
            self._judged = judge(self._batch, lines, logits)
        tokens = tokens_of(self._judged, lines).to(logits.device)
        if group.world_size > 1:
            tokens = group.broadcast(tokens, src=0)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)
