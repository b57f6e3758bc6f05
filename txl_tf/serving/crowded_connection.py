"""The answer where there are too many connections."""

import asyncio
import json
from typing import cast

_LINGERING_SECONDS = 2.0


class CrowdedConnection(asyncio.Protocol):
    """Says that there are too many connections, and ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        content = json.dumps({"error": "There are too many connections. Ask again later."})
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        writer = cast(asyncio.WriteTransport, transport)
        writer.write((head + content).encode())
        writer.write_eof()
        # What the client still sends is read, or it would lose the answer.
        asyncio.get_running_loop().call_later(_LINGERING_SECONDS, writer.abort)
