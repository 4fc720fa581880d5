"""Scan the learning rate or the batch size of a configuration: build its run, take steps, print, draw."""

from dataclasses import replace

from nlu.config.scan import Scan
from nlu.diagnosis.batch_scan import BatchScan, run_batch_scan
from nlu.diagnosis.range_test import RangeTest, run_range_test
from nlu.diagnosis.scanned import print_scan, write_scan
from nlu.diagnosis.steps import built
from nlu.display.progress import Progress
from nlu.runs import logs
from nlu.storage.outputs import output_folder
from nlu.training.auto import with_precision
from nlu.training.experiment import choose_kernels
from nlu.training.ranks import Ranks, process_group

RESULT = "scan.json"


def run_scan(config: Scan) -> int:
    """Scan; returns the exit status: 0, or 1 if no value can be recommended."""
    logs.set_up(None, 0)
    with process_group(config.trainer.device) as ranks, Progress() as progress:
        choose_kernels(ranks.device)
        config = with_precision(config, ranks)
        found = scan(config, ranks, progress)
        written: list[str] = []
        if config.out is not None:
            with output_folder(config.out, "out", last=RESULT) as folder:
                write_scan(found, folder, RESULT, float(config.optimizer.get("lr") or 0))
                written = [f"{config.out.rstrip('/')}/{path.name}" for path in sorted(folder.iterdir())]
    print_scan(found, written)
    return 1 if found.recommended is None else 0


def scan(config: Scan, ranks: Ranks, progress: Progress) -> RangeTest | BatchScan:
    """Take the steps of a scan and analyze them."""
    # A loss that is too large is a result here, and no weights are kept.
    trainer = replace(config.trainer, max_loss=None, detect_anomaly=False)
    if config.of == "lr":
        lr_config = replace(config, trainer=replace(trainer, ema_decay=0.0))
        with built(lr_config, ranks, progress) as run, progress.task("rising rates", config.num_steps) as bar:
            return run_range_test(run, lr_config, bar.advance)
    # Each size replaces this one.
    first = replace(config, trainer=replace(trainer, batch_size=2, accumulation=1))
    with built(first, ranks, progress) as run, progress.task("batch sizes") as bar:

        def show(batch_size: int) -> None:
            bar.description = f"micro-batches of {batch_size:,}"
            bar.advance()

        return run_batch_scan(run, config, show)
