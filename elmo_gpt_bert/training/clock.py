"""Measures how many seconds a run spends on each of its steps."""

import time


class Clock:
    """Seconds by the name of the step that they were spent on."""

    startup_seconds = 0.0  # from the start of this process to its first clock, which counts them

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        """Adds to `seconds`, in place, if it is given."""
        self.seconds = {} if seconds is None else seconds
        self.last = time.perf_counter() - Clock.startup_seconds
        Clock.startup_seconds = 0.0

    def lap(self, name: str) -> None:
        """Counts the time since the last lap as spent on `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def include(self, seconds: dict[str, float]) -> None:
        """Adds the seconds that another clock has counted since this clock's last lap."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        self.last = time.perf_counter()

    @property
    def total(self) -> float:
        """All seconds counted, with those since the last lap."""
        return sum(self.seconds.values()) + time.perf_counter() - self.last
