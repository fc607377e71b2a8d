"""What the OpenAPI document says of the whole, in Markdown; docs/api.md has it too."""

from __future__ import annotations

from typing import Final

SUMMARY: Final = "Runs code that nobody trusts, in a sandbox that is not the host."
# WebSockets have no place among OpenAPI's routes.
LIVE: Final = """\
## The live transcript

`GET /ws/v1/sessions/<id>/events/?after=<seq>`, on the same host, is a WebSocket (`ws://`, or `wss://` behind TLS) that sends
each event of a session once, as one text message `{"seq", "ts", "kind", "data"}`; the kinds are those of
`GET /v1/sessions/{id}/events`. Everything behind `after` (0 without it) is replayed from the store first, then events come
as they happen. `seq` has no gaps: whoever was cut off connects again with the last one that they have, and drops what they
have already.

- **Signing in**: the header `Authorization: Bearer <token>`, or the console's cookie from a page of this server. Never a
  token in the address. The right is looked at again once a second.
- **Sub-protocol** (`Sec-WebSocket-Protocol`): `primer.v1.json`, also without one; `primer.v1.html` adds `html`, the event as
  the console draws it.
- **Direction**: it only sends; what a client says is not listened to. The server pings every 20 s. The socket stays open at
  the session's end (`session_ended`), since a message may continue it: close it yourself.

| close code | meaning | do |
|---|---|---|
| 4400 | `after` or the sub-protocol is not valid | correct it |
| 4401 | no valid token, or it was revoked or has expired | sign in again |
| 4404 | there is no such session, or it is not yours to see | |
| 4408 | the client reads too slowly | connect again with the last `seq` |
| 4012 | the server is restarting | connect again in a moment, with the last `seq` |

A page of another origin gets a bare HTTP 403 before the socket opens.
"""
DESCRIPTION: Final = f"{SUMMARY}\n\n{LIVE}"
