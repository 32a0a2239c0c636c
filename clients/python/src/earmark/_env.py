"""The clocks and the randomness of a client, and lease ids."""

from __future__ import annotations

import os
import time
from functools import lru_cache

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: The text of each number of 10 bits: the time of a ULID is made of 5 of them.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
#: The character of each byte, by its lower 5 bits.
_CHARACTERS = (_ALPHABET * 8).encode()


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
        return ulid(self.wall_ms(), self.bits(128))


def ulid(wall_ms: int, random: int) -> str:
    """The text of a ULID. Each of its 16 random characters is 5 bits of one of 16 bytes."""
    return _time(wall_ms & (1 << 48) - 1) + random.to_bytes(16, "big").translate(_CHARACTERS).decode()


# Many leases begin in one millisecond.
@lru_cache(maxsize=2)
def _time(wall_ms: int) -> str:
    return "".join([_PAIRS[wall_ms >> shift & 1023] for shift in range(40, -1, -10)])
