"""The dashboard of the cost of lost GPU time and idle GPUs, and of who pays for it."""

from grafana import (
    CAUSES,
    GREEN,
    ORANGE,
    YELLOW,
    bars,
    coloured,
    dashboard as make,
    override,
    query,
    stat,
    steps,
    table,
    timeseries,
    to_process,
    variable,
)

ON = 'namespace=~"$namespace", user=~"$user", slurm_job=~"$slurm_job"'
OWNER = "namespace, user, slurm_job, comm"
LOSS = ["GpucauseDispatcherStarved", "GpucauseLockHolder", "GpucauseDataloaderStarvation"]
# Only here: their amounts are of the time range.
IN_RANGE = " Over the selected time range."
NO_PRICE = " Empty without prices: rules/prices/gpu_hours.yaml."


def amount(series, by=""):
    """Returns the query that sums up the minutes of the time range."""
    summed = f"sum_over_time({series}:increase1m{{{ON}}}[$__range])"
    return f"sum by ({by}) ({summed})" if by else f"sum({summed})"


def hours(series, by=""):
    return f"{amount(series, by)} / 3600"


def an_hour(series, by):
    """Returns the query of the cost an hour, by the last five minutes: a minute without a loss has no series."""
    return f"sum by ({by}) (sum_over_time({series}:increase1m{{{ON}}}[5m])) * 12"


def _total(title, description, expr, legend, *, unit, runbooks, decimals=2):
    return stat(
        title,
        description,
        [query(expr, legend, instant=True)],
        unit=unit,
        decimals=decimals,
        w=5,
        spark=False,
        runbooks=runbooks,
    )


def _totals():
    return [
        _total(
            "Lost GPU hours",
            "Time that threads which feed GPUs lost to proven causes; an hour of a thread is a GPU hour." + IN_RANGE,
            hours("owner:gpucause_lost_seconds"),
            "lost",
            unit="suffix: h",
            runbooks=LOSS,
        ),
        _total(
            "Price of lost time",
            "Lost GPU hours at the price of the process's GPUs." + IN_RANGE + NO_PRICE,
            amount("owner:gpucause_lost_cost", "currency"),
            "{{currency}}",
            unit="short",
            runbooks=LOSS,
        ),
        _total(
            "Idle GPU hours",
            "Time of GPUs that were held, and on which nothing was launched for 15 minutes or more." + IN_RANGE,
            hours("owner:gpucause_idle_seconds"),
            "idle",
            unit="suffix: h",
            runbooks=["GpucauseGpuIdle"],
        ),
        _total(
            "Price of idle GPUs",
            "Idle GPU hours at the price of the GPUs." + IN_RANGE + NO_PRICE,
            amount("owner:gpucause_idle_cost", "currency"),
            "{{currency}}",
            unit="short",
            runbooks=["GpucauseGpuIdle"],
        ),
        stat(
            "Idle GPUs now",
            "GPUs that are held, and on which nothing was launched for 15 minutes or more.",
            [query(f"sum(holder:gpucause_gpu_idle:share{{{ON}}}) or vector(0)", "GPUs")],
            unit="short",
            decimals=0,
            w=4,
            thresholds=steps(GREEN, (1, YELLOW), (8, ORANGE)),
            runbooks=["GpucauseGpuIdle"],
        ),
    ]


def _causes():
    return [
        bars(
            "Price of lost time by cause",
            "What each cause cost." + IN_RANGE + NO_PRICE,
            [query(amount("owner:gpucause_lost_cost", "cause, currency"), "{{cause}} {{currency}}", instant=True)],
            unit="short",
            decimals=2,
            w=8,
            runbooks=LOSS,
        ),
        timeseries(
            "Price an hour",
            "What lost time and idle GPUs cost an hour, by the last five minutes." + NO_PRICE,
            [
                query(an_hour("owner:gpucause_lost_cost", "cause"), "{{cause}}"),
                query(an_hour("owner:gpucause_idle_cost", "currency"), "idle GPUs, {{currency}}"),
            ],
            unit="suffix:/h",
            decimals=2,
            w=16,
            stack=True,
            overrides=coloured(CAUSES),
            runbooks=["GpucauseGpuIdle", *LOSS],
        ),
        bars(
            "Lost GPU hours by cause",
            "Time that threads which feed GPUs lost to each proven cause." + IN_RANGE,
            [query(hours("owner:gpucause_lost_seconds", "cause"), "{{cause}}", instant=True)],
            unit="suffix: h",
            decimals=2,
            w=12,
            runbooks=LOSS,
        ),
        bars(
            "Hours taken by each cause, lost or not",
            """Time that causes took of threads which feed GPUs, such as waits for data in poll or after each launch. What was lost is
            part of it. Of all owners."""
            + IN_RANGE,
            [query("sum by (cause) (sum_over_time(job:gpucause_attributed:rate5m[$__range])) / 60 > 0", "{{cause}}", instant=True)],
            unit="suffix: h",
            decimals=2,
            w=12,
            runbooks=["GpucauseInefficientProgram", *LOSS],
        ),
    ]


def _owners():
    columns = {
        "namespace": "Namespace",
        "user": "User",
        "slurm_job": "Slurm job",
        "comm": "Process",
        "Value #A": "Lost hours",
        "Value #B": "Price of lost time",
        "Value #C": "Idle hours",
        "Value #D": "Price of idle GPUs",
    }
    return [
        table(
            "Owners",
            "Lost and idle GPU hours by who pays for them. Pods that hold a GPU without a process are by their namespace." + IN_RANGE,
            [
                query(hours("owner:gpucause_lost_seconds", OWNER), "lost", table=True),
                query(amount("owner:gpucause_lost_cost", OWNER), "price of lost", table=True),
                query(hours("owner:gpucause_idle_seconds", OWNER), "idle", table=True),
                query(amount("owner:gpucause_idle_cost", OWNER), "price of idle", table=True),
            ],
            columns,
            h=9,
            sort="Price of lost time",
            overrides=[override("/.* hours/", unit="suffix: h", decimals=2), override("/Price.*/", decimals=2)],
            runbooks=["GpucauseGpuIdle", *LOSS],
        ),
    ]


def _idle():
    columns = {
        "instance": "Instance",
        "pid": "PID",
        "comm": "Process",
        "namespace": "Namespace",
        "pod": "Pod",
        "user": "User",
        "slurm_job": "Slurm job",
        "UUID": "GPU",
        "modelName": "Model",
        "Value #A": "Share",
        "Value #B": "Price an hour",
    }
    share = f"holder:gpucause_gpu_idle:share{{{ON}}}"
    by = "instance, pid, comm, namespace, pod, user, slurm_job, UUID"
    return [
        timeseries(
            "Idle GPUs",
            "GPUs that are held, and on which nothing was launched for 15 minutes or more, by owner.",
            [query(f"sum by ({OWNER}) ({share})", "{{namespace}} {{user}} {{comm}}")],
            unit="short",
            w=10,
            h=9,
            stack=True,
            legend=("lastNotNull",),
            runbooks=["GpucauseGpuIdle"],
        ),
        table(
            "Holders of idle GPUs",
            "Who holds them now. Several holders of one GPU have a part of it each. The PID links to its dashboard.",
            [
                query(f"sum by ({by}) ({share})", "share", table=True),
                query(
                    f"sum by ({by}, modelName) ({share} * on (UUID) group_left (modelName) gpu:gpucause_gpu_hour_price:max)",
                    "price",
                    table=True,
                ),
            ],
            columns,
            w=14,
            h=9,
            sort="Price an hour",
            overrides=[to_process(), override("Share", unit="percentunit"), override("Price an hour", decimals=2)],
            runbooks=["GpucauseGpuIdle"],
        ),
    ]


def _prices():
    return [
        table(
            "Prices",
            "The price of an hour of each model, and how many GPUs are of it." + NO_PRICE,
            [
                query(
                    'label_replace(max by (modelName, currency) (model:gpucause_gpu_hour_price:max), "modelName", "all others",'
                    ' "modelName", "")',
                    "price",
                    table=True,
                ),
                query("count by (modelName) (gpu:gpucause_gpu_model:info)", "GPUs", table=True),
            ],
            {"modelName": "Model", "currency": "Currency", "Value #A": "Price an hour", "Value #B": "GPUs"},
            w=24,
            h=6,
            overrides=[override("Price an hour", decimals=2), override("GPUs", decimals=0)],
        ),
    ]


def dashboard():
    variables = [
        variable(
            name,
            label,
            f"label_values(process:gpucause_accounting:info, {name})",
            description=f"{label} of processes; those without one are in All.",
        )
        for name, label in [("namespace", "Namespace"), ("user", "User"), ("slurm_job", "Slurm job")]
    ]
    made = make(
        "gpucause-cost",
        "gpucause / Cost",
        "What lost GPU time and idle GPUs cost, by cause and owner.",
        variables,
        [
            ("Amounts", _totals()),
            ("Causes", _causes()),
            ("Owners", _owners()),
            ("Idle GPUs", _idle()),
            ("Prices", _prices()),
        ],
    )
    # Amounts of an hour say little.
    return dict(made, time={"from": "now-24h", "to": "now"}, refresh="1m")
