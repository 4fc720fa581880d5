"""The plugin that Hydra finds; it imports the clients of the services only when it opens their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydra_plugins.queue_launcher import queue_launcher

from . import config as config

if TYPE_CHECKING:
    from nlu.launching.queue import Queue, QueueContext


class PaiLauncher(queue_launcher.QueueLauncher):
    """Jobs on Alibaba Cloud's PAI: DLC, or PAI commands of MaxCompute."""

    queue = "pai"
    keys = config.PaiLauncherConf

    @classmethod
    def open_queue(cls, context: QueueContext) -> Queue:
        """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
        from ._queue import open_pai

        return open_pai(context)
