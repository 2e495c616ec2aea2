"""Earlier name of `specdec.protos.drafter.v1.drafter_pb2_grpc`, for scripts that run in a checkout; not installed."""

from specdec.protos.drafter.v1.drafter_pb2_grpc import *  # noqa: F403
