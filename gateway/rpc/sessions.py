"""The gRPC service of sessions."""

from dataclasses import asdict
from typing import Any

import grpc.aio

from gateway.callers.caller import calling_tenant, check_name
from gateway.turns.services import Services
from gateway.turns.sessions import DEFAULT_PAGE, SessionInfo, UserSessions
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class SessionServicer(pb_grpc.SessionServiceServicer):
    """specdec.gateway.v1.SessionService."""

    def __init__(self, services: Services) -> None:
        self._sessions = UserSessions(services)

    async def CreateSession(  # noqa: N802
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        """Create a session."""
        ttl = request.ttl if request.HasField("ttl") else None
        session = await self._sessions.create(
            calling_tenant(request.user), request.model, ttl, check_name(request.request_id, "request_id")
        )
        return pb.CreateSessionResponse(session=_session(session))

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:  # noqa: N802
        """Describe one session."""
        found = await self._sessions.get(request.id, calling_tenant(request.user))
        return pb.GetSessionResponse(session=_session(found))

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """List the sessions of a user, newest first."""
        size = request.page_size or DEFAULT_PAGE
        found = await self._sessions.page(calling_tenant(request.user), size, request.page_token)
        token = found[-1].id if len(found) == size else ""
        return pb.ListSessionsResponse(sessions=[_session(session) for session in found], next_page_token=token)

    async def DeleteSession(  # noqa: N802
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        """Delete a session."""
        await self._sessions.delete(request.id, calling_tenant(request.user))
        return pb.DeleteSessionResponse()


def _session(session: SessionInfo) -> pb.Session:
    return pb.Session(**asdict(session))
