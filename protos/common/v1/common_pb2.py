"""Earlier name of `specdec.protos.common.v1.common_pb2`, for scripts that run in a checkout; not installed."""

from specdec.protos.common.v1.common_pb2 import *  # noqa: F403
