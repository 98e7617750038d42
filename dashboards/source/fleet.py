"""The ranks of a job compared: which is slower than its peers, and which one do the others wait for."""

from account import taken_by_cause
from grafana import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    absolute,
    cell,
    dashboard as make,
    dashed,
    override,
    query,
    share_gauge,
    stat,
    states,
    steps,
    table,
    timeseries,
    to_process,
    values,
    variable,
)

ON = 'slurm_job=~"$slurm_job", comm=~"$comm"'
RANK = "rank {{rank}} on {{instance}}"
JOB = "job, comm, slurm_job, namespace, world_size"


def _state():
    return [
        stat(
            "Ranks",
            "Live processes with a rank.",
            [query(f"count(process:gpucause_health:score{{{ON}}})", "ranks")],
            unit="short",
            decimals=0,
            w=6,
            runbooks=["GpucauseRankMissing"],
        ),
        stat(
            "Stragglers",
            "Ranks that are slower than their peers, or than their own past where there are fewer than three peers.",
            [query(f"count(process:gpucause_straggler:state{{{ON}}} > 0) or vector(0)", "stragglers")],
            unit="short",
            decimals=0,
            w=6,
            thresholds=steps(GREEN, (1, RED)),
            runbooks=["GpucauseStraggler"],
        ),
        stat(
            "Most delayed rank",
            "Share of the last minute that its host delayed the most delayed rank.",
            [query(f"1 - min(process:gpucause_health:score{{{ON}}})", "delayed")],
            unit="percentunit",
            decimals=0,
            w=6,
            thresholds=steps(GREEN, (0.05, YELLOW), (0.1, ORANGE), (0.25, RED)),
            runbooks=["GpucauseStraggler"],
        ),
        stat(
            "Waiting for the late rank",
            "How much less the late rank waits than every other rank, as a share of time. The others wait for it.",
            [query(f"max(peers:gpucause_nccl_wait:late_margin_1m{{{ON}}})", "margin")],
            unit="percentunit",
            decimals=0,
            w=6,
            thresholds=steps(GREEN, (0.05, YELLOW), (0.1, RED)),
            runbooks=["GpucauseNcclLateRank"],
        ),
    ]


def _stragglers():
    band = values({0: ("like its peers", "#2F6B3A"), 1: ("straggler", RED)})
    return [
        timeseries(
            "Health of each rank",
            "Share of the last minute in which its host did not delay a rank: 100 % is healthy. Dashed: the median of its peers.",
            [
                query(f"process:gpucause_health:score{{{ON}}}", RANK),
                query(f"peers:gpucause_health:median{{{ON}}}", "median of {{world_size}} {{comm}}"),
            ],
            unit="percentunit",
            w=12,
            h=9,
            high=1,
            legend=("lastNotNull", "min"),
            runbooks=["GpucauseStraggler"],
            overrides=[
                dashed("/^median/", color={"mode": "fixed", "fixedColor": "#FFFFFF"}),
            ],
        ),
        timeseries(
            "Deviation from peers",
            "Distance of a rank below its peers, divided by the threshold. Above 1 it is a straggler, until it is below 0.5.",
            [query(f"process:gpucause_health:deviation{{{ON}}}", RANK)],
            unit="suffix:x",
            w=12,
            h=9,
            decimals=2,
            low=None,
            lines=steps("transparent", (0.5, ORANGE), (1, RED)),
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseStraggler"],
        ),
        states(
            "Stragglers",
            "When each rank was a straggler.",
            [
                query(
                    f"max by (instance, comm, rank) ((process:gpucause_straggler:state{{{ON}}} > bool 0) or 0 *"
                    f" process:gpucause_health:score{{{ON}}})",
                    RANK,
                )
            ],
            mappings=[band],
            runbooks=["GpucauseStraggler"],
        ),
    ]


def _ranks():
    columns = {
        "instance": "Instance",
        "rank": "Rank",
        "pid": "PID",
        "comm": "Process",
        "slurm_job": "Slurm job",
        "world_size": "Of",
        "baseline": "Compared with",
        "Value #A": "Health",
        "Value #B": "Deviation",
        "Value #C": "Waits for others",
        "Value #D": "Launches",
    }
    of_rank = "* on (job, instance, pid, comm) group_left (rank, slurm_job, world_size) process:gpucause_peers:info"
    by = "max by (instance, pid, comm, rank, slurm_job, world_size)"
    return [
        table(
            "Ranks",
            "The last minute of each rank. The PID links to its dashboard.",
            [
                query(f"{by} (process:gpucause_health:score{{{ON}}})", "health", table=True),
                query(
                    "max by (instance, pid, comm, rank, slurm_job, world_size, baseline)"
                    f" (process:gpucause_health:deviation{{{ON}}})",
                    "deviation",
                    table=True,
                ),
                query(f"{by} (process:gpucause_nccl_wait:ratio_rate1m{{{ON}}})", "waits", table=True),
                query(f'{by} (process:gpucause_launches:rate1m{{comm=~"$comm"}} {of_rank}{{{ON}}})', "launches", table=True),
            ],
            columns,
            sort="Deviation",
            runbooks=["GpucauseStraggler", "GpucauseNcclLateRank"],
            overrides=[
                to_process(),
                share_gauge("/Health|Waits.*/", color={"mode": "fixed", "fixedColor": BLUE}),
                override(
                    "Deviation",
                    unit="suffix:x",
                    decimals=1,
                    custom__cellOptions=cell("color-text"),
                    thresholds=absolute(steps(GREEN, (0.5, ORANGE), (1, RED))),
                ),
                override("Launches", unit="ops", decimals=0),
            ],
        ),
    ]


def _collectives():
    return [
        timeseries(
            "Waiting in collectives and for the GPU",
            "Share of the last minute that each rank waits in collectives and for its GPU. The others wait for the rank that waits"
            " least.",
            [query(f"process:gpucause_nccl_wait:ratio_rate1m{{{ON}}}", RANK)],
            unit="percentunit",
            w=12,
            legend=("lastNotNull", "min"),
            high=1,
            runbooks=["GpucauseNcclLateRank"],
        ),
        timeseries(
            "Skew of collectives",
            "Skew: the longest minus the shortest wait of a rank. Margin: the second shortest minus the shortest.",
            [
                query(f"peers:gpucause_nccl_wait:skew_1m{{{ON}}}", "skew of {{comm}}"),
                query(f"peers:gpucause_nccl_wait:late_margin_1m{{{ON}}}", "margin of the late rank"),
            ],
            unit="percentunit",
            w=12,
            lines=steps("transparent", (0.1, RED)),
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseNcclLateRank"],
        ),
    ]


def _peers():
    columns = {
        "comm": "Process",
        "slurm_job": "Slurm job",
        "namespace": "Namespace",
        "world_size": "World size",
        "Value #A": "Ranks seen",
        "Value #B": "Median health",
        "Value #C": "Deviation (MAD)",
        "Value #D": "Too far below the median",
    }
    return [
        table(
            "Jobs",
            "Jobs with at least three ranks, each of a number of its own, which are compared. Too far is five deviations, and at least"
            " 10 % of the time.",
            [
                query(f"max by ({JOB}) (peers:gpucause_health:count{{{ON}}})", "ranks", table=True),
                query(f"max by ({JOB}) (peers:gpucause_health:median{{{ON}}})", "median", table=True),
                query(f"max by ({JOB}) (peers:gpucause_health:mad{{{ON}}})", "deviation", table=True),
                query(
                    f"max by ({JOB}) (clamp_min(5 * 1.4826 * peers:gpucause_health:mad{{{ON}}}, 0.1))", "too far", table=True
                ),
            ],
            columns,
            w=12,
            overrides=[
                override("/Median.*|Deviation.*|Too far.*/", unit="percentunit", decimals=1),
                override("Ranks seen", decimals=0),
            ],
            runbooks=["GpucauseStraggler"],
        ),
        taken_by_cause(
            'comm=~"$comm"',
            only=f" and on (job, instance, pid, comm) process:gpucause_peers:info{{{ON}}}",
            w=12,
            h=8,
            runbooks=["GpucauseStraggler", "GpucauseDispatcherStarved"],
        ),
    ]


def dashboard():
    variables = [
        variable(
            "slurm_job",
            "Slurm job",
            "label_values(process:gpucause_peers:info, slurm_job)",
            description="Slurm jobs. Ranks without Slurm are in All.",
        ),
        variable(
            "comm",
            "Process",
            'label_values(process:gpucause_peers:info{slurm_job=~"$slurm_job"}, comm)',
            description="Names of processes with a rank.",
        ),
    ]
    return make(
        "gpucause-fleet",
        "gpucause / Fleet",
        "The ranks of a job compared: which is slower than its peers, and which one do the others wait for.",
        variables,
        [("Now", _state()), ("Stragglers", _stragglers() + _ranks()), ("Collectives", _collectives()), ("Peers", _peers())],
        alerts=["Health of each rank", "Deviation from peers", "Waiting in collectives and for the GPU"],
    )
