"""Earlier name of `specdec.protos.drafter.v1.drafter_pb2`, for scripts that run in a checkout; not installed."""

from specdec.protos.drafter.v1.drafter_pb2 import *  # noqa: F403
