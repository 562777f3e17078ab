"""The catalog's tables. Names start with fv_ so that a shared PostgreSQL database stays tidy."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

# SQLite gives row ids to INTEGER only; PostgreSQL wants BIGINT there.
_Id = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "fv_meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# One row. Locked first in every commit and held to its end: no CSN appears after a higher one.
clock = Table(
    "fv_clock",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("csn", BigInteger, nullable=False),
    Column("txsn", BigInteger, nullable=False),
    Column("committed_at", BigInteger, nullable=False),
    Column("horizon", BigInteger, nullable=False),
)

relations = Table(
    "fv_relations",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False),
    Column("folded", String(512), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("created_csn", BigInteger, nullable=False),
    Column("dropped_csn", BigInteger),
    Column("location", Text),
    Column("properties", Text, nullable=False),  # as the user gave them
    Column("facts", Text, nullable=False, server_default="{}"),  # what Freshview stores of a view
    Index(
        "fv_relations_name",
        "folded",
        unique=True,
        sqlite_where=text("dropped_csn IS NULL"),
        postgresql_where=text("dropped_csn IS NULL"),
    ),
    sqlite_autoincrement=True,
)

# The name and columns of a relation from a CSN on: old snapshots are read with these.
schemas = Table(
    "fv_schemas",
    metadata,
    Column("relation_id", BigInteger, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("csn", BigInteger, nullable=False),
    Column("name", String(255), nullable=False),
    Column("folded", String(512), nullable=False),
    Column("body", Text, nullable=False),
)

# One row per commit and touched relation, none per view.
commits = Table(
    "fv_commits",
    metadata,
    Column("relation_id", BigInteger, primary_key=True),
    Column("csn", BigInteger, primary_key=True),
    Column("txsn", BigInteger, nullable=False),
    Column("committed_at", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Index("fv_commits_csn", "csn"),
    Index("fv_commits_time", "committed_at"),
)

segments = Table(
    "fv_segments",
    metadata,
    Column("relation_id", BigInteger, primary_key=True),
    Column("csn", BigInteger, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("stmtsn", Integer),
    Column("action", Integer),
    Column("payload", LargeBinary),
    Column("files", Text),
    Column("first_version", BigInteger),
    Column("last_version", BigInteger),
)

mains = Table(
    "fv_mains",
    metadata,
    Column("relation_id", BigInteger, primary_key=True),
    Column("csn", BigInteger, primary_key=True),
    Column("delta_version", BigInteger, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("fingerprint", Text),
    Column("created_at", BigInteger, nullable=False),
)

snapshots = Table(
    "fv_snapshots",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("csn", BigInteger, nullable=False),
    Column("txsn", BigInteger, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

leases = Table(
    "fv_leases",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("relation_id", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# A view's frontier is the truth about what it has seen; tasks are the commits beyond it.
frontiers = Table(
    "fv_frontiers",
    metadata,
    Column("view_id", BigInteger, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("csn", BigInteger, nullable=False),
    Column("stmtsn", Integer, nullable=False),
    Column("eager", Integer, nullable=False, server_default="0"),  # 1: maintained inside the commits it depends on
    # Of a deferred view: the CSN that it shows, at most its frontier; when it was last propagated, and refreshed.
    Column("shown", BigInteger),
    Column("propagated_at", BigInteger),
    Column("refreshed_at", BigInteger),
    # By way of computing a view's change: actual time over estimated time, learnt from its jobs (JSON).
    Column("costs", Text, nullable=False, server_default="{}"),
)

inputs = Table(
    "fv_inputs",
    metadata,
    Column("view_id", BigInteger, primary_key=True),
    Column("relation_id", BigInteger, primary_key=True),
)

jobs = Table(
    "fv_jobs",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("relation_id", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("from_csn", BigInteger, nullable=False),
    Column("to_csn", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("report", Text, nullable=False),
    Column("error", Text),
    Index("fv_jobs_version", "relation_id", "to_csn"),
    sqlite_autoincrement=True,
)

# When queries used a view, from which its next use is estimated.
uses = Table(
    "fv_uses",
    metadata,
    Column("view_id", BigInteger, primary_key=True),
    Column("uses", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("mean_gap", BigInteger, nullable=False),  # µs between uses, the newest counting most; 0: used once
)

# Texts of queries, for the optimiser. A text may have secrets in literals: it is stored nowhere else.
queries = Table(
    "fv_queries",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of the text, which may be too long for an index
    Column("text", Text, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)

# Foreground work of processes: a row with view_id 0 for one that runs statements, others for views that it waits for.
activity = Table(
    "fv_activity",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("view_id", BigInteger, primary_key=True, autoincrement=False),
    Column("since", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# Up to where a source's changes have been taken into a table; moved by the commit that takes them.
positions = Table(
    "fv_positions",
    metadata,
    Column("relation_id", BigInteger, primary_key=True),
    Column("source", String(255), nullable=False),
    Column("position", Text, nullable=False),
)

# Systems that others own, and how changes of their tables are captured. Never holds a password.
sources = Table(
    "fv_sources",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False),
    Column("folded", String(512), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("options", Text, nullable=False),  # JSON
    sqlite_autoincrement=True,
)

# Flows: each takes the changes of one table of a source into one table here.
flows = Table(
    "fv_flows",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False),
    Column("folded", String(512), nullable=False, unique=True),
    Column("relation_id", BigInteger, nullable=False, unique=True),
    Column("source_id", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),  # JSON: the statement
    Column("memory_id", BigInteger),  # the table of sequences and tombstones, if the flow has one
    Column("polled_at", BigInteger),  # µs on the catalog's clock: when the source was last polled with success
    Column("failed_at", BigInteger),
    Column("error", Text),  # of the last poll, if it failed
    sqlite_autoincrement=True,
)

# Events that a flow could not read and set aside.
quarantine = Table(
    "fv_quarantine",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("flow_id", BigInteger, nullable=False),
    Column("place", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("fv_quarantine_flow", "flow_id"),
    sqlite_autoincrement=True,
)

# Counts of a relation at a CSN: of its rows (name '') and of the distinct values of its columns.
statistics = Table(
    "fv_statistics",
    metadata,
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("csn", BigInteger, nullable=False),
    Column("counted", BigInteger, nullable=False),
    Column("taken_at", BigInteger, nullable=False),
)
