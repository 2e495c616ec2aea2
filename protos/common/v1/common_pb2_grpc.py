"""Earlier name of `specdec.protos.common.v1.common_pb2_grpc`, for scripts that run in a checkout; not installed."""

from specdec.protos.common.v1.common_pb2_grpc import *  # noqa: F403
