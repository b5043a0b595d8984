"""The stores of this machine: each is built once, by one process, and then mapped by all.

A store belongs to a folder of source files as they are now: when they change it is built anew and the old one removed. The
stores lie in ``$TSTAR_DATA/webshop/stores`` and can be deleted at any time.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tstar_envs.data.faults import LeftOut
from tstar_envs.data.files import whole_file, write_whole
from tstar_envs.envs.webshop.catalogue import building
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.plan import Plan
from tstar_envs.envs.webshop.task import Task, task_from_record, task_to_record
from tstar_envs.errors import BadData, TStarError, WriteFailed

TASKS = "tasks.jsonl"
LEFT_OUT = ("left_out_products.json", "left_out_goals.json")


def open_plan(plan: Plan) -> tuple[Catalogue, list[Task], LeftOut]:
    """Map the store of a plan, after building it if need be; what its sources held that cannot be used comes last.

    Raises:
        BadData: the store's files are damaged.
        WriteFailed: a large store cannot be written. A small one is then built in memory, with a warning.
    """
    if not (plan.store / TASKS).is_file():
        try:
            _build(plan)
        except TStarError:  # the sources are to blame; some of these are OSErrors too
            raise
        except OSError as error:
            problem = f"WebShop's catalogue cannot be kept in {plan.store.parent} ({error})"
            if plan.large:
                raise WriteFailed(
                    f"{problem}. Make room and try again (it goes on), or set TSTAR_DATA to another folder"
                ) from error
            warnings.warn(
                f"{problem}: every process holds its own copy. Set TSTAR_DATA to a folder that can be written",
                stacklevel=2,
            )
            return _in_memory(plan)
    try:
        with open(plan.store / TASKS, encoding="utf-8") as lines:
            tasks = [task_from_record(json.loads(line)) for line in lines]
        left_out = [
            LeftOut.from_record(json.loads((plan.store / name).read_text(encoding="utf-8")))
            for name in LEFT_OUT
        ]
        return Catalogue.open(plan.store, plan.by_asin), tasks, left_out[0].plus(left_out[1])
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise BadData(
            f"WebShop's store {plan.store} is damaged ({error!r}); delete this folder, then it is built anew"
        ) from error


def _in_memory(plan: Plan) -> tuple[Catalogue, list[Task], LeftOut]:
    products = list(plan.products())
    for product in products:
        building.add_nouns(product, plan.tagger)
    catalogue = building.collect(products, plan.price, plan.tagger.name, plan.by_asin)
    tasks = plan.tasks(catalogue)
    return catalogue, tasks, plan.faults[0].so_far().plus(plan.faults[1].so_far())


def _build(plan: Plan) -> None:
    origin, now, _ = plan.store.name.split("-")
    plan.store.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(plan.store.with_name(f"{origin}.lock")):
        if not plan.store.is_dir():
            with _shown(plan) as report:
                beside = partial(_write_left_out, plan, 0)
                building.build_store(plan.store, plan.products(), plan.price, plan.tagger, report, beside)
        if not (plan.store / TASKS).is_file():
            tasks = plan.tasks(Catalogue.open(plan.store, plan.by_asin))
            _write_left_out(plan, 1, plan.store)
            with whole_file(plan.store / TASKS) as handle:
                handle.writelines(f"{json.dumps(task_to_record(task))}\n".encode() for task in tasks)
        for other in plan.store.parent.glob(f"{origin}-*"):
            if not other.name.startswith(f"{origin}-{now}-"):
                # A process may have it open where that forbids removing it.
                shutil.rmtree(other, ignore_errors=True)


def _write_left_out(plan: Plan, number: int, folder: Path) -> None:
    write_whole(folder / LEFT_OUT[number], json.dumps(plan.faults[number].so_far().to_record()))


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """One process at a time; the others wait. The lock ends with its process, however that ends."""
    with open(path, "ab") as handle:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _shown(plan: Plan) -> Iterator[Callable[[int], None]]:
    """Progress on the terminal where it takes long."""
    if not plan.large:
        yield lambda done: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed} products"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        shown = progress.add_task("WebShop: indexing (once; goes on if interrupted)", total=None)
        yield lambda done: progress.update(shown, completed=done)
