"""Earlier name of `specdec.protos.gateway.v1.gateway_pb2_grpc`, for scripts that run in a checkout; not installed."""

from specdec.protos.gateway.v1.gateway_pb2_grpc import *  # noqa: F403
