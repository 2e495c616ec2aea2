"""Earlier name of `specdec.protos.gateway.v1.gateway_pb2`, for scripts that run in a checkout; not installed."""

from specdec.protos.gateway.v1.gateway_pb2 import *  # noqa: F403
