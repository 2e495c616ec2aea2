"""A minimal stand-in for a service: healthy at once, or broken as its configuration says.

Run as `python stand_in.py ROLE CONFIG`.
"""

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.serving.addresses import split_address


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    def GetVerifierInfo(
        self, request: verifier_pb2.GetVerifierInfoRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.GetVerifierInfoResponse:
        if ("authorization", f"Bearer {config['token']}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        drafters = [
            verifier_pb2.DrafterState(address=address, state="refused: another tokenizer")
            for address in config["drafters"]
        ]
        return verifier_pb2.GetVerifierInfoResponse(drafters=drafters)


def serve_grpc(role: str, address: str) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if role == "verifier":
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Verifier(), server)
    server.add_insecure_port(address)
    server.start()
    return server


if __name__ == "__main__":
    config: dict[str, Any] = yaml.safe_load(Path(sys.argv[2]).read_text())
    if config["model"]["path"].endswith("broken"):
        sys.exit("this model cannot be loaded")
    running = serve_grpc(sys.argv[1], config["address"])
    host, port = split_address(config["http"])
    HTTPServer.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    threading.Thread(target=HTTPServer((host, port), Ready).serve_forever, daemon=True).start()
    running.wait_for_termination()
