"""The clocks and the randomness of a client, and lease ids."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: The text of each number of 10 bits: a ULID is made of 13 of them.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


class Env:
    """Wall time, monotonic time and randomness. Tests replace it."""

    def wall_ms(self) -> int:
        """The wall time in milliseconds."""
        return time.time_ns() // 1_000_000

    def now(self) -> float:
        """The monotonic time in seconds."""
        return time.monotonic()

    def bits(self, count: int) -> int:
        """Random bits. They are not drawn in advance: a forked child would draw the same ones."""
        return int.from_bytes(os.urandom((count + 7) // 8), "big") & (1 << count) - 1

    def part(self) -> float:
        """A random number from 0 to 1."""
        return self.bits(53) / (1 << 53)

    def lease_id(self) -> str:
        """A new ULID: 48 bits of wall time in milliseconds, and 80 random bits."""
        return ulid(self.wall_ms(), self.bits(80))


def ulid(wall_ms: int, random: int) -> str:
    """The text of a ULID."""
    number = (wall_ms & (1 << 48) - 1) << 80 | random & (1 << 80) - 1
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])
