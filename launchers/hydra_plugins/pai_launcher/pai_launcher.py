"""The plugin that Hydra finds, and its keys.

Hydra imports this at every start, so the clients of the services are imported only when their queue is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore
from hydra_plugins.pai_launcher._settings import PaiSettings
from hydra_plugins.queue_launcher import queue_launcher

if TYPE_CHECKING:
    from nlu.jobs.queue import Queue, QueueContext


@dataclass
class PaiLauncherConf(PaiSettings):
    """Jobs on Alibaba Cloud's PAI. DLC, or PAI commands of MaxCompute."""

    _target_: str = "hydra_plugins.pai_launcher.pai_launcher.PaiLauncher"
    wait: bool = True


for group in ("hydra/launcher", "hydra/launcher/types"):
    ConfigStore.instance().store(group=group, name="pai", node=PaiLauncherConf(), provider="pai_launcher")


class PaiLauncher(queue_launcher.QueueLauncher):
    """Jobs on Alibaba Cloud's PAI: DLC, or PAI commands of MaxCompute."""

    queue = "pai"

    @classmethod
    def open_queue(cls, context: QueueContext) -> Queue:
        """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
        from hydra_plugins.pai_launcher._queue import open_pai

        return open_pai(context)
