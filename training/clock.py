"""What a run spends its time on."""

import time


class Clock:
    """Seconds by what they were spent on."""

    before = 0.0  # seconds of this process before its first clock

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        """Goes on counting in `seconds`, a dictionary of the caller's."""
        self.seconds = {} if seconds is None else seconds
        self.last = time.perf_counter() - Clock.before
        Clock.before = 0.0

    def lap(self, name: str) -> None:
        """Counts the time since the last lap as spent on `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def include(self, seconds: dict[str, float]) -> None:
        """Adds what another clock has counted since the last lap of this one."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        self.last = time.perf_counter()
