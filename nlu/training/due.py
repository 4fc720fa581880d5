"""What is due after a step: functions of its number, so that a continued run decides the same."""

from nlu.config.durations import Clock, parse_duration, parse_interval
from nlu.config.schema import Trainer

FEWEST_STEPS = 60
"""steps of a run of the default length: with few rows its epochs would be two or three steps, which teach nothing"""
EARLY_FACTOR = 10
"""how many times less often a run is evaluated during `trainer.eval_warmup`"""


class Due:
    """Tells after which steps, counted from 1, a run logs, evaluates, saves and ends."""

    def __init__(self, trainer: Trainer, clock: Clock, *, has_floor: bool = False):
        """`has_floor`: whether the default length takes at least FEWEST_STEPS."""
        self._clock = clock
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

    def is_stage_over(self, step: int) -> bool:
        """Return whether `trainer.stop_after` ends the command after this step; the run is continued later."""
        return self._stage_steps is not None and step >= self._stage_steps

    def logs(self, step: int) -> bool:
        """Return whether train.tsv gets a row."""
        return self.is_last(step) or self._clock.is_time(self._log_interval, step)

    def evaluates(self, step: int) -> bool:
        """Return whether the evaluation sets are scored."""
        times = EARLY_FACTOR if step < self._warmup_steps else 1
        return self.is_last(step) or self._clock.is_time(self._eval_interval, step, times)

    def saves(self, step: int) -> bool:
        """Return whether checkpoints/last is replaced."""
        if self.is_stage_over(step):
            return True
        return self.evaluates(step) if self._save_interval is None else self._clock.is_time(self._save_interval, step)

    def is_out_of_patience(self, evaluated_at: int, improved_at: int) -> bool:
        """Return whether the evaluations up to step `evaluated_at` have not improved for `trainer.patience`, which
        counts from `trainer.min_duration` on."""
        if self._patience_steps is None:
            return False
        return evaluated_at - max(improved_at, self._min_steps) >= self._patience_steps
