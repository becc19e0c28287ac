"""How two ends of a connection come to trust each other: each proves that it knows the secret, and neither sends it.

    server → Challenge(nonce)
    client → Proof(nonce, identity, HMAC-SHA256(secret, "client" ‖ both nonces ‖ identity))
    server → Welcome(identity, memory, HMAC-SHA256(secret, "server" ‖ both nonces ‖ identity ‖ memory)), or Refusal

A server says nothing of itself before the client's proof is right. Blocks pass unencrypted: the secret keeps strangers
out of a private network, and is no means to cross a public one.
"""

from __future__ import annotations

import hmac
import secrets

from headrace.transfer.connectors.frames import (
    Challenge,
    FramedSocket,
    Left,
    Proof,
    Refusal,
    Welcome,
    pack_identity,
    unpack_identity,
)
from headrace.transfer.identity import Identity, TransferRefused, check_identity

__all__ = ["greet", "introduce"]

_NONCE = 32


def greet(link: FramedSocket, ours: Identity, secret: bytes, memory: bytes, left: Left) -> Identity:
    """The server's part. Returns the client's identity. Raises TransferRefused, after the client was told why."""
    nonce = secrets.token_bytes(_NONCE)
    link.send(Challenge(nonce), left)
    proof = link.expect(Proof, left)
    try:
        wanted = _digest(secret, b"client", nonce, proof.nonce, proof.identity)
        if not hmac.compare_digest(wanted, proof.digest):
            raise TransferRefused("the secret is another one here: give both engines the same")
        theirs = unpack_identity(proof.identity, link.peer)
        check_identity(ours, theirs, link.peer)
    except TransferRefused as error:
        link.send(Refusal(str(error)), left)
        raise
    mine = pack_identity(ours)
    link.send(Welcome(mine, memory, _digest(secret, b"server", nonce, proof.nonce, mine, memory)), left)
    return theirs


def introduce(
    link: FramedSocket, ours: Identity, secret: bytes, epoch: int | None, left: Left
) -> tuple[Identity, bytes]:
    """The client's part. Returns the server's identity and its memory's description. Raises TransferRefused."""
    nonce, mine = secrets.token_bytes(_NONCE), pack_identity(ours)
    challenge = link.expect(Challenge, left)
    link.send(Proof(nonce, mine, _digest(secret, b"client", challenge.nonce, nonce, mine)), left)
    welcome = link.expect(Welcome, left)
    wanted = _digest(secret, b"server", challenge.nonce, nonce, welcome.identity, welcome.memory)
    if not hmac.compare_digest(wanted, welcome.digest):
        raise TransferRefused("it does not know the secret: give both engines the same")
    theirs = unpack_identity(welcome.identity, link.peer)
    check_identity(ours, theirs, link.peer, epoch)
    return theirs, welcome.memory


def _digest(secret: bytes, *parts: bytes) -> bytes:
    """HMAC over the parts, each with its length."""
    found = hmac.new(secret, digestmod="sha256")
    for part in parts:
        found.update(len(part).to_bytes(4, "little"))
        found.update(part)
    return found.digest()
