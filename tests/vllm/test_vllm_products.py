"""The operator for matrix products under vLLM, in vLLM's own environment."""

from pathlib import Path

import pytest

from tests.vllm.programs import run
from tests.vllm.server import HAS_VLLM, ROOT

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(600)]

LAYERS = """
import sys
from pathlib import Path
from verifier_service.config import VerifierSettings
from verifier_service.vllm.target import load_target
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

if __name__ == "__main__":
    model = {"path": sys.argv[1], "products": sys.argv[2]}
    settings = VerifierSettings.load(overrides={"model": model, "backend": "vllm", "kv_bytes": 2**26})
    _, target, *_ = load_target(settings)
    runner = target._engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    layers = [each for each in runner.model.modules() if isinstance(each, (LinearBase, ParallelLMHead))]
    print("packed", sum(hasattr(each, "packed") for each in layers), "of", len(layers))
"""
LAYER = """
import torch
from types import SimpleNamespace
from verifier_service.vllm import packed_products

weight, x, bias = torch.randn(40, 16), torch.randn(5, 16), torch.randn(40)
layer = SimpleNamespace(weight=torch.nn.Parameter(weight))
method = packed_products._PackedLayer()
method.process_weights_after_loading(layer)
torch.testing.assert_close(method.apply(layer, x, bias), torch.nn.functional.linear(x, weight, bias))
torch.testing.assert_close(method.apply(layer, x), torch.nn.functional.linear(x, weight))
assert layer.weight.numel() == 0

packed_products.linear = lambda x, weight: 1.001 * torch.nn.functional.linear(x, weight)
try:
    packed_products.pack(weight)
except packed_products.InternalError as error:
    print(error)
"""


@pytest.mark.parametrize(("products", "packed"), [("operator", "65 of 65"), ("torch", "0 of 65")])
def test_every_layer_is_multiplied_as_the_settings_say(tmp_path: Path, products: str, packed: str) -> None:
    assert f"packed {packed}" in run(LAYERS, tmp_path, str(ROOT / "models/demo/target"), products)


def test_a_layer_matches_pytorch_and_a_wrong_operator_is_refused(tmp_path: Path) -> None:
    assert "the operator of products gives others than PyTorch" in run(LAYER, tmp_path)
