"""Earlier name of `specdec.protos.verifier.v1.verifier_pb2`, for scripts that run in a checkout; not installed."""

from specdec.protos.verifier.v1.verifier_pb2 import *  # noqa: F403
