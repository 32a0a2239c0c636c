"""The clocks and the randomness of a client, and lease ids."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Env:
    """Wall time, monotonic time and randomness. Tests replace it."""

    def wall_ms(self) -> int:
        """The wall time in milliseconds."""
        return time.time_ns() // 1_000_000

    def now(self) -> float:
        """The monotonic time in seconds."""
        return time.monotonic()

    def bits(self, count: int) -> int:
        """Random bits."""
        return secrets.randbits(count)

    def part(self) -> float:
        """A random number from 0 to 1."""
        return self.bits(53) / (1 << 53)

    def lease_id(self) -> str:
        """A new ULID: 48 bits of wall time in milliseconds, and 80 random bits."""
        return ulid(self.wall_ms(), self.bits(80))


def ulid(wall_ms: int, random: int) -> str:
    """The text of a ULID."""
    number = (wall_ms & (1 << 48) - 1) << 80 | random & (1 << 80) - 1
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def ulid_ms(text: str) -> int:
    """The time of a ULID, in milliseconds."""
    number = 0
    for character in text[:10]:
        number = number << 5 | _ALPHABET.index(character)
    return number
