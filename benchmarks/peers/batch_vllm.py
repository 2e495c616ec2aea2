"""vLLM's engine in process: `python -m benchmarks.peers.batch_vllm MODEL SPECULATIVE_CONFIG`, on vLLM's interpreter."""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from benchmarks.peers.batch import Heard, answers, serve
from benchmarks.run import Ask


def main() -> None:
    """Load the model and serve."""
    told, model, speculative = answers(), sys.argv[1], json.loads(sys.argv[2])
    loaded = LLM(
        model,
        dtype="float32",
        generation_config="vllm",
        skip_tokenizer_init=True,
        disable_log_stats=True,
        speculative_config=speculative or None,
    )
    asyncio.run(serve(partial(_answer, loaded.llm_engine), told))


async def _answer(engine: Any, asks: Sequence[Ask], heard: Heard) -> None:
    """Answer step by step. vLLM's engine blocks."""
    for number, ask in enumerate(asks):
        sampling = SamplingParams(
            temperature=ask.temperature,
            max_tokens=ask.tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(str(number), TokensPrompt(prompt_token_ids=list(ask.prompt)), sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if tokens := list(output.outputs[0].token_ids):
                heard(int(output.request_id), tokens)


if __name__ == "__main__":
    main()
