"""Sessions in pages, and passes over them, as fast as the device allows: captured, by kernels, or on plain PyTorch."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from specdec.engine.cuda.graphs import COMMON, Capture, CaptureSwitch, cuda_capture
from specdec.engine.cuda.inputs import PassShape
from specdec.engine.cuda.paged_step import Kernels
from specdec.engine.cuda.pages import PageList, PageStore
from specdec.engine.cuda.runner import Runner
from specdec.engine.decoder import Decoder
from specdec.engine.kv.backend import KvBackend
from specdec.engine.kv.layout import KvLayout
from specdec.errors import ModelRefused
from specdec.rules.coupling import triton_works

_log = logging.getLogger(__name__)


class PagedBackend:
    """Opens pages for a model: an `OpenKvBackend` with settings."""

    def __init__(
        self,
        kernels: Kernels | None = None,
        capture: Callable[[], Capture] | None = None,
        common: Sequence[PassShape] = (),
    ) -> None:
        """
        Args:
            kernels: attention kernels; None gathers keys and values from the pages in each layer and uses PyTorch.
            capture: creates the `Capture` for the passes of one model; requires kernels.
            common: buckets to capture before the first session is admitted.
        """
        self._kernels = kernels
        self._capture = capture
        self._common = common
        self._switch = CaptureSwitch()

    @classmethod
    def on(cls, device: torch.device) -> "PagedBackend":
        """The fastest backend that runs on a device."""
        if device.type != "cuda":
            return cls()
        # Triton is installed with PyTorch for CUDA and needs a C compiler at run time.
        if not triton_works(device):
            _log.warning("Triton does not run here, so attention gathers its pages and passes are not captured")
            return cls()
        from specdec.engine.cuda.triton_kernels import TritonKernels

        return cls(TritonKernels(), partial(cuda_capture, device), COMMON)

    def __call__(self, decoder: Decoder, layout: KvLayout, budget: int) -> KvBackend[PageList]:
        """Allocate the whole budget.

        Raises:
            ModelRefused: the device has less free memory.
        """
        try:
            store = PageStore(layout, budget)
        except torch.OutOfMemoryError as error:
            raise ModelRefused(f"{layout.device} has no room for kv_bytes of {budget}") from error
        runner = Runner(decoder, store.memory, self._kernels)
        if self._capture is not None and self._switch.on:
            runner.capture_with(self._capture(), self._switch)
        return KvBackend(store, runner, partial(runner.warm, self._common))
