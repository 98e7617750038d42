-- Causal chains in ClickHouse. The first table is that of the collector's ClickHouse exporter, which creates it itself (there with
-- further indexes). The rest is to be created once: clickhouse-client --multiquery < clickhouse.sql

CREATE TABLE IF NOT EXISTS otel_logs
(
    Timestamp DateTime64(9),
    TimestampTime DateTime DEFAULT toDateTime(Timestamp),
    TraceId String,
    SpanId String,
    TraceFlags UInt8,
    SeverityText LowCardinality(String),
    SeverityNumber UInt8,
    ServiceName LowCardinality(String),
    Body String,
    ResourceSchemaUrl LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String),
    ScopeSchemaUrl LowCardinality(String),
    ScopeName String,
    ScopeVersion LowCardinality(String),
    ScopeAttributes Map(LowCardinality(String), String),
    LogAttributes Map(LowCardinality(String), String)
)
ENGINE = MergeTree
PARTITION BY toDate(TimestampTime)
ORDER BY (ServiceName, TimestampTime, Timestamp);

-- A row a record. One that came twice has the same key: FINAL shows it once, and merges remove the other.
CREATE TABLE IF NOT EXISTS gpucause_chain_records
(
    Node LowCardinality(String),
    ChainId String,
    Revision UInt32,
    State LowCardinality(String),
    Seen DateTime64(3),
    FirstSeen DateTime64(3),
    SeverityNumber UInt8,
    Severity LowCardinality(String),
    Cause LowCardinality(String),
    Effect LowCardinality(String),
    LostSeconds Float64,
    Explained Float64,
    Victim LowCardinality(String),
    VictimPid UInt32,
    Culprit String,
    CulpritPid Nullable(UInt32),
    CulpritOwner String,
    Rank Nullable(UInt32),
    SlurmJob LowCardinality(String),
    Namespace LowCardinality(String),
    Pod String,
    Owner LowCardinality(String),
    Sentence String,
    Fix String,
    Evidence Map(LowCardinality(String), Float64)
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(FirstSeen)
ORDER BY (Node, ChainId, Revision);

CREATE MATERIALIZED VIEW IF NOT EXISTS gpucause_chain_records_of_logs TO gpucause_chain_records AS
SELECT
    ResourceAttributes['host.name'] AS Node,
    LogAttributes['gpucause.chain.id'] AS ChainId,
    toUInt32OrZero(LogAttributes['gpucause.chain.revision']) AS Revision,
    LogAttributes['gpucause.chain.state'] AS State,
    Timestamp AS Seen,
    toDateTime64(toFloat64OrZero(LogAttributes['gpucause.chain.first_seen']), 3) AS FirstSeen,
    SeverityNumber,
    LogAttributes['gpucause.chain.severity'] AS Severity,
    LogAttributes['gpucause.chain.cause'] AS Cause,
    LogAttributes['gpucause.chain.effect'] AS Effect,
    toFloat64OrZero(LogAttributes['gpucause.chain.lost_seconds']) AS LostSeconds,
    toFloat64OrZero(LogAttributes['gpucause.chain.explained']) AS Explained,
    LogAttributes['gpucause.chain.victim'] AS Victim,
    toUInt32OrZero(LogAttributes['gpucause.chain.victim_pid']) AS VictimPid,
    LogAttributes['gpucause.chain.culprit'] AS Culprit,
    toUInt32OrNull(LogAttributes['gpucause.chain.culprit_pid']) AS CulpritPid,
    LogAttributes['gpucause.chain.culprit_owner'] AS CulpritOwner,
    toUInt32OrNull(ResourceAttributes['gpucause.rank']) AS Rank,
    ResourceAttributes['gpucause.process.slurm_job'] AS SlurmJob,
    ResourceAttributes['k8s.namespace.name'] AS Namespace,
    ResourceAttributes['k8s.pod.name'] AS Pod,
    ResourceAttributes['process.owner'] AS Owner,
    Body AS Sentence,
    LogAttributes['gpucause.chain.fix'] AS Fix,
    mapApply(
        (name, value) -> (replaceOne(name, 'gpucause.chain.evidence.', ''), toFloat64OrZero(value)),
        mapFilter((name, value) -> startsWith(name, 'gpucause.chain.evidence.'), LogAttributes)) AS Evidence
FROM otel_logs
WHERE ScopeName = 'gpucause' AND LogAttributes['gpucause.chain.id'] != '';

-- A row a chain, as last seen. An ongoing chain is logged every minute: one that is silent for three is of a node that is gone.
CREATE VIEW IF NOT EXISTS gpucause_chain_latest AS
SELECT
    *,
    State != 'ended' AND Seen > now64(3) - INTERVAL 3 MINUTE AS Ongoing
FROM gpucause_chain_records FINAL
ORDER BY Revision DESC
LIMIT 1 BY Node, ChainId;

-- dispatcher seconds that were lost, by job and cause. No chain lost more than 31 years: what one node makes up does not hide the sum of
-- the others.
CREATE VIEW IF NOT EXISTS gpucause_chain_lost_by_job AS
SELECT
    toStartOfHour(FirstSeen) AS Hour,
    multiIf(SlurmJob != '', SlurmJob, Namespace != '', Namespace, Owner) AS Job,
    Cause,
    sumIf(LostSeconds, LostSeconds BETWEEN 0 AND 1e9) AS Lost,
    count() AS Chains,
    uniqExact(Node) AS Nodes
FROM gpucause_chain_latest
GROUP BY Hour, Job, Cause;
