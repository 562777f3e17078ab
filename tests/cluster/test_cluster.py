"""A warehouse on a Spark standalone cluster: a master and two workers on loopback, and a PostgreSQL catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.servers import Processes, finish, start_cluster, start_script
from tests.conftest import PostgresServer
from tests.effort import IS_SOAK

_SECONDS = 300.0  # for all scripts, on a busy machine


@pytest.mark.spark
@pytest.mark.postgres
def test_a_warehouse_on_a_cluster_answers_like_plain_spark(
    tmp_path: Path, processes: Processes, postgres: PostgresServer
) -> None:
    """Loads, transactions, views, upkeep, the manager, and a second process that queries meanwhile: all is exact."""
    environments = start_cluster(processes, build=2, **({"watch": 1} if IS_SOAK else {}))
    alone = {"SPARK_MASTER": "local[1]", "SPARK_DRIVER_MEMORY": "1g"}  # what matters is that it is another process
    folder, catalog = str(tmp_path / "warehouse"), postgres.new_database()
    builder = start_script(processes, "build", "build", folder, catalog, **environments["build"])
    watcher = start_script(processes, "watch", "watch", folder, catalog, **environments.get("watch", alone))
    assert finish(watcher, builder, seconds=_SECONDS) == ["done", "done"]
    used = [list((processes.folder / f"work{n}").glob("app-*")) for n in (1, 2)]
    assert all(used), f"only one worker had work: {used}"
