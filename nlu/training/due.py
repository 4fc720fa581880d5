"""What is due after a step: functions of its number, so that a continued run decides the same."""

from nlu.config.durations import Clock, Duration, parse_duration, parse_interval
from nlu.config.schema import Trainer


class Due:
    """Tells after which steps, counted from 1, a run logs, evaluates, saves and ends."""

    def __init__(self, trainer: Trainer, clock: Clock):
        self._clock = clock
        self.total_steps = clock.steps(parse_duration(trainer.max_duration))
        """length of the run, from which the schedule of the learning rate follows"""
        self._log_interval = parse_duration(trainer.log_interval)
        self._eval_interval = parse_interval(trainer.eval_interval)
        self._save_interval = parse_interval(trainer.save_interval)
        self._patience_steps = self._steps(trainer.patience)

    def _steps(self, duration: str | None) -> int | None:
        return None if duration is None else self._clock.steps(parse_duration(duration))

    def is_last(self, step: int) -> bool:
        """Return whether the run is complete after this step, if nothing ends it before."""
        return step == self.total_steps

    def logs(self, step: int) -> bool:
        """Return whether train.tsv gets a row."""
        return self._is_time(self._log_interval, step) or self.is_last(step)

    def evaluates(self, step: int) -> bool:
        """Return whether the evaluation sets are scored."""
        return self._is_time(self._eval_interval, step) or self.is_last(step)

    def saves(self, step: int) -> bool:
        """Return whether checkpoints/last is replaced."""
        return self.evaluates(step) if self._save_interval is None else self._is_time(self._save_interval, step)

    def is_out_of_patience(self, evaluated_at: int, improved_at: int) -> bool:
        """Return whether the evaluations up to step `evaluated_at` have not improved for `trainer.patience`."""
        return self._patience_steps is not None and evaluated_at - improved_at >= self._patience_steps

    def _is_time(self, interval: Duration | None, step: int) -> bool:
        return self._clock.is_time(interval, step)
