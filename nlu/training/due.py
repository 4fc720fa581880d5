"""What is due after a step: functions of its number, so that a continued run decides the same."""

from collections.abc import Callable

from nlu.config.durations import Clock, Duration, parse_duration, parse_interval
from nlu.config.schema import Trainer

FEWEST_STEPS = 60
"""steps of a run of the default length: with few rows its epochs would be two or three steps, which teach nothing"""
EARLY_FACTOR = 10
"""how many times less often a run is evaluated during `trainer.eval_warmup`"""


class Due:
    """Tells after which steps, counted from 1, a run logs, evaluates, saves and ends.

    What needs the same weights on all ranks waits for the next step that is whole.
    """

    def __init__(
        self, trainer: Trainer, clock: Clock, is_whole: Callable[[int], bool] = lambda step: True,
        *, has_floor: bool = False,
    ):  # fmt: skip
        """`is_whole`: whether all ranks hold the same weights after a step, as in `nlu.training.parallel`.
        `has_floor`: whether the default length takes at least FEWEST_STEPS."""
        self._clock, self._is_whole = clock, is_whole
        self.total_steps = clock.steps(parse_duration(trainer.max_duration))
        """length of the run, from which the schedule of the learning rate follows"""
        self.asked_steps = self.total_steps
        if has_floor and trainer.max_duration == Trainer.max_duration:
            self.total_steps = max(FEWEST_STEPS, self.total_steps)
        self._log_interval = parse_duration(trainer.log_interval)
        self._eval_interval = parse_interval(trainer.eval_interval)
        self._save_interval = parse_interval(trainer.save_interval)
        self._warmup_steps = self._steps(trainer.eval_warmup) or 0
        self._patience_steps = self._steps(trainer.patience)
        self._min_steps = self._steps(trainer.min_duration) or 0
        self._stage_steps = self._steps(trainer.stop_after)

    def _steps(self, duration: str | None) -> int | None:
        return None if duration is None else self._clock.steps(parse_duration(duration))

    def is_last(self, step: int) -> bool:
        """Return whether the run is complete after this step, if nothing ends it before."""
        return step == self.total_steps

    def is_whole(self, step: int) -> bool:
        """Return whether all ranks hold the same weights after this step."""
        return self._is_whole(step) or self.is_last(step)

    def is_stage_over(self, step: int) -> bool:
        """Return whether `trainer.stop_after` ends the command after this step; the run is continued later."""
        return self._stage_steps is not None and step >= self._stage_steps and self.is_whole(step)

    def logs(self, step: int) -> bool:
        """Return whether train.tsv gets a row."""
        return self._is_time(self._log_interval, step) or self.is_last(step)

    def evaluates(self, step: int) -> bool:
        """Return whether the evaluation sets are scored."""
        return self.is_last(step) or self._was_time(self._eval_interval, step, self._warmup_steps)

    def saves(self, step: int) -> bool:
        """Return whether checkpoints/last is replaced."""
        if self.is_stage_over(step):
            return True
        return self.evaluates(step) if self._save_interval is None else self._was_time(self._save_interval, step)

    def is_out_of_patience(self, evaluated_at: int, improved_at: int) -> bool:
        """Return whether the evaluations up to step `evaluated_at` have not improved for `trainer.patience`, which
        counts from `trainer.min_duration` on."""
        if self._patience_steps is None:
            return False
        return evaluated_at - max(improved_at, self._min_steps) >= self._patience_steps

    def _was_time(self, interval: Duration | None, step: int, warmup_steps: int = 0) -> bool:
        """Return whether this step is whole, and the interval ended at it or since the last whole one."""
        if not self.is_whole(step):
            return False
        while not self._is_time(interval, step, EARLY_FACTOR if step < warmup_steps else 1):
            step -= 1
            if step < 1 or self._is_whole(step):
                return False
        return True

    def _is_time(self, interval: Duration | None, step: int, times: int = 1) -> bool:
        return self._clock.is_time(interval, step, times)
