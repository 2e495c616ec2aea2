"""Earlier name of `specdec.protos.verifier.v1.verifier_pb2_grpc`, for scripts that run in a checkout; not installed."""

from specdec.protos.verifier.v1.verifier_pb2_grpc import *  # noqa: F403
